"""Train a small language model as nanoGPT does, on text that is made up.

Random pieces of one long text, a number of steps, a learning rate of its own, and steps of several micro-batches.

python examples/nanogpt.py
"""

import argparse
import math

import torch
from torch import nn

import geminid

BLOCK_SIZE, VOCABULARY = 32, 64
BATCH_SIZE, MICRO_BATCH = 48, 12
LEARNING_RATE, MIN_LEARNING_RATE = 3e-3, 3e-4


def make_text(length: int, seed: int) -> torch.Tensor:
    """Tokens of which each depends on the one before it, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(VOCABULARY, (length,), generator=generator)
    noisy = torch.rand(length, generator=generator) < 0.2
    text = noise.tolist()
    for i in range(1, length):
        if not noisy[i]:
            text[i] = (3 * text[i - 1] + 7) % VOCABULARY
    return torch.tensor(text)


class GPT(nn.Module):
    """A causal transformer that returns its loss."""

    def __init__(self, width: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(BLOCK_SIZE, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of predicting ``y``, the tokens that follow those of ``x``."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def main() -> None:
    """Train, and print the loss on unseen text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, unseen = make_text(20_000, seed=1), make_text(2_000, seed=2)
    run = geminid.init()

    def batch_at(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = starts[:, None] + torch.arange(BLOCK_SIZE)
        return text[rows].to(run.device), text[rows + 1].to(run.device)

    def get_batch(indices: range) -> tuple[torch.Tensor, torch.Tensor]:
        return batch_at(train, run.draw(indices, len(train) - BLOCK_SIZE))  # instead of torch.randint(…)

    def learning_rate(number: int) -> float:
        if number < 20:
            return LEARNING_RATE * (number + 1) / 20
        share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, number / args.steps)))
        return MIN_LEARNING_RATE + share * (LEARNING_RATE - MIN_LEARNING_RATE)

    model = GPT().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    model, optimizer = run.prepare(model, optimizer, max_per_slot_batch=MICRO_BATCH)
    held_out = batch_at(unseen, torch.arange(0, len(unseen) - BLOCK_SIZE - 1, BLOCK_SIZE))
    for step in run.steps(total=args.steps, batch_size=BATCH_SIZE, get_batch=get_batch):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step.number)
        for x, y in step:
            loss = model(x, y)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.report(loss=loss)
    if run.is_leader:
        with torch.no_grad():
            print(f"unseen {model(*held_out):.4f} (guessing: {math.log(VOCABULARY):.4f})", flush=True)


if __name__ == "__main__":
    main()
