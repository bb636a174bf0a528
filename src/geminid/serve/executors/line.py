"""JSON objects over a socket, one a line."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

#: A line that is received must not be longer, unless its receiver takes longer ones.
LONGEST_LINE_BYTES = 1 << 22


class Line:
    """A connection whose user waits until the other side has taken what is sent, or for ``timeout_s``.

    A line that is longer than ``longest_bytes`` is not taken.
    """

    def __init__(
        self, opened: socket.socket, timeout_s: float | None = 5.0, longest_bytes: int = LONGEST_LINE_BYTES
    ) -> None:
        opened.settimeout(timeout_s)
        if opened.family == socket.AF_INET:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._buffer, self._longest_bytes = opened, bytearray(), longest_bytes

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, document: Mapping[str, Any]) -> None:
        """Send one object.

        Raises:
            OSError: the other side is gone, or does not take it.
        """
        self._socket.sendall(_encode(document))

    def receive(self) -> list[dict[str, Any]]:
        """All whole objects that have arrived. Call it when the socket is readable.

        Raises:
            EOFError: the other side closed the connection.
            OSError: the connection broke.
            ValueError: what arrived is no object, or too long.
        """
        chunk = self._socket.recv(1 << 18)
        if not chunk:
            raise EOFError("the connection was closed")
        before, newline, after = chunk.rpartition(b"\n")
        lines = []
        if newline:
            lines = (self._buffer + before).split(b"\n")
            self._buffer = bytearray()
        self._buffer += after
        if len(self._buffer) > self._longest_bytes:
            raise ValueError("a line is too long")
        documents = [json.loads(line) for line in lines]
        if not all(isinstance(document, dict) for document in documents):
            raise ValueError("what came is no object")
        return documents

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class PatientLine(Line):
    """A connection that nobody waits for: what the other side does not take yet is kept, and sent when it does.

    It may still be on its way to be opened. Its selector has it, with ``ready`` to be called when something has come or
    may go; that is to call :meth:`receive`.
    """

    def __init__(
        self, opened: socket.socket, selector: selectors.BaseSelector, ready: Callable[[PatientLine], None]
    ) -> None:
        super().__init__(opened, timeout_s=0.0)
        self._selector, self._ready = selector, lambda: ready(self)
        self._unsent = bytearray()
        selector.register(self, selectors.EVENT_READ, self._ready)

    @classmethod
    def to(
        cls, host: str, port: int, selector: selectors.BaseSelector, ready: Callable[[PatientLine], None]
    ) -> PatientLine:
        """Begin to open a connection; how that goes shows when it is used.

        Raises:
            OSError: it has failed already; ConnectionRefusedError: nobody listens there.
        """
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                opened.connect((host, port))
            return cls(opened, selector, ready)
        except OSError:
            opened.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection has been opened."""
        try:
            self._socket.getpeername()
        except OSError:
            return False
        return True

    def send(self, document: Mapping[str, Any]) -> None:
        """Send one object, as soon as the other side takes it.

        Raises:
            OSError: the other side is gone.
        """
        self._unsent += _encode(document)
        self._flush()

    def receive(self) -> list[dict[str, Any]]:
        """All whole objects that have arrived, which may be none; what was kept is sent, as far as it goes."""
        self._flush()
        with contextlib.suppress(BlockingIOError):
            return super().receive()
        return []

    def close(self) -> None:
        """Close the connection, and take it from its selector."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self)
        super().close()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self).events != wanted:
            self._selector.modify(self, wanted, self._ready)


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
