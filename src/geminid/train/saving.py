"""When a worker saves: now and then in the background, at once when it has to stop, and when training is over.

Training goes on when a checkpoint cannot be written, with a warning. The last one is insisted on: the script may go on
after training, and when it has ended the state is saved once more if it is not safe yet.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from geminid.supervise import protocol
from geminid.train import rng
from geminid.train.agent import Agent
from geminid.train.checkpoint import Snapshot, Written, take_snapshot
from geminid.train.state_codec import CannotSave, check_saveable
from geminid.train.storage import Checkpoints, checkpoints_at, reason
from geminid.train.trainstate import DoesNotFit, TrainingState

#: Taking a snapshot may stop training for at most this share of the time.
SNAPSHOT_BUDGET = 0.01

#: The last checkpoint is tried again after so long, and once more.
PAUSES_S = (0.5, 2.0)


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
        """Write this one next; waits for the one before."""
        self.finish()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="geminid checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait until nothing is being written; why the last one could not be, if so."""
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
    """One worker's checkpoints. Which worker saves, and when there is a boundary, is for others to say."""

    def __init__(
        self, state: TrainingState, place: Path | str, *, every_s: float, keep: int, agent: Agent | None
    ) -> None:
        self._state, self._every_s, self._agent = state, every_s, agent
        self._writer = BackgroundWriter(checkpoints_at(place, keep), self._on_written)
        #: What is to be saved before the process ends.
        self._kept: Snapshot | Exception | None = None
        self._saved_at_s, self._pause_s = time.monotonic(), 0.0

    def check(self) -> None:
        """Find out whether the state can be saved.

        Raises:
            CannotSave: it cannot.
        """
        check_saveable(self._state.collect())

    def now_and_then(self) -> None:
        """Begin to save if it is time to, or if the supervisor asks for it; written in the background."""
        if self._writer.busy:
            return
        asked = self._agent is not None and self._agent.take_save()
        interval_s = max(self._every_s, self._pause_s / SNAPSHOT_BUDGET)
        if asked or time.monotonic() - self._saved_at_s >= interval_s:
            snapshot = self._snapshot()
            if isinstance(snapshot, Snapshot):
                self._writer.begin(snapshot)

    def at_once(self) -> Exception | None:
        """Save, and wait until that is done; why it could not be, if so."""
        return self._write(self._snapshot())

    def at_last(self) -> None:
        """Training is over: save. What cannot be saved now is kept until the script has ended."""
        snapshot = self._snapshot()
        problem = self._write(snapshot)
        for pause_s in PAUSES_S:
            if problem is None or isinstance(problem, CannotSave):
                break
            time.sleep(pause_s)
            problem = self._write(snapshot)
        if problem is not None:
            self._kept = snapshot

    def wait(self) -> Exception | None:
        """Wait for what is being written; why it could not be, if so."""
        return self._writer.finish()

    def keep(self) -> None:
        """Keep the state as it is now, to be saved when the script has ended."""
        self._kept = self._snapshot()

    def save_kept(self) -> Exception | None:
        """Save the state that was kept, if any was; why it could not be, if so."""
        kept, self._kept = self._kept, None
        return self._write(kept) if kept is not None else None

    def claim(self) -> None:
        """Let no other run save in the same place.

        Raises:
            InUse: one does.
        """
        self._writer.folder.claim()

    def restore(self) -> Path | str | None:
        """Go on from the last intact checkpoint; where that was, if there is one.

        Raises:
            CannotLoad: there are some, but they cannot be read, or all are damaged.
            ValueError: it belongs to something else.
        """
        loaded = self._writer.folder.load()
        if loaded is None:
            return None
        state, path = loaded
        try:
            self._state.take(state)
        except DoesNotFit as problem:
            raise DoesNotFit(f"{path} cannot be used: {problem}; move the checkpoints away to begin anew") from None
        rng.restore(state["rng"])
        return path

    def _write(self, snapshot: Snapshot | Exception) -> Exception | None:
        self._writer.finish()
        if isinstance(snapshot, Exception):
            return snapshot
        self._writer.begin(snapshot)
        return self._writer.finish()

    def _snapshot(self) -> Snapshot | CannotSave:
        """A copy of the state; why there is none, if so."""
        position = self._state.position
        self._saved_at_s = time.monotonic()
        try:
            snapshot = take_snapshot(self._state.collect(), step=position.step, samples=position.samples)
        except CannotSave as problem:
            warn_of(problem)
            return problem
        self._pause_s, self._saved_at_s = snapshot.pause_s, time.monotonic()
        return snapshot

    def _on_written(self, written: Written) -> None:
        if self._agent is not None:
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
    """Say that there will be no checkpoint this time."""
    print(f"geminid: warning: no checkpoint was written: {reason(problem)}", file=sys.stderr, flush=True)
