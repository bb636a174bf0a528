"""Train a small convolutional network on images that the script makes itself.

python examples/images.py
geminid profile -- python examples/images.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

CLASSES, SIDE = 8, 16


def make_images(samples: int, seed: int) -> TensorDataset:
    """One of eight fixed patterns, shifted and covered in noise, labelled with its number."""
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    shifts = torch.randint(3, (samples, 2), generator=generator)
    images = torch.stack([patterns[c].roll(s.tolist(), (1, 2)) for c, s in zip(labels, shifts, strict=True)])
    return TensorDataset(images + 1.5 * torch.randn(images.shape, generator=generator), labels)


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """The share of images that are recognised."""
    model.eval()
    with torch.no_grad():
        right = model(data.tensors[0].to(device)).argmax(1) == data.tensors[1].to(device)
    model.train()
    return right.float().mean().item()


def main() -> None:
    """Train, and print how well it does after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()
    torch.set_num_threads(1)  # of a model this small, threads would mostly wait for each other
    torch.manual_seed(0)
    run = geminid.init()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, CLASSES),
    ).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loader = DataLoader(make_images(args.samples, seed=1), batch_size=32, shuffle=True)
    test = make_images(512, seed=2)
    model, optimizer, loader = run.prepare(model, optimizer, loader, lr_scheduler=schedule, max_batch_size=256)
    for epoch in run.epochs(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(run.device)), labels.to(run.device))
            loss.backward()
            optimizer.step()
            run.report(loss=loss)
        schedule.step()
        if run.is_leader:
            right = accuracy(model, test, run.device)
            run.report(accuracy=right)
            print(f"epoch {epoch}: accuracy {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
