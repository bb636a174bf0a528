"""A plain command on the nodes of a cluster."""

from __future__ import annotations

import selectors
import signal
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from geminid.serve.executors.plain import PlainExit
from geminid.serve.executors.remote import RemoteProcess
from geminid.train.launcher import how_it_ended

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
        threading.Thread(target=self._watch, args=(ended,), name="watch a command", daemon=True).start()

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

    def _watch(self, ended: Callable[[RemoteCommand], None]) -> None:
        with selectors.DefaultSelector() as left:
            for process in self._processes:
                left.register(process, selectors.EVENT_READ, process)
            while left.get_map():
                for ready, _ in left.select():
                    process = ready.data
                    left.unregister(process)
                    code = process.exit_code() or 0
                    if code != 0 and self.exit is None:
                        problem = process.reason or how_it_ended(code)
                        self.exit = PlainExit(code, problem, self._asked)
                        self.kill()
                    process.close()
        self.exit = self.exit or PlainExit(0, "", self._asked)
        ended(self)
