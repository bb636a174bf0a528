"""Train a generator and a discriminator, each with its own optimiser, to make points on a ring.

python examples/gan.py
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid


def main() -> None:
    """Train, and print how far generated points are from the ring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    angles = torch.rand(2048) * 2 * math.pi
    ring = torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(2048, 2)
    loader = DataLoader(TensorDataset(ring, torch.randn(2048, 4)), batch_size=64, shuffle=True)
    run = geminid.init()
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    models = {"generator": generator.to(run.device), "critic": critic.to(run.device)}
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999)) for name, model in models.items()
    }
    models, optimizers, loader = run.prepare(models=models, optimizers=optimizers, loader=loader)
    average = run.ema(generator, 0.99)
    loss_of = nn.functional.binary_cross_entropy_with_logits
    for _ in run.epochs(args.epochs):
        for real, noise in loader:
            real, noise = real.to(run.device), noise.to(run.device)
            one, zero = torch.ones(len(real), 1, device=run.device), torch.zeros(len(real), 1, device=run.device)
            made = generator(noise)

            optimizers["critic"].zero_grad()
            (loss_of(critic(real), one) + loss_of(critic(made.detach()), zero)).backward()
            optimizers["critic"].step()

            optimizers["generator"].zero_grad()
            loss = loss_of(critic(made), one)
            loss.backward()
            optimizers["generator"].step()
            run.report(loss=loss)
    if run.is_leader:
        noise = torch.randn(512, 4, generator=torch.Generator().manual_seed(1)).to(run.device)
        with torch.no_grad():
            distance = (average.module(noise).norm(dim=1) - 1).abs().mean()
        print(f"distance {distance:.4f}", flush=True)


if __name__ == "__main__":
    main()
