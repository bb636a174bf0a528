"""One loop that serves connections, listeners, process ends and timers, in the thread that runs it.

In every round, what is ready is served first and timers that are due afterwards: whoever was silent because this
process stood still has been heard before anybody looks at the clock.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any, Protocol

from geminid.wire.connection import Connection

Callback = Callable[[], object]

#: What is ready is asked for in portions of this many: one syscall each.
MAX_EVENTS = 1024

#: Time between two rounds of the reactor that a process shares. Waking up for a single heartbeat takes about 80 µs of
#: a core, one of many at once 5 µs; a message that comes just after a heartbeat waits for this long at most.
PACE_S = 0.03

_READ = select.EPOLLIN
_READ_WRITE = select.EPOLLIN | select.EPOLLOUT


class HasFileno(Protocol):
    """A socket, a process, a connection."""

    def fileno(self) -> int:
        """Its descriptor."""


class Timer:
    """Something that is to be called at a time, unless it is cancelled before."""

    __slots__ = ("at_s", "callback")

    def __init__(self, at_s: float, callback: Callback) -> None:
        self.at_s = at_s
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do not call it."""
        self.callback = None


class Reactor:
    """See the module. ``watch``, ``unwatch`` and ``call_soon`` may be called from any thread, the rest by callbacks.

    ``clock`` tells the time in seconds, as ``monotonic`` does. Rounds begin ``pace_s`` apart: what comes in between is
    served together, which takes far less than a round for each. Nothing waits for that after a pause, after
    :meth:`hurry`, when something urgent is ready, or when another thread wants something called.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, *, pace_s: float = 0.0) -> None:
        self.now_s, self._pace_s = clock, pace_s
        self._served_at_s = -math.inf
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._soon: deque[Callback] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_woken = False
        self._epoll.register(self._wake, _READ)
        self._urgent = select.epoll()  # what ends the time between two rounds
        self._urgent.register(self._wake, _READ)

    @classmethod
    def in_thread(cls, name: str, *, pace_s: float = 0.0) -> Reactor:
        """A reactor that runs in a thread of its own for as long as this process lives.

        A callback that fails is reported, and the others go on.
        """
        made = cls(pace_s=pace_s)

        def run() -> None:
            while True:
                try:
                    made.step(None)
                except Exception:
                    with contextlib.suppress(OSError, ValueError):  # there may be no room for it
                        traceback.print_exc(file=sys.stderr)

        threading.Thread(target=run, name=name, daemon=True).start()
        return made

    # --- What is watched ---

    def watch(self, source: HasFileno | int, callback: Callback, *, urgent: bool = False) -> None:
        """Call this whenever something can be read; of a pidfd, when its process has ended.

        What is ``urgent`` does not wait for the next round. Of a connection, what waits to be sent is sent when its
        peer takes it; it is called then, too.
        """
        descriptor = source if isinstance(source, int) else source.fileno()
        self._epoll.register(descriptor, _READ)
        self._callbacks[descriptor] = callback
        if urgent and self._pace_s:
            self._urgent.register(descriptor, _READ)
        if isinstance(source, Connection):
            source.on_unsent = lambda unsent: self._epoll.modify(descriptor, _READ_WRITE if unsent else _READ)

    def unwatch(self, source: HasFileno | int) -> None:
        """Do not watch it any more; call it before it is closed."""
        descriptor = source if isinstance(source, int) else source.fileno()
        if self._callbacks.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError, ValueError):  # it, or the reactor, is closed
                self._epoll.unregister(descriptor)
            if self._pace_s:
                with contextlib.suppress(OSError, ValueError):  # it is not urgent
                    self._urgent.unregister(descriptor)
        if isinstance(source, Connection):
            source.on_unsent = lambda unsent: None

    def watches(self, source: HasFileno | int) -> bool:
        """Whether it is watched."""
        return (source if isinstance(source, int) else source.fileno()) in self._callbacks

    @property
    def watched(self) -> int:
        """How many descriptors are watched."""
        return len(self._callbacks)

    # --- What is called ---

    def call_soon(self, callback: Callback) -> None:
        """Call this in the reactor's thread, in the order in which it was asked for."""
        self._soon.append(callback)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError, ValueError):  # it is closed
                os.eventfd_write(self._wake, 1)

    def call(self, callback: Callback) -> None:
        """Have this called in the reactor's thread, which is another, and wait until it has been."""
        called = threading.Event()

        def call() -> None:
            try:
                callback()
            finally:
                called.set()

        self.call_soon(call)
        called.wait()

    def call_at(self, at_s: float, callback: Callback) -> Timer:
        """Call this once it is that late."""
        timer = Timer(at_s, callback)
        heapq.heappush(self._timers, (at_s, next(self._numbers), timer))
        return timer

    def hurry(self) -> None:
        """Begin the next round at once: what was just served is urgent, and more of it may follow."""
        self._served_at_s = -math.inf

    def run_until(self, done: Callable[[], bool], max_wait_s: float | None = None) -> None:
        """Serve until something is so, which is looked at after every round, and at least this often."""
        while not done():
            self.step(max_wait_s)

    def step(self, max_wait_s: float | None) -> int:
        """One round: wait for something, for this long at most; how many descriptors were ready."""
        if self._pace_s:
            early_s = self._served_at_s + self._pace_s - self.now_s()
            if early_s > 0.0:
                self._urgent.poll(early_s, 1)
        if self._timers:
            left_s = max(0.0, self._timers[0][0] - self.now_s())
            max_wait_s = left_s if max_wait_s is None else min(left_s, max_wait_s)
        ready = self._epoll.poll(max_wait_s, MAX_EVENTS)
        if self._pace_s:
            self._served_at_s = self.now_s()
        callbacks, served = self._callbacks, 0
        for descriptor, _ in ready:
            callback = callbacks.get(descriptor)
            if callback is not None:  # not unwatched by another callback
                served += 1
                callback()
            elif descriptor == self._wake:
                self._be_woken()
        if self._timers:
            self._call_due()
        return served

    def close(self) -> None:
        """Give back what it takes; whatever is watched stays open."""
        self._callbacks.clear()
        self._epoll.close()
        self._urgent.close()
        os.close(self._wake)
        self._wake = -1  # whoever wants something called does not write to whatever has its number next

    def _be_woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._is_woken = False
        try:
            for _ in range(len(self._soon)):
                self._soon.popleft()()
        finally:
            if self._soon and not self._is_woken:  # one of them has failed: the others are not forgotten
                self._is_woken = True
                os.eventfd_write(self._wake, 1)

    def _call_due(self) -> None:
        now_s = self.now_s()
        while self._timers and self._timers[0][0] <= now_s:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()


_shared: list[Any] = []
_lock = threading.Lock()


def shared_reactor() -> Reactor:
    """The reactor that this process has for everything that must not block: one thread, however many jobs there are."""
    with _lock:
        if not _shared or _shared[0] != os.getpid():  # a forked process has no thread that would run it
            _shared[:] = [os.getpid(), Reactor.in_thread("geminid connections", pace_s=PACE_S)]
        reactor: Reactor = _shared[1]
        return reactor
