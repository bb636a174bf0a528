"""The states of all random-number generators that training draws from: kept, restored, and set."""

from __future__ import annotations

import random
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


def seed_data(number: int) -> None:
    """Seed what a dataset may draw from: everything on the CPU."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002
    random.seed(number)


def seed_all(number: int) -> None:
    """Seed everything."""
    torch.manual_seed(number)
    seed_data(number)


def mixed(*numbers: int) -> int:
    """One well-mixed 63-bit number from several (splitmix64): neighbouring seeds give unrelated ones."""
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
