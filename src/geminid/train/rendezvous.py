"""Where the members of a new group find each other, before they form it.

They meet in a small store: a file in a folder that only the job's owner can open, or a TCP server. Waiting there can be
interrupted by a newer order, while forming a process group cannot.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from geminid.clock import Clock
from geminid.supervise.protocol import Form
from geminid.train.peers import PeersLost, first_line

#: Longest wait for a member that has arrived, or for the store's server.
FORMING_S = 10.0

#: Time between two looks at the store while waiting for other members.
POLL_S = 0.002

#: Time between two attempts to connect to the store's server.
CONNECT_POLL_S = 0.02

#: Longest time for one attempt to connect.
CONNECT_S = 0.5


class Superseded(Exception):
    """A newer order came while waiting for the other members."""


class _InterruptibleStore(dist.Store):  # type: ignore[name-defined,misc]
    """A store in which waiting for a member that has died ends when a newer order comes."""

    def __init__(self, inner: Any, clock: Clock, interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self._inner, self._clock, self._interrupted = inner, clock, interrupted

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._inner.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._inner.check(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        deadline_s = self._clock.monotonic_s() + FORMING_S
        while not self._inner.check(keys):
            if self._interrupted():
                raise RuntimeError("a newer order came")
            if self._clock.monotonic_s() > deadline_s:
                raise RuntimeError(f"a member did not come within {FORMING_S:g} s")
            self._clock.sleep(POLL_S)


def meet(form: Form, rank: int, clock: Clock, *, interrupted: Callable[[], bool]) -> Any:
    """Arrive at the rendezvous of a generation and wait for the other members; returns the store.

    Raises:
        Superseded: a newer order came.
        PeersLost: the rendezvous cannot be reached.
    """
    size = len(form.members)
    try:
        store = _store(form.rendezvous, size, rank, clock, interrupted)
        store.add("arrived", 1)
        while int(store.add("arrived", 0)) < size:
            if interrupted():
                raise Superseded
            clock.sleep(POLL_S)
    except RuntimeError as problem:
        raise PeersLost(first_line(problem)) from None
    return _InterruptibleStore(store, clock, interrupted)


def _store(rendezvous: str, size: int, rank: int, clock: Clock, interrupted: Callable[[], bool]) -> Any:
    scheme, _, place = rendezvous.partition(":")
    if scheme == "file":
        return dist.FileStore(place, size)  # type: ignore[attr-defined]
    address, _, generation = place.partition("/")
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not port.isdigit():
        raise ValueError(f"the rendezvous is {rendezvous!r}: it must be file:/path or tcp:host:port, or .../generation")
    # A store that serves many generations belongs to a worker, and exists already: see RendezvousServer.
    owns = rank == 0 and not generation
    if not owns:
        _await_listener(host, int(port), clock, interrupted)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), None, is_master=owns, timeout=timedelta(seconds=FORMING_S), wait_for_workers=False
    )
    return dist.PrefixStore(generation, store) if generation else store  # type: ignore[attr-defined]


def _await_listener(host: str, port: int, clock: Clock, interrupted: Callable[[], bool]) -> None:
    """Wait until a server listens there: a store's own attempts to connect cannot be interrupted."""
    deadline_s = clock.monotonic_s() + FORMING_S
    while True:
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
            return
        except OSError as problem:
            if interrupted():
                raise Superseded from None
            if clock.monotonic_s() > deadline_s:
                raise PeersLost(f"no server listens at {host}:{port}: {problem}") from None
            clock.sleep(CONNECT_POLL_S)


class RendezvousServer:
    """A store on this worker, in which the generations meet whose first member it is."""

    def __init__(self, host: str) -> None:
        listener = socket.create_server((host, 0), backlog=512)
        port = listener.getsockname()[1]
        self.address = f"tcp:{host}:{port}"
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            None,
            is_master=True,
            timeout=timedelta(seconds=FORMING_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
