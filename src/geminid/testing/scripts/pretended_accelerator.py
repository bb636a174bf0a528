"""Train a small network on an accelerator that is only pretended: the time of a step is slept.

    python pretended_accelerator.py --sample-ms 4 --step-ms 5

Every slot seems to have its own accelerator, so jobs scale to more slots than the machine has cores, and other
processes hardly slow them down. Everything else is real: processes, gradients, noise scale, rescales, checkpoints.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

FEATURES = 32


def main() -> None:
    """Train, and print the loss after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--batch", type=int, default=32, help="the initial batch")
    parser.add_argument("--max-batch", type=int, help="the largest batch; four times the initial one by default")
    parser.add_argument("--sample-ms", type=float, default=4.0, help="time of a sample on the accelerator")
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step beside its samples")
    parser.add_argument("--label-noise", type=float, default=0.5, help="more of it means a larger noise scale")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--checkpoint-every", type=float, default=60.0, help="seconds between checkpoints")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = geminid.init(checkpoint_every_s=args.checkpoint_every)
    features = torch.randn(args.samples, FEATURES, generator=torch.Generator().manual_seed(1))
    labels = features @ torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(2))
    labels += args.label_noise * torch.randn(labels.shape, generator=torch.Generator().manual_seed(3))
    network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer, loader = run.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=0.01, momentum=args.momentum),
        DataLoader(TensorDataset(features, labels), batch_size=args.batch, shuffle=True),
        max_batch_size=args.max_batch or 4 * args.batch,
    )
    for epoch in run.epochs(args.epochs):
        for inputs, expected in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), expected)
            time.sleep((args.step_ms + args.sample_ms * len(inputs)) / 1e3)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.report(loss=loss)
        if run.is_leader:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
