"""Train a small network on an accelerator that is only pretended: a step takes its time, and the processor is idle.

    python waiting.py --sample-ms 4 --step-ms 5

Every slot seems to have an accelerator of its own, so that jobs scale to more slots than the machine has cores, and
others on the machine hardly slow them down. Everything else is real: processes, gradients, resizes, checkpoints.
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
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sample-ms", type=float, default=4.0, help="what a sample takes on the accelerator")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what a step takes beside its samples")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = geminid.init()
    features = torch.randn(args.samples, FEATURES, generator=torch.Generator().manual_seed(1))
    wanted = features @ torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(2))
    wanted += 0.5 * torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3))
    network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer, loader = run.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=0.01),
        DataLoader(TensorDataset(features, wanted), batch_size=args.batch, shuffle=True),
        max_batch_size=4 * args.batch,
    )
    for epoch in run.epochs(args.epochs):
        for given, expected in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(given), expected)
            time.sleep((args.step_ms + args.sample_ms * len(given)) / 1e3)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.report(loss=loss)
        if run.is_leader:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
