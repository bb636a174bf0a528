"""The line from the service to the process of its own that talks with Ray (``bridge_process.py``)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence

from geminid.serve.executors.ray import messages as b
from geminid.wire.codec import ProtocolError

#: First delay before a bridge that ended is started again, in seconds; doubles up to BRIDGE_LIMIT_S.
BRIDGE_S = 0.5

#: Longest delay before a bridge that ended is started again, in seconds.
BRIDGE_LIMIT_S = 8.0

#: A bridge that has sent nothing for this time, in seconds, is ended: it sends something at every look at the cluster.
BRIDGE_SILENT_S = 60.0


class Bridge:
    """The process that talks with Ray, started again whenever it ends or hangs.

    The number of a descriptor is the last word of its ``command``: a socket over which both talk.
    """

    def __init__(self, command: Sequence[str], on_answer: Callable[[b.Answer], None]) -> None:
        self._command, self._on_answer = command, on_answer
        self.trouble = ""
        self._connection: b.ServiceEnd | None = None
        self._started = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="geminid bridge", daemon=True)
        self._thread.start()

    def send(self, request: b.Request) -> int | None:
        """Send something to the bridge; which one that is, or None while there is none."""
        with self._lock, contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.send(request)
                self._connection.drain(BRIDGE_SILENT_S)
                return self._started
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended."""
        self._closing.set()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def close(self) -> None:
        """End the process; agents and slots stay as they are."""
        self._closing.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._thread.join(5.0)

    def _serve(self) -> None:
        pause_s = BRIDGE_S
        while not self._closing.is_set():
            try:
                connection = self._start()
            except OSError as problem:  # there is no descriptor, or no process, to be had just now
                self.trouble = f"the process that talks with Ray cannot be started: {problem.strerror or problem}"
            else:
                try:
                    while connection.wait(BRIDGE_SILENT_S):
                        for answer in connection.receive():
                            if isinstance(answer, b.Trouble):
                                self.trouble = answer.text
                            elif not isinstance(answer, b.Looked):
                                self.trouble, pause_s = "", BRIDGE_S
                                self._on_answer(answer)
                    silent = f"the process that talks with Ray has said nothing for {BRIDGE_SILENT_S:g} s"
                    self.trouble = f"{silent}: it is ended, and another one is started"
                except ProtocolError as problem:
                    self.trouble = f"the process that talks with Ray has sent something that cannot be read: {problem}"
                except (OSError, EOFError):
                    pass
                self._end(connection)
            self._on_answer(b.Away(bridge=self._started, trouble=self.trouble))
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, BRIDGE_LIMIT_S)

    def _start(self) -> b.ServiceEnd:
        """Start the process; the connection with it.

        Raises:
            OSError: there is not enough of something.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                command = [*self._command, str(theirs.fileno())]
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
        except OSError:
            ours.close()
            raise
        connection = b.service_end(ours)
        with self._lock:
            self._connection, self._started = connection, self._started + 1
        return connection

    def _end(self, connection: b.ServiceEnd) -> None:
        """End the process, if it has not."""
        with self._lock:
            self._connection = None
        connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
