"""The random-number generators that training draws from: save, restore and seed them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch


def states() -> dict[str, Any]:
    """The generators of PyTorch, numpy's global one and Python's, as they are now."""
    saved: dict[str, Any] = {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (what user code draws from)
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        saved["cuda"] = torch.cuda.get_rng_state()
    return saved


def restore(saved: dict[str, Any]) -> None:
    """Set the generators to states that were saved."""
    torch.default_generator.set_state(saved["torch"].cpu())
    np.random.set_state(saved["numpy"])  # noqa: NPY002
    random.setstate(saved["python"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"].cpu())


#: The generators that a dataset may draw from: all on the CPU.
CPU = frozenset({"torch", "numpy", "python"})


def seed_data(number: int, which: Collection[str] = CPU) -> None:
    """Seed the generators that a dataset may draw from, or some of them."""
    if "torch" in which:
        torch.default_generator.manual_seed(number)
    if "numpy" in which:
        np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002
    if "python" in which:
        random.seed(number)


class CpuStates:
    """The states of the generators on the CPU: to find out which of them are drawn from, and to restore them."""

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        """Restore all of them."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    def changed(self) -> bool:
        """Whether any of them has been drawn from since."""
        now = CpuStates()
        same = torch.equal(self._torch, now._torch) and _same(self._numpy, now._numpy) and self._python == now._python
        return not same

    def restore_changed(self) -> frozenset[str]:
        """Restore those that have changed; returns their names."""
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
    """Whether two states of numpy's generator (nested dicts, numbers and arrays) are the same."""
    if isinstance(one, dict):
        return all(_same(value, other[name]) for name, value in one.items())
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def seed_all(number: int) -> None:
    """Seed all generators."""
    torch.manual_seed(number)
    seed_data(number)


def mixed(*numbers: int) -> int:
    """One well-mixed 63-bit number from several (splitmix64): neighbouring seeds give unrelated ones."""
    return _chained(numbers) >> 1


def mixed_with_each(numbers: Sequence[int], lasts: Sequence[int]) -> list[int]:
    """``mixed(*numbers, last)`` for each of many last numbers, in less time."""
    state = np.uint64(_chained(numbers)) ^ np.asarray(lasts, dtype=np.int64).astype(np.uint64)
    state = state + np.uint64(GAMMA)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    mixed_up: list[int] = ((state ^ (state >> np.uint64(31))) >> np.uint64(1)).tolist()
    return mixed_up


#: The increment of splitmix64.
GAMMA = 0x9E3779B97F4A7C15

#: Its first and second multipliers.
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def _chained(numbers: Sequence[int]) -> int:
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + GAMMA & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * FIRST & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * SECOND & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state
