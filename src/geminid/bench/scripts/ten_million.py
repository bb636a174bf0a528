"""Train a network of ten million parameters for as long as it is let: ``geminid bench rescale`` resizes this job."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

SAMPLES = 4096


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = geminid.init(checkpoint_every_s=1e6)
    model = nn.Sequential(nn.Linear(1024, 3000), nn.ReLU(), nn.Linear(3000, 2000), nn.ReLU(), nn.Linear(2000, 500))
    model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(SAMPLES, 1024), torch.randint(500, (SAMPLES,)))
    _, _, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
    for _ in run.epochs(10**6):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.report(loss=loss)


if __name__ == "__main__":
    main()
