"""When a worker saves: now and then in the background, at once when it has to stop, and when training is over."""

from __future__ import annotations

import time
from pathlib import Path

from geminid.train import messages, rng
from geminid.train.agent import Agent
from geminid.train.checkpoint import (
    BackgroundWriter,
    Snapshot,
    Written,
    check_saveable,
    checkpoints_at,
    take_snapshot,
)
from geminid.train.trainstate import TrainingState

#: Taking a snapshot may stop training for at most this share of the time.
SNAPSHOT_BUDGET = 0.01


class Saver:
    """One worker's checkpoints. Which worker saves, and when there is a boundary, is for others to say."""

    def __init__(
        self, state: TrainingState, place: Path | str, *, every_s: float, keep: int, agent: Agent | None
    ) -> None:
        self._state, self._every_s, self._agent = state, every_s, agent
        self._writer = BackgroundWriter(checkpoints_at(place, keep), self._on_written)
        self._kept: Snapshot | None = None
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
            self._writer.begin(self._snapshot())

    def at_once(self) -> Exception | None:
        """Save, and wait until that is done; why it could not be, if so."""
        self._writer.finish()
        self._writer.begin(self._snapshot())
        return self._writer.finish()

    def wait(self) -> Exception | None:
        """Wait for what is being written; why it could not be, if so."""
        return self._writer.finish()

    def keep(self) -> None:
        """Keep the state as it is now, to be saved later, perhaps."""
        self._kept = self._snapshot()

    def save_kept(self) -> None:
        """Save the state that was kept, if any was."""
        if self._kept is not None:
            self._writer.begin(self._kept)
            self._writer.finish()

    def restore(self) -> Path | str | None:
        """Go on from the last intact checkpoint; where that was, if there is one."""
        loaded = self._writer.folder.load()
        if loaded is None:
            return None
        state, path = loaded
        self._state.take(state)
        rng.restore(state["rng"])
        return path

    def _snapshot(self) -> Snapshot:
        position = self._state.position
        snapshot = take_snapshot(self._state.collect(), step=position.step, samples=position.samples)
        self._pause_s, self._saved_at_s = snapshot.pause_s, time.monotonic()
        return snapshot

    def _on_written(self, written: Written) -> None:
        if self._agent is not None:
            self._agent.send(
                messages.Checkpointed(
                    step=written.snapshot.step,
                    samples=written.snapshot.samples,
                    path=str(written.path),
                    size_bytes=written.size_bytes,
                    seconds=written.seconds,
                    pause_s=written.snapshot.pause_s,
                )
            )
