"""A small real training job whose slots are as fast as they are on a cluster, on however few cores they run here.

Model, gradients, process groups, noise scale, rescales and checkpoints are real. What a device would compute for is
slept instead: so many milliseconds a sample. Sixteen slots then behave like sixteen devices on a machine of two cores.
Run by ``geminid bench ray`` as ``python slotjob.py``.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import geminid


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--sample-ms", type=float, default=4.0)
    parser.add_argument("--every", type=float, default=5.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = geminid.init(seed=1, checkpoint_every_s=arguments.every)
    torch.manual_seed(7)
    inputs = torch.randn(arguments.samples, 16)
    targets = inputs @ torch.randn(16, 1) + 2.0 * torch.randn(arguments.samples, 1)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = DataLoader(TensorDataset(inputs, targets), batch_size=arguments.batch, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, data, max_batch_size=arguments.max_batch)
    for _ in run.epochs(arguments.epochs):
        for features, wanted in loader:
            optimizer.zero_grad()
            time.sleep(1e-3 * arguments.sample_ms * len(features))
            loss = torch.nn.functional.mse_loss(model(features), wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main()
