"""A plain command on the nodes of a cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from geminid.process.launch import how_it_ended
from geminid.serve.executors.plain import PlainExit
from geminid.serve.executors.remote import RemoteProcess
from geminid.wire.reactor import shared_reactor

#: Whoever is to end is told again so often: a line that is cut carries nothing.
AGAIN_S = 2.0


class RemoteCommand:
    """A plain command's processes, one on each of its nodes: when one fails, all end."""

    def __init__(
        self, processes: Sequence[RemoteProcess], ended: Callable[[RemoteCommand], None], *, asked: bool = False
    ) -> None:
        self._processes = processes
        self._kill_at_s: float | None = None
        self._stopping = False
        self._asked = asked
        self.exit: PlainExit | None = None
        self._ended, self._left = ended, set(processes)
        for process in processes:
            shared_reactor().watch(process, partial(self._over, process), urgent=True)

    @property
    def pids(self) -> list[int]:
        """The process ids, each on its node."""
        return [process.pid for process in self._processes]

    def stop(self, grace_s: float) -> None:
        """Ask the command to end; after the grace period it is made to."""
        if not self._stopping:
            self._stopping, self._kill_at_s = True, monotonic() + grace_s
            self._asked = self._asked or any(process.exit_code() is None for process in self._processes)
            for process in self._processes:
                process.signal(signal.SIGTERM)

    def tick(self) -> None:
        """End the command if its grace period is over; as often as that takes."""
        if self._kill_at_s is not None and monotonic() > self._kill_at_s:
            self.kill()

    def kill(self) -> None:
        """End the command now."""
        self._kill_at_s = monotonic() + AGAIN_S
        for process in self._processes:
            process.signal(signal.SIGKILL)

    def _over(self, process: RemoteProcess) -> None:
        """One of them has ended; in the thread of the reactor."""
        shared_reactor().unwatch(process)
        code = process.exit_code() or 0
        if code != 0 and self.exit is None:
            self.exit = PlainExit(code, process.reason or how_it_ended(code), self._asked)
            self.kill()
        process.close()
        self._left.discard(process)
        if not self._left:
            self.exit = self.exit or PlainExit(0, "", self._asked)
            self._ended(self)
