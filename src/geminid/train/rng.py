"""The states of all random-number generators that training draws from: kept, restored, and set."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch


def states() -> dict[str, Any]:
    """The generators of PyTorch, numpy's global one and Python's, as they are now."""
    kept: dict[str, Any] = {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (what user code draws from)
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        kept["cuda"] = torch.cuda.get_rng_state()
    return kept


def restore(kept: dict[str, Any]) -> None:
    """Set the generators to states that were kept."""
    torch.default_generator.set_state(kept["torch"].cpu())
    np.random.set_state(kept["numpy"])  # noqa: NPY002
    random.setstate(kept["python"])
    if "cuda" in kept and torch.cuda.is_available():
        torch.cuda.set_rng_state(kept["cuda"].cpu())


#: What a dataset may draw from: everything on the CPU.
CPU = frozenset({"torch", "numpy", "python"})


def seed_data(number: int, which: Collection[str] = CPU) -> None:
    """Seed what a dataset may draw from, or some of it."""
    if "torch" in which:
        torch.default_generator.manual_seed(number)
    if "numpy" in which:
        np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002
    if "python" in which:
        random.seed(number)


class CpuStates:
    """The generators on the CPU as they are now: to find out which of them are drawn from, and to put them back."""

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        """Have all of them as they were."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    def put_back(self) -> frozenset[str]:
        """Have those that have changed as they were; which ones these are."""
        now, changed = CpuStates(), set()
        if self._torch.numpy().tobytes() != now._torch.numpy().tobytes():
            changed.add("torch")
            torch.default_generator.set_state(self._torch)
        if not _same(self._numpy, now._numpy):
            changed.add("numpy")
            np.random.set_state(self._numpy)  # noqa: NPY002
        if self._python != now._python:
            changed.add("python")
            random.setstate(self._python)
        return frozenset(changed)


def _same(one: Any, other: Any) -> bool:
    """Whether two states of numpy's, dicts of dicts, numbers and arrays, are the same."""
    if isinstance(one, dict):
        return all(_same(value, other[name]) for name, value in one.items())
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def seed_all(number: int) -> None:
    """Seed everything."""
    torch.manual_seed(number)
    seed_data(number)


def mixed(*numbers: int) -> int:
    """One well-mixed 63-bit number from several (splitmix64): neighbouring seeds give unrelated ones."""
    return _chained(numbers) >> 1


def mixed_with_each(numbers: Sequence[int], lasts: Sequence[int]) -> list[int]:
    """What ``mixed`` makes of some numbers and each of many others: the same, in less time."""
    state = np.uint64(_chained(numbers)) ^ np.asarray(lasts, dtype=np.int64).astype(np.uint64)
    state = state + np.uint64(GAMMA)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    mixed_up: list[int] = ((state ^ (state >> np.uint64(31))) >> np.uint64(1)).tolist()
    return mixed_up


#: The constants of splitmix64.
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _chained(numbers: Sequence[int]) -> int:
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + GAMMA & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * FIRST & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * SECOND & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state
