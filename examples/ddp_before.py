"""Train a small image classifier with DistributedDataParallel, as scripts for ImageNet do. ``ddp_after.py`` is elastic.

torchrun --nproc-per-node 2 examples/ddp_before.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 16)).to(device)
    model = DistributedDataParallel(model)
    data, unseen = make_images(4096, seed=1), make_images(512, seed=2)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=TOTAL_BATCH // size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        schedule.step()
    if rank == 0:
        with torch.no_grad():
            right = model(unseen.tensors[0].to(device)).argmax(1).cpu() == unseen.tensors[1]
        print(f"accuracy {right.float().mean():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
