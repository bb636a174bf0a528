"""Data without a Dataset: the script makes the batch of any samples by their numbers (``run.steps``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from geminid.train import rng
from geminid.train.data import Spans
from geminid.train.shares import Span

#: Makes the batch of the samples with these numbers.
GetBatch = Callable[[range], Any]


class IndexSource:
    """Samples 0, 1, 2, …, as many as ``length`` in a round; batches are made by the script's own function.

    The function must depend on the numbers alone. One that draws from the global random generators does not: the first
    batch shows it, and a warning says so.
    """

    def __init__(self, get_batch: GetBatch, length: int) -> None:
        self._get_batch, self._length, self._round = get_batch, length, 0
        self._checked = False

    def length(self, epoch: int) -> int | None:
        """Samples in a round."""
        return self._length

    def begin(self, epoch: int, spans: Spans) -> None:
        """From now on, hand out batches of this round."""
        self._round = epoch

    def batch(self, span: Span) -> Any:
        """The batch of a span."""
        first = self._round * self._length
        before = None if self._checked else rng.CpuStates()
        batch = self._get_batch(range(first + span[0], first + span[1]))
        if before is not None:
            self._checked = True
            if before.changed():
                _warn_of_draws()
        return batch

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples there are from a position on."""
        return max(0, min(count, self._length - begin))

    def order_code(self) -> int:
        """All workers have the same order."""
        return 0


def draw(indices: Sequence[int], below: int, seed: int) -> torch.Tensor:
    """A random whole number below ``below`` for each index, which depends on the seed and the index alone."""
    return torch.tensor(rng.mixed_with_each((seed,), indices), dtype=torch.int64) % below


def _warn_of_draws() -> None:
    print(
        "geminid: warning: get_batch drew from a global random generator, so a sample's content depends on the worker "
        "that made it, and changes when a step is repeated: draw by the samples' numbers, as run.draw(indices, below) "
        "does",
        file=sys.stderr,
        flush=True,
    )
