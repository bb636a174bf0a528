"""How long training stands still when a job is resized: live, and by the restart that it replaces, in one run.

The job is a real one, with ten million parameters and Adam (120 MB of state), on CPU slots of this machine. A pause
runs from the end of the last step before to the moment when all workers can go on. The cold restart is what schedulers
without live rescale do: save a checkpoint, end the processes, start new ones, load the checkpoint.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from geminid.bench.live_jobs import BenchmarkFailed
from geminid.process.launch import Launcher, PlainLauncher
from geminid.process.zygote import Zygote
from geminid.supervise.events import FirstStepDone, GroupFormed, JobEvent, JobPhase
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor

#: The sizes, in slots, that the job goes through.
SIZES = (1, 2, 4, 2, 1)

#: … in a quick run.
QUICK_SIZES = (1, 2)

#: A live resize pauses training for less than this, in seconds.
GOAL_S = 1.0

#: The longest time that a job may take to reach a size, or to save and stop.
PATIENCE_S = 600.0

#: Steps on each size before the job is resized again, so that the resize meets a job that trains.
STEPS_PER_SIZE = 3

#: Lines of a worker's log that an error message quotes.
QUOTED_LINES = 3


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


class _Job(Supervisor):
    """The benchmark's job, which remembers what happened."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.seen: list[JobEvent] = []
        found = find_spec("geminid.bench.scripts.ten_million")
        assert found is not None
        assert found.origin is not None
        spec = WorkerSpec(
            command=(sys.executable, found.origin),
            folder=folder,
            name="the benchmark's job",
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
            patience=Patience(hang=60.0, grace=120.0),
        )
        super().__init__(spec, on_event=self.seen.append, launcher=launcher)

    def reach(self, size: int) -> tuple[GroupFormed, FirstStepDone]:
        """Resize, and wait for the first step on this many slots."""
        slots = [f"cpu{i}" for i in range(size)]
        known = len(self.seen)

        def formed() -> GroupFormed | None:
            groups = [event for event in self.seen[known:] if isinstance(event, GroupFormed)]
            return next((group for group in groups if len(group.slots) == size), None)

        def stepped() -> FirstStepDone | None:
            group = formed()
            steps = [event for event in self.seen[known:] if isinstance(event, FirstStepDone)]
            return next((step for step in steps if group and step.generation == group.generation), None)

        with self._expected(f"to train on {size} slots"):
            self.resize(slots)
            self.wait(lambda status: stepped() is not None, PATIENCE_S)
            group, step = formed(), stepped()
            if group is None or step is None:
                raise TimeoutError
            last = group.step + STEPS_PER_SIZE
            self.wait(lambda status: status.progress is not None and status.progress.step >= last, PATIENCE_S)
            if self.status.phase.over:
                raise TimeoutError
        return group, step

    def stopped_at_s(self) -> float:
        """Save and stop; when the last step ended."""
        with self._expected("to save and stop"):
            self.stop()
            ended = self.wait_for_end(PATIENCE_S)
            if ended.state is not JobPhase.STOPPED or ended.stopped_at_s is None:
                raise TimeoutError
        return ended.stopped_at_s

    @contextmanager
    def _expected(self, what: str) -> Iterator[None]:
        """A job that does not do this within, or not in time, ends the benchmark with a message that says so."""
        began_s = time.monotonic()
        try:
            yield
        except TimeoutError:
            status, after_s = self.status, time.monotonic() - began_s
            reason = f" ({status.reason})" if status.reason else ""
            logs = self.spec.folder / "logs"
            raise BenchmarkFailed(
                f"expected the benchmark's job {what}, but after {after_s:.0f} s it is {status.phase} "
                f"on {len(status.slots)} slots{reason}; {_last_lines(logs)}its logs are in {logs}"
            ) from None


def _last_lines(logs: Path) -> str:
    """What the worker whose log changed last printed last, as the part of a sentence."""
    files = sorted((file for file in logs.glob("*.log") if file.stat().st_size), key=lambda file: file.stat().st_mtime)
    if not files:
        return "its workers printed nothing; "
    lines = files[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-QUOTED_LINES:]
    return f"the last lines of {files[-1].name} are: {' / '.join(lines)}; "


def run(
    *, sizes: Sequence[int] = SIZES, progress: Callable[[str], None] = lambda text: None, home: Path | None = None
) -> list[RescaleRow]:
    """Measure all resizes, live and cold, in a temporary folder (of ``home``), which is kept if something fails.

    Raises:
        BenchmarkFailed: the job did not do what it should.
    """
    folder = Path(tempfile.mkdtemp(prefix="geminid-", dir=home))
    keep = False
    try:
        with Zygote(preload="geminid.train.preload") as zygote:
            live = _live(folder / "live", zygote, sizes, progress)
            cold = _restarts(folder / "cold", PlainLauncher(), "cold restart", sizes, progress)
            warm = _restarts(folder / "warm", zygote, "restart from a warm process", sizes, progress)
    except BenchmarkFailed:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return [
        RescaleRow(
            before=before,
            after=after,
            live_pause_s=live[i][0],
            live_first_step_s=live[i][1],
            cold_pause_s=cold[i][0],
            cold_first_step_s=cold[i][1],
            warm_pause_s=warm[i][0],
            times_faster=cold[i][0] / live[i][0],
        )
        for i, (before, after) in enumerate(pairwise(sizes))
    ]


def _live(
    folder: Path, launcher: Launcher, sizes: Sequence[int], progress: Callable[[str], None]
) -> list[tuple[float, float]]:
    pauses = []
    with _Job(folder, launcher) as job:
        progress("starting a job")
        job.reach(sizes[0])
        for before, after in pairwise(sizes):
            progress(f"{before} → {after} slots, live")
            group, step = job.reach(after)
            assert group.pause_s is not None
            assert group.stopped_at_s is not None
            pauses.append((group.pause_s, step.ended_at_s - group.stopped_at_s))
    return pauses


def _restarts(
    folder: Path, launcher: Launcher, name: str, sizes: Sequence[int], progress: Callable[[str], None]
) -> list[tuple[float, float]]:
    pauses = []
    stopped_at_s = 0.0
    for number, size in enumerate(sizes):
        if number:
            progress(f"{sizes[number - 1]} → {size} slots, {name}")
        with _Job(folder, launcher) as job:
            group, step = job.reach(size)
            if number:
                pauses.append((group.resumed_at_s - stopped_at_s, step.ended_at_s - stopped_at_s))
            stopped_at_s = job.stopped_at_s()
    return pauses
