"""Train a small image classifier. ``ddp_before.py`` is the same with DistributedDataParallel.

python examples/ddp_after.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

TOTAL_BATCH = 64


def make_images(samples: int, seed: int) -> TensorDataset:
    """Noisy images of a bright row or column, one of 16 classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(16, (samples,), generator=generator)
    images = 0.5 * torch.randn(samples, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        if label < 8:
            image[0, label] += 1.0
        else:
            image[0, :, label - 8] += 1.0
    return TensorDataset(images, labels)


def main() -> None:
    """Train, and print the accuracy on unseen images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = geminid.init()
    device = run.device
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 16)).to(device)
    data, unseen = make_images(4096, seed=1), make_images(512, seed=2)
    loader = DataLoader(data, batch_size=TOTAL_BATCH, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    model, optimizer, loader = run.prepare(model, optimizer, loader, lr_scheduler=schedule)
    for _ in run.epochs(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        schedule.step()
    if run.is_leader:
        with torch.no_grad():
            right = model(unseen.tensors[0].to(device)).argmax(1).cpu() == unseen.tensors[1]
        print(f"accuracy {right.float().mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
