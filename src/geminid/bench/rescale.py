"""How long training stands still when a job is resized: live, and by the restart that it replaces, in one run.

The job is a real one, with ten million parameters and Adam (120 MB of state), on CPU slots of this machine. A pause
runs from the end of the last step before to the moment when all workers can go on. The cold restart is what schedulers
without live rescale do: save a checkpoint, end the processes, start new ones, load the checkpoint.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from geminid.train.jobevents import FirstStepDone, GroupFormed, JobEnded, JobEvent
from geminid.train.launcher import Launcher, PlainLauncher
from geminid.train.supervisor import JobSpec, Patience, Supervisor
from geminid.train.zygote import Zygote

#: The sizes that the job goes through.
SIZES = (1, 2, 4, 2, 1)

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class RescaleRow:
    """One resize. ``first_step`` is when the first step on the new slots has ended, counted like the pauses.

    ``warm_pause_s`` is a restart whose processes are forked from one that has PyTorch imported.
    """

    before: int
    after: int
    live_pause_s: float
    live_first_step_s: float
    cold_pause_s: float
    cold_first_step_s: float
    warm_pause_s: float
    times_faster: float


class BenchmarkFailed(Exception):
    """The job did not do what it should have; one sentence says why."""


class _Job(Supervisor):
    """The benchmark's job, which remembers what happened."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.seen: list[JobEvent] = []
        found = find_spec("geminid.bench.scripts.ten_million")
        assert found is not None
        assert found.origin is not None
        spec = JobSpec(
            command=(sys.executable, found.origin),
            folder=folder,
            name="the benchmark's job",
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
            patience=Patience(hang=60.0, grace=120.0),
        )
        super().__init__(spec, on_event=self.seen.append, launcher=launcher)

    def reach(self, size: int) -> tuple[GroupFormed, FirstStepDone]:
        """Resize, and wait for the first step on so many slots."""
        slots = [f"cpu{i}" for i in range(size)]
        known = len(self.seen)
        self.resize(slots)

        def formed() -> GroupFormed | None:
            groups = [event for event in self.seen[known:] if isinstance(event, GroupFormed)]
            return next((group for group in groups if len(group.slots) == size), None)

        def stepped() -> FirstStepDone | None:
            group = formed()
            steps = [event for event in self.seen[known:] if isinstance(event, FirstStepDone)]
            return next((step for step in steps if group and step.generation == group.generation), None)

        status = self.wait(lambda status: stepped() is not None, 600.0)
        group, step = formed(), stepped()
        if group is None or step is None:
            raise BenchmarkFailed(f"the job {status.phase} before it ran on {size} slots: {status.reason}")
        # A few more steps, so that the next resize hits a job that trains.
        self.wait(lambda status: status.progress is not None and status.progress.step >= group.step + 3, 600.0)
        return group, step

    def stopped_at_s(self) -> float:
        """Save and stop; when the last step ended."""
        self.stop()
        self.wait(lambda status: False, 600.0)
        ended = next((event for event in self.seen if isinstance(event, JobEnded)), None)
        if ended is None or ended.stopped_at_s is None:
            raise BenchmarkFailed(f"the job did not stop as it should: {self.status.reason}")
        return ended.stopped_at_s


def run(progress: Callable[[str], None] = lambda text: None) -> list[RescaleRow]:
    """Measure all resizes, live and cold.

    Raises:
        BenchmarkFailed: the job did not do what it should have.
    """
    with tempfile.TemporaryDirectory(prefix="geminid-") as folder, Zygote() as zygote:
        live = _live(Path(folder, "live"), zygote, progress)
        cold = _restarts(Path(folder, "cold"), PlainLauncher(), "cold restart", progress)
        warm = _restarts(Path(folder, "warm"), zygote, "restart from a warm process", progress)
    return [
        RescaleRow(
            before=SIZES[i],
            after=SIZES[i + 1],
            live_pause_s=live[i][0],
            live_first_step_s=live[i][1],
            cold_pause_s=cold[i][0],
            cold_first_step_s=cold[i][1],
            warm_pause_s=warm[i][0],
            times_faster=cold[i][0] / live[i][0],
        )
        for i in range(len(SIZES) - 1)
    ]


def _live(folder: Path, launcher: Launcher, progress: Callable[[str], None]) -> list[tuple[float, float]]:
    pauses = []
    with _Job(folder, launcher) as job:
        progress("starting a job")
        job.reach(SIZES[0])
        for before, after in pairwise(SIZES):
            progress(f"{before} → {after} slots, live")
            group, step = job.reach(after)
            assert group.pause_s is not None
            assert group.stopped_at_s is not None
            pauses.append((group.pause_s, step.ended_at_s - group.stopped_at_s))
    return pauses


def _restarts(
    folder: Path, launcher: Launcher, name: str, progress: Callable[[str], None]
) -> list[tuple[float, float]]:
    pauses = []
    stopped_at_s = 0.0
    for number, size in enumerate(SIZES):
        if number:
            progress(f"{SIZES[number - 1]} → {size} slots, {name}")
        with _Job(folder, launcher) as job:
            group, step = job.reach(size)
            if number:
                pauses.append((group.resumed_at_s - stopped_at_s, step.ended_at_s - stopped_at_s))
            stopped_at_s = job.stopped_at_s()
    return pauses
