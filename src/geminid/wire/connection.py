"""One connection between two processes: whole messages in and out, over a socket that never blocks.

What the peer does not take yet is kept and sent when it does (by the :class:`~geminid.wire.reactor.Reactor` that
watches the connection, or by :meth:`Connection.drain`). Both directions are bounded: a peer that takes nothing while
more and more is sent, or that sends a line without end, is cut off.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from geminid.wire.codec import Codec, ProtocolError

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

#: Bytes that are read at a time: other connections get their turn in between.
READ_BYTES = 1 << 16

#: A peer that has not taken this much counts as gone.
MAX_UNSENT_BYTES = 1 << 23


class Connection(Generic[I, O]):
    """One end of a connection; messages of type ``I`` come in, those of type ``O`` go out.

    Any thread may send, one may receive. ``on_unsent`` is called when something waits to be sent, and when nothing
    does any more.
    """

    def __init__(
        self,
        opened: socket.socket,
        incoming: Codec[I],
        outgoing: Codec[O],
        *,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
    ) -> None:
        opened.setblocking(False)
        if opened.family == socket.AF_INET:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._incoming, self._outgoing = opened, incoming, outgoing
        self._max_unsent_bytes = max_unsent_bytes
        self._received, self._unsent = bytearray(), bytearray()
        self._sending = threading.Lock()  # held for as long as it takes to hand something to the system
        self.on_unsent: Callable[[bool], None] = lambda unsent: None

    @classmethod
    def to(cls, host: str, port: int, incoming: Codec[I], outgoing: Codec[O]) -> Connection[I, O]:
        """Begin to connect over TCP without waiting; whether it succeeds shows when the connection is used.

        Raises:
            OSError: it has failed already; ConnectionRefusedError: nobody listens there.
        """
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                opened.connect((host, port))
            return cls(opened, incoming, outgoing)
        except BaseException:
            opened.close()
            raise

    def fileno(self) -> int:
        """For reactors; negative once it is closed."""
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Whether the connection has been established."""
        try:
            self._socket.getpeername()
        except OSError:
            return False
        return True

    def send(self, message: O) -> None:
        """Send a message, at once or as soon as the peer takes it.

        Raises:
            OSError: the peer is gone, or has not taken too much that was sent before.
            ProtocolError: the message is too long.
        """
        line = self._outgoing.encode(message)
        with self._sending:
            if self._unsent:
                if len(self._unsent) + len(line) > self._max_unsent_bytes:
                    raise TimeoutError(f"the peer has not taken {len(self._unsent)} bytes that were sent to it")
                self._unsent += line
                return
            sent = 0
            with contextlib.suppress(BlockingIOError):
                sent = self._socket.send(line)
            if sent < len(line):
                self._unsent += line[sent:]
                self.on_unsent(True)

    def flush(self) -> None:
        """Send what the peer takes now of what waits to be sent.

        Raises:
            OSError: the peer is gone.
        """
        with self._sending:
            if not self._unsent:
                return
            with contextlib.suppress(BlockingIOError):
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]
            if not self._unsent:
                self.on_unsent(False)

    def drain(self, timeout_s: float | None) -> None:
        """Wait until everything has been sent; for as long as that takes, if no time is given.

        Raises:
            OSError: the peer is gone, or has not taken it in time.
        """
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        while self._unsent:
            if not _ready(self._socket, select.POLLOUT, None if deadline_s is None else deadline_s - monotonic()):
                raise TimeoutError(f"the peer has taken nothing for {timeout_s:g} s")
            self.flush()

    def receive(self) -> list[I]:
        """All whole messages that have arrived, which may be none; what waits to be sent is sent, as far as it goes.

        Raises:
            EOFError: the peer closed the connection.
            OSError: the connection broke.
            ProtocolError: what arrived is not a message.
        """
        if self._unsent:
            self.flush()
        try:
            chunk = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        if not chunk:
            raise EOFError("the connection was closed")
        decode = self._incoming.decode
        if not self._received:
            if chunk.endswith(b"\n") and chunk.count(b"\n") == 1:  # the usual case: one whole message
                return [decode(chunk)]
        elif b"\n" not in chunk:
            self._received += chunk
            self._check_length()
            return []
        *lines, rest = (self._received + chunk).split(b"\n")
        self._received = bytearray(rest)
        self._check_length()
        return [decode(line) for line in lines]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something has arrived, or the connection was closed; whether it has, in time."""
        return _ready(self._socket, select.POLLIN, timeout_s)

    def close(self) -> None:
        """Close the connection; what has not been sent is lost."""
        self._socket.close()

    def _check_length(self) -> None:
        if len(self._received) > self._incoming.max_line_bytes:
            raise ProtocolError(f"a line is longer than {self._incoming.max_line_bytes} bytes")


def _ready(opened: socket.socket, event: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(opened, event)
    return bool(poll.poll(None if timeout_s is None else max(0.0, 1e3 * timeout_s)))
