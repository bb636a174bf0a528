"""What the user chose for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What epochs, schedules and the end of training are counted in.
Unit = Literal["samples", "progress"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose; see ``geminid.init`` and ``run.prepare``.

    ``scaling_rules`` has the learning-rate rule of every parameter group. ``saved_samples`` must be in the checkpoints,
    as far as the service knows.
    """

    seed: int = 0
    checkpoint_every_s: float = 60.0
    keep_checkpoints: int = 3
    scaling_rules: tuple[str, ...] = ()
    warmup_epochs: float = 0.0
    saved_samples: int = 0
