"""What checkpoints cost training: how long it stands still for one, and how much slower it is while one is written.

A model of ten million parameters trains with the library. Blocks of steps take turns: some while nothing is written,
some while a checkpoint is being hashed and written in the background.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

from geminid.clock import Clock
from geminid.train.checkpoint import Written, take_snapshot
from geminid.train.saving import SNAPSHOT_BUDGET, BackgroundWriter
from geminid.train.settings import Settings
from geminid.train.storage import CheckpointFolder

SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: checkpoints, steps before each in which nothing is written, and steps before all that."""

    checkpoints: int
    block_steps: int
    warm_up_steps: int


FULL = Extent(checkpoints=8, block_steps=20, warm_up_steps=10)
QUICK = Extent(checkpoints=2, block_steps=5, warm_up_steps=3)

#: Checkpoints are to take less than this part of the time from training.
GOAL = 0.01


@dataclass(frozen=True, slots=True)
class SavingRow:
    """Medians, in seconds. ``interval_s`` is how often a checkpoint is written, by default and at most.

    ``overhead`` is the share of the time that writing them takes from training: standing still, and being slower.
    """

    device: str
    state_bytes: int
    step_s: float
    pause_s: float
    write_s: float
    step_while_writing_s: float
    interval_s: float
    overhead: float


def run(
    *, device: str | None = None, extent: Extent = FULL, progress: Callable[[str], None] = lambda text: None
) -> SavingRow:
    """Measure."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 3000), nn.ReLU(), nn.Linear(3000, 2000), nn.ReLU(), nn.Linear(2000, 500))
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, labels = torch.randn(SAMPLES, 1024, device=where), torch.randint(500, (SAMPLES,), device=where)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if where.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for _ in range(extent.warm_up_steps):
        step()
    idle: list[float] = []
    busy: list[float] = []
    pauses: list[float] = []
    written: list[Written] = []
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
        writer = BackgroundWriter(CheckpointFolder(Path(folder), clock, keep=2), written.append)
        for number in range(extent.checkpoints):
            progress(f"checkpoint {number + 1} of {extent.checkpoints}")
            idle += [step() for _ in range(extent.block_steps)]
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            snapshot = take_snapshot(state, clock, step=number, samples=number)
            pauses.append(snapshot.pause_s)
            writer.begin(snapshot)
            while writer.busy:
                busy.append(step())
        writer.finish()
    step_s, pause_s, write_s = median(idle), median(pauses), median(one.seconds for one in written)
    while_writing_s = median(busy) if busy else step_s
    interval_s = max(Settings().checkpoint_every_s, pause_s / SNAPSHOT_BUDGET)
    slower_s = write_s * max(0.0, 1.0 - step_s / while_writing_s)
    return SavingRow(
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        state_bytes=written[-1].size_bytes,
        step_s=step_s,
        pause_s=pause_s,
        write_s=write_s,
        step_while_writing_s=while_writing_s,
        interval_s=interval_s,
        overhead=(pause_s + slower_s) / interval_s,
    )
