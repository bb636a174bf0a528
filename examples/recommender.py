"""Factorise a matrix of ratings that the script makes up: users and items as vectors.

python examples/recommender.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

USERS, ITEMS, TASTES = 300, 200, 4


def make_ratings(samples: int, seed: int) -> TensorDataset:
    """Noisy ratings by users with a few hidden tastes."""
    hidden = torch.Generator().manual_seed(0)
    users, items = torch.randn(USERS, TASTES, generator=hidden), torch.randn(ITEMS, TASTES, generator=hidden)
    generator = torch.Generator().manual_seed(seed)
    user = torch.randint(USERS, (samples,), generator=generator)
    item = torch.randint(ITEMS, (samples,), generator=generator)
    noise = 0.3 * torch.randn(samples, generator=generator)
    return TensorDataset(user, item, (users[user] * items[item]).sum(1) + noise)


class Factors(nn.Module):
    """A vector and a bias for every user and every item."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Predicted ratings."""
        match = (self.users(user) * self.items(item)).sum(1)
        return match + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)


def main() -> None:
    """Train, and print the error on unseen ratings after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=20_000)
    args = parser.parse_args()
    torch.set_num_threads(1)  # of a model this small, threads would mostly wait for each other
    torch.manual_seed(0)
    run = geminid.init()
    model = Factors().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    loader = DataLoader(make_ratings(args.samples, seed=1), batch_size=128, shuffle=True)
    unseen = [part.to(run.device) for part in make_ratings(2_000, seed=2).tensors]
    model, optimizer, loader = run.prepare(model, optimizer, loader, max_batch_size=2048)
    for epoch in run.epochs(args.epochs):
        for batch in loader:
            user, item, rating = (part.to(run.device) for part in batch)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(user, item), rating)
            loss.backward()
            optimizer.step()
            run.report(loss=loss)
        if run.is_leader:
            with torch.no_grad():
                error = nn.functional.mse_loss(model(*unseen[:2]), unseen[2]).item()
            print(f"epoch {epoch}: unseen {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
