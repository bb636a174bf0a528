"""Train a small transformer to continue sentences of a little grammar that the script makes up.

python examples/language.py
"""

import argparse
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

ARTICLES, ADJECTIVES = ("the", "a"), ("small", "red", "old", "quick", "quiet")
NOUNS, VERBS = ("star", "fox", "ship", "child", "river", "bird"), ("sees", "follows", "likes", "finds")
WORDS = (".", *ARTICLES, *ADJECTIVES, *NOUNS, *VERBS)
LENGTH = 24


def make_sentences(samples: int, seed: int) -> TensorDataset:
    """Token sequences of sentences; what follows 'a' or a verb is far from random, which can be learned."""
    dice = random.Random(seed)
    number = {word: i for i, word in enumerate(WORDS)}

    def thing() -> list[str]:
        noun = dice.choice(NOUNS)
        adjective = [ADJECTIVES[NOUNS.index(noun) % len(ADJECTIVES)]] if dice.random() < 0.5 else []
        return [dice.choice(ARTICLES), *adjective, noun]

    rows = []
    for _ in range(samples):
        words: list[str] = []
        while len(words) <= LENGTH:
            subject = thing()
            words += [*subject, VERBS[NOUNS.index(subject[-1]) % len(VERBS)], *thing(), "."]
        rows.append([number[word] for word in words[: LENGTH + 1]])
    return TensorDataset(torch.tensor(rows))


class Transformer(nn.Module):
    """A causal language model."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, len(WORDS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next word at every place."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.out(self.layers(self.words(tokens) + self.places(places), mask=mask, is_causal=True))


def main() -> None:
    """Train, and print the loss of unseen sentences after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2048)
    args = parser.parse_args()
    torch.set_num_threads(1)  # of a model this small, threads would mostly wait for each other
    torch.manual_seed(0)
    run = geminid.init()
    model = Transformer().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(make_sentences(args.samples, seed=1), batch_size=32, shuffle=True)
    (unseen,) = make_sentences(256, seed=2).tensors
    model, optimizer, loader = run.prepare(model, optimizer, loader, max_batch_size=256)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1].to(run.device))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().to(run.device))

    for epoch in run.epochs(args.epochs):
        for (tokens,) in loader:
            optimizer.zero_grad()
            loss = loss_of(tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            run.report(loss=loss)
        if run.is_leader:
            with torch.no_grad():
                loss = loss_of(unseen).item()
            print(f"epoch {epoch}: unseen {loss:.3f} (guessing: {math.log(len(WORDS)):.3f})", flush=True)


if __name__ == "__main__":
    main()
