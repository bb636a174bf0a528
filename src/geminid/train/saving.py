"""When a worker saves: at intervals in the background, at once when it has to stop, and when training is over.

If a checkpoint cannot be written, training continues with a warning. The last one is required: it is tried again, and
once more when the script has ended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from geminid.clock import Clock
from geminid.supervise import protocol
from geminid.train import rng
from geminid.train.agent import NoSupervisor
from geminid.train.checkpoint import Snapshot, Written, take_snapshot
from geminid.train.state_codec import CannotSave, check_saveable
from geminid.train.storage import AllGone, Checkpoints, reason
from geminid.train.trainstate import DoesNotFit, TrainingState

#: Largest share of the training time that taking snapshots may stop training for.
SNAPSHOT_BUDGET = 0.01

#: Delays before the last checkpoint is tried again.
RETRY_DELAYS_S = (0.5, 2.0)


class BackgroundWriter:
    """Writes snapshots in a thread, one at a time, while training goes on."""

    def __init__(self, folder: Checkpoints, on_written: Callable[[Written], None]) -> None:
        self.folder = folder
        self._on_written = on_written
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Write this snapshot, after the one before is written."""
        self.finish()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="geminid checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait until nothing is being written; the problem with the last one, if it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        return problem

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._on_written(self.folder.save(snapshot))
        except Exception as problem:  # remote storage has errors of its own, and training goes on
            self._problem = problem
            warn_of(problem)


class Saver:
    """One worker's checkpoints. Its callers decide which worker saves, and when training is between two steps."""

    def __init__(
        self,
        state: TrainingState,
        checkpoints: Checkpoints,
        agent: NoSupervisor,
        clock: Clock,
        *,
        every_s: float,
        saved_samples: int = 0,
    ) -> None:
        self._saved_samples = saved_samples
        self._state, self._agent, self._clock, self._every_s = state, agent, clock, every_s
        self._writer = BackgroundWriter(checkpoints, self._on_written)
        self._first_step_checked = False
        #: What is to be saved before the process ends.
        self._kept: Snapshot | Exception | None = None
        self._saved_at_s, self._pause_s = self._clock.monotonic_s(), 0.0

    def check(self) -> None:
        """Check whether the state can be saved: better now than at the first checkpoint.

        Raises:
            CannotSave: it cannot.
        """
        check_saveable(self._state.collect())

    def check_after_first_step(self) -> None:
        """Check once more after the first step, which creates the optimiser's state."""
        if not self._first_step_checked:
            self._first_step_checked = True
            self.check()

    def save_if_due(self) -> None:
        """Begin to save in the background, if it is time to or the supervisor has ordered it."""
        if self._writer.busy:
            return
        ordered = self._agent.orders.take_save()
        interval_s = max(self._every_s, self._pause_s / SNAPSHOT_BUDGET)
        if ordered or self._clock.monotonic_s() - self._saved_at_s >= interval_s:
            snapshot = self._snapshot()
            if isinstance(snapshot, Snapshot):
                self._writer.begin(snapshot)

    def save_now(self) -> Exception | None:
        """Save, and wait until that is done; the problem, if it failed."""
        return self._write(self._snapshot())

    def save_last(self) -> None:
        """Training is over: save. A state that cannot be saved now is kept until the script has ended."""
        snapshot = self._snapshot()
        problem = self._write(snapshot)
        for delay_s in RETRY_DELAYS_S:
            if problem is None or isinstance(problem, CannotSave):
                break
            self._clock.sleep(delay_s)
            problem = self._write(snapshot)
        if problem is not None:
            self._kept = snapshot

    def wait(self) -> Exception | None:
        """Wait for what is being written; the problem, if it failed."""
        return self._writer.finish()

    def keep(self) -> None:
        """Keep the state as it is now, to be saved when the script has ended."""
        self._kept = self._snapshot()

    def save_kept(self) -> Exception | None:
        """Save the state that was kept, if there is one; the problem, if it failed."""
        kept, self._kept = self._kept, None
        return self._write(kept) if kept is not None else None

    def claim(self) -> None:
        """Let no other run save in the same place.

        Raises:
            InUse: one does.
        """
        self._writer.folder.claim()

    def restore(self) -> Path | str | None:
        """Continue from the last intact checkpoint; returns its location, if there is one.

        Raises:
            CannotLoad: there are checkpoints, but they cannot be read, or all are damaged or gone.
            DoesNotFit: it belongs to another model, optimiser or dataset.
        """
        loaded = self._writer.folder.load()
        if loaded is None and self._saved_samples:
            gone = f"its checkpoints are gone, and {self._saved_samples:,} samples with them"
            again = "begin again with 'geminid resume JOB --from-scratch'"
            raise AllGone(f"{gone}: put one of them back and resume it, or {again}")
        if loaded is None:
            return None
        state, path = loaded
        try:
            self._state.restore(state)
        except DoesNotFit as problem:
            hint = "move the checkpoints away to start from scratch"
            raise DoesNotFit(f"{path} cannot be used: {problem}; {hint}") from None
        rng.restore(state["rng"])
        return path

    def _write(self, snapshot: Snapshot | Exception) -> Exception | None:
        self._writer.finish()
        if isinstance(snapshot, Exception):
            return snapshot
        self._writer.begin(snapshot)
        return self._writer.finish()

    def _snapshot(self) -> Snapshot | CannotSave:
        """A copy of the state, or the reason why there is none."""
        position = self._state.position
        self._saved_at_s = self._clock.monotonic_s()
        try:
            snapshot = take_snapshot(self._state.collect(), self._clock, step=position.step, samples=position.samples)
        except CannotSave as problem:
            warn_of(problem)
            return problem
        self._pause_s, self._saved_at_s = snapshot.pause_s, self._clock.monotonic_s()
        return snapshot

    def _on_written(self, written: Written) -> None:
        self._agent.send(
            protocol.Checkpointed(
                step=written.snapshot.step,
                samples=written.snapshot.samples,
                path=str(written.path),
                size_bytes=written.size_bytes,
                seconds=written.seconds,
                pause_s=written.snapshot.pause_s,
            )
        )


def warn_of(problem: Exception) -> None:
    """Warn that no checkpoint was written."""
    print(f"geminid: warning: no checkpoint was written: {reason(problem)}", file=sys.stderr, flush=True)
