"""What the service's thread is sent by other threads: one queue of typed items."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.records import Record
from geminid.serve.state import ServiceState

#: Items that are handled in one batch.
MAX_BATCH = 500


class Refused(Exception):
    """A request that the service does not meet: one sentence says why, and the HTTP status what kind of mistake."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(slots=True)
class Operation:
    """A request for a change: the records that it makes of the state, and the answer when they are written."""

    make: Callable[[ServiceState], Sequence[Record]]
    answer: Callable[[ServiceState], Any]
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class Query:
    """A request for something that the service's thread computes, without any change."""

    compute: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def answer(self) -> None:
        """Compute it."""
        try:
            self.future.set_result(self.compute())
        except Exception as problem:
            self.future.set_exception(problem)


@dataclass(frozen=True, slots=True)
class Posted:
    """Something that the executor learned in another thread."""

    event: ExecutorEvent


@dataclass(frozen=True, slots=True)
class End:
    """The service is to end: with its jobs, or leaving them running (``detach``)."""

    detach: bool


Item = Operation | Query | Posted | End


class Inbox:
    """The items that wait, in the order of their arrival."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._in_hand: list[Item] = []

    def put(self, item: Item) -> None:
        """Add an item. From any thread."""
        self._queue.put(item)

    def collect(self, timeout_s: float, limit: int = MAX_BATCH) -> list[Item]:
        """The items that wait, at most ``limit``; if there are none, what arrives within the timeout."""
        self._in_hand = items = []
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait())
            while len(items) < limit:
                items.append(self._queue.get_nowait())
        return items

    def refuse_all(self, sentence: str) -> None:
        """Refuse every request that has no answer yet, also those that were collected last."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._in_hand.append(self._queue.get_nowait())
        for item in self._in_hand:
            if isinstance(item, Operation | Query) and not item.future.done():
                item.future.set_exception(Refused(503, sentence))
