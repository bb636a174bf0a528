"""What the library costs the data: an epoch's batches from a plain loader and from the library's, in turns.

No model is trained. Datasets do as little as possible for a sample, so that what the library adds shows: this is the
worst case, and anything that reads a file or decodes an image is far from it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from geminid.bench.timing import timed
from geminid.train.data import Source, source_of

#: Samples of a batch.
BATCH = 64

#: Features of a sample.
FEATURES = 10


@dataclass(frozen=True, slots=True)
class DataRow:
    """Medians of processor time for one sample, in seconds, and how many times as long it takes with the library."""

    dataset: str
    batch: int
    plain_s: float
    library_s: float
    ratio: float


class _Plain(Dataset[torch.Tensor]):
    """Draws nothing, but nobody knows that."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._values[index]


class _Augmenting(_Plain):
    """Adds what it draws."""

    def __init__(self, values: torch.Tensor, draw: Callable[[], float]) -> None:
        super().__init__(values)
        self._draw = draw

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._values[index] + self._draw()


def _collate(samples: Any) -> Any:
    return default_collate(samples)


def run(*, samples: int = 6400, rounds: int = 7, progress: Callable[[str], None] = lambda text: None) -> list[DataRow]:
    """Measure all kinds of dataset, in this process (no loader's workers)."""
    values = torch.randn(samples, FEATURES)
    kinds: dict[str, tuple[Dataset[Any], Any]] = {
        "TensorDataset": (TensorDataset(values), None),
        "own, draws nothing": (_Plain(values), None),
        "own, with a collate function": (_Plain(values), _collate),
        "own, draws from PyTorch": (_Augmenting(values, lambda: float(torch.rand(()))), None),
        "own, draws from numpy": (_Augmenting(values, np.random.random), None),
        "own, draws from Python": (_Augmenting(values, random.random), None),
    }
    rows = []
    for name, (dataset, collate) in kinds.items():
        progress(name)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=collate)
        source = source_of(loader, 0)
        taken: dict[str, list[float]] = {"plain": [], "library": []}
        for epoch in range(rounds):
            taken["plain"].append(_cpu_s(loader) / samples)
            taken["library"].append(_cpu_s(_epoch(source, epoch, samples)) / samples)
        plain_s, library_s = median(taken["plain"]), median(taken["library"])
        rows.append(DataRow(name, BATCH, plain_s, library_s, library_s / plain_s))
    return rows


def _epoch(source: Source, epoch: int, samples: int) -> Iterable[Any]:
    """The batches of an epoch, as one worker gets them."""
    spans = [(begin, min(begin + BATCH, samples)) for begin in range(0, samples, BATCH)]
    source.begin(epoch, spans)
    return (source.batch(span) for span in spans)


def _cpu_s(batches: Iterable[Any]) -> float:
    """CPU time of going through these batches."""
    return timed(lambda: deque(batches, maxlen=0)).cpu_s
