"""A job that is a plain command: it has all of its slots, or none."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.process.launch import SLOT_GONE
from geminid.serve import records as r
from geminid.serve.executors.commands import Command, CommandExit


@dataclass(slots=True)
class PlainJob:
    """A plain command on its slots, and its processes, once they are started."""

    job_id: str
    target: tuple[str, ...]
    command: Command | None = None
    stopping: bool = False

    @property
    def holds(self) -> set[str]:
        """All of its slots."""
        return set(self.target)

    @property
    def is_resizable(self) -> bool:
        """It has to be stopped to run elsewhere."""
        return False

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [] if self.command is None else self.command.pids

    def stop(self, grace_s: float) -> None:
        """Ask it to end; it is killed when the grace period is over."""
        self.stopping = True
        if self.command is not None:
            self.command.stop(grace_s)


def command_ended(job_id: str, ended: CommandExit | None, *, stopping: bool) -> r.JobEnded:
    """How a plain command ended.

    One that is to stop has not succeeded, whatever its exit code, unless it had ended before it was asked to.
    """
    if ended is not None and ended.code == 0 and not (stopping and ended.asked):
        return r.JobEnded(job_id=job_id, how="succeeded")
    if stopping:
        return r.JobEnded(job_id=job_id, how="stopped")
    if ended is None:
        return r.JobEnded(job_id=job_id, how="crashed", reason="its processes were killed")
    return r.JobEnded(job_id=job_id, how="lost" if ended.code == SLOT_GONE else "crashed", reason=f"it {ended.text}")
