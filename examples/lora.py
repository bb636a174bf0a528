"""Fine-tune a frozen model by low-rank additions to its layers (LoRA), on sentences of different lengths.

Losses are averaged over the tokens that are not padding, so batches are weighed by their number.

python examples/lora.py
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

VOCABULARY, LENGTH, PADDING = 32, 12, -100


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank addition."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output, and what was learned."""
        return self.frozen(x) + x @ self.down.T @ self.up.T


def make_sentences(samples: int) -> TensorDataset:
    """Tokens with the successors to learn; sentences end at different places, and are padded."""
    tokens = torch.randint(VOCABULARY, (samples, LENGTH))
    targets = (5 * tokens + 3) % VOCABULARY
    lengths = torch.randint(1, LENGTH + 1, (samples, 1))
    return TensorDataset(tokens, torch.where(torch.arange(LENGTH) < lengths, targets, PADDING))


def main() -> None:
    """Fine-tune, and print the loss over all tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_sentences(1024)
    run = geminid.init()
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 64).requires_grad_(False),
        LowRank(nn.Linear(64, 64), rank=16),
        nn.Tanh(),
        LowRank(nn.Linear(64, VOCABULARY), rank=16),
    ).to(run.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.01)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    steps = args.epochs * len(loader)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[10])
    model, optimizer, loader = run.prepare(model, optimizer, loader, lr_scheduler=schedule)

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = model(tokens.to(run.device))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().to(run.device), ignore_index=PADDING)

    for _ in run.epochs(args.epochs):
        for tokens, targets in loader:
            optimizer.zero_grad()
            run.weight((targets != PADDING).sum())
            loss = loss_of(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            run.report(loss=loss)
    if run.is_leader:
        with torch.no_grad():
            print(f"loss {loss_of(*data.tensors):.4f} (guessing: {math.log(VOCABULARY):.4f})", flush=True)


if __name__ == "__main__":
    main()
