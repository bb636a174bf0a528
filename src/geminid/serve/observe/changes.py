"""One stream of changes for everybody who watches: computed once, however many watch.

Four times a second the published state is compared with the one before. What differs is numbered and kept for a while,
so that a client whose connection broke continues after the last change that it has seen. A client that has been away
for longer, or that was connected to an earlier process of the service, is sent ``reset`` and reads everything again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geminid.serve.livejob import LiveJob
from geminid.serve.observe.rows import Row, difference
from geminid.serve.service import Published

#: Time between two comparisons.
COMPARE_EVERY_S = 0.25

#: Forecasts are compared this often: they change with every look at the clock.
FORECAST_EVERY_S = 2.0

#: Changes that are kept for clients that come back.
MAX_KEPT = 500

#: Lines of jobs' histories in one change at most.
MAX_LINES = 50

#: Newest lines of histories that are kept for clients that begin to watch.
MAX_RECENT_LINES = 100

#: A connection without changes carries a comment this often, so that both ends notice when it breaks.
KEEPALIVE_S = 15.0


@dataclass(frozen=True, slots=True)
class Change:
    """One numbered change, as it is sent."""

    number: int
    event: bytes


@dataclass(slots=True)
class Changes:
    """What differs between looks at a service; a pure state machine around ``look``.

    ``row_of`` makes the row of a job as it is now, ``summary`` what is said of the service as a whole. ``process``
    distinguishes this process of the service from others, in the identifiers of changes.
    """

    row_of: Callable[[LiveJob], Row]
    summary: Callable[[Published], Mapping[str, Any]]
    process: str = field(default_factory=lambda: secrets.token_hex(4))
    number: int = 0
    kept: deque[Change] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    rows: dict[str, Row] = field(default_factory=dict)
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_LINES))
    _jobs: dict[str, LiveJob] = field(default_factory=dict)
    _reasons: Mapping[str, str] = field(default_factory=dict)
    _summary: Mapping[str, Any] = field(default_factory=dict)
    _forecast_at_s: float = 0.0

    @property
    def last_id(self) -> str:
        """The identifier of the last change."""
        return f"{self.process}.{self.number}"

    def look(self, published: Published) -> Change | None:
        """Compare the published state with the one before; None if nothing differs."""
        jobs = {job_id: job for job_id, job in published.state.jobs.items() if "_" not in job_id}  # arrays as one row
        with_forecasts = published.now_s >= self._forecast_at_s
        if with_forecasts:
            self._forecast_at_s = published.now_s + FORECAST_EVERY_S
        rows: dict[str, Row] = {}
        for job_id, job in jobs.items():
            known = self.rows.get(job_id)
            if known is not None and self._jobs.get(job_id) is job and self._unmoved(job, published, with_forecasts):
                rows[job_id] = known
            else:
                rows[job_id] = self.row_of(job)
        parts = difference(self.rows, rows)
        if lines := self._new_lines(jobs):
            self.recent.extend(lines)
            parts["lines"] = lines
        summary = self.summary(published)
        if summary != self._summary:
            parts["status"] = self._summary = summary
        self.rows, self._jobs, self._reasons = rows, dict(jobs), published.reasons
        if not parts:
            return None
        self.number += 1
        parts["seq"] = published.state.seq
        data = json.dumps(parts, separators=(",", ":"), allow_nan=False)
        change = Change(self.number, f"id: {self.last_id}\ndata: {data}\n\n".encode())
        self.kept.append(change)
        return change

    def _unmoved(self, job: LiveJob, published: Published, with_forecasts: bool) -> bool:
        """Whether the row of a job that is the same as before can have changed: by its forecast, or its reason."""
        if job.phase.is_terminal:
            return True
        return not with_forecasts and published.reasons.get(job.id) == self._reasons.get(job.id)

    def _new_lines(self, jobs: Mapping[str, LiveJob]) -> list[dict[str, Any]]:
        """What was added to the histories of jobs since the last look, oldest first."""
        found: list[dict[str, Any]] = []
        for job_id, job in jobs.items():
            before = self._jobs.get(job_id)
            if before is job or not job.story:
                continue
            last_s = before.story[-1].at_s if before is not None and before.story else -1.0
            known = 0 if before is None else len(before.story)
            new = job.story[known:] if len(job.story) > known else [one for one in job.story if one.at_s > last_s]
            found += [{"job": job_id, "at_s": round(one.at_s, 2), "text": one.text, "slots": one.slots} for one in new]
        most = MAX_LINES if self._jobs else MAX_RECENT_LINES  # the first look finds the past
        return sorted(found, key=lambda line: line["at_s"])[-most:]

    def since(self, last_id: str | None) -> list[Change] | None:
        """The changes after an identifier; None if they are not kept any more."""
        process, _, number = (last_id or "").partition(".")
        if process != self.process or not number.isdecimal() or int(number) > self.number:
            return None
        if int(number) == self.number:
            return []
        if not self.kept or self.kept[0].number > int(number) + 1:
            return None
        return [change for change in self.kept if change.number > int(number)]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows and the newest lines of histories, and the identifier of the change after which they are true."""

    last_id: str
    rows: list[Row]
    lines: list[dict[str, Any]]


class Broadcast:
    """Sends changes to all watchers, from the event loop. Nothing is compared while nobody watches."""

    def __init__(
        self,
        changes: Changes,
        published: Callable[[], Published],
        *,
        is_over: Callable[[], bool],
        renew_forecast: Callable[[], None],
    ) -> None:
        self._changes, self._published, self._is_over = changes, published, is_over
        self._renew_forecast = renew_forecast
        self._watchers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    def table(self) -> Table:
        """Everything as it is now."""
        if self._changes.look(self._published()) is not None:
            self._wake()
        return Table(self._changes.last_id, list(self._changes.rows.values()), list(self._changes.recent))

    async def watch(self, last_id: str | None, may_watch: Callable[[], bool]) -> AsyncIterator[bytes]:
        """What to send to one watcher, from the change after ``last_id`` on, as long as it may watch."""
        news = asyncio.Event()
        self._watchers.add(news)
        if self._task is None:
            self._task = asyncio.create_task(self._compare())
        try:
            yield b"retry: 1000\n\n"
            while not self._is_over() and may_watch():
                changes = self._changes.since(last_id)
                if changes is None:
                    last_id = self._changes.last_id
                    yield f"id: {last_id}\nevent: reset\ndata: {{}}\n\n".encode()
                elif changes:
                    last_id = f"{self._changes.process}.{changes[-1].number}"
                    yield b"".join(change.event for change in changes)
                news.clear()
                try:
                    await asyncio.wait_for(news.wait(), KEEPALIVE_S)
                except TimeoutError:
                    yield b": alive\n\n"
        finally:
            self._watchers.discard(news)

    async def _compare(self) -> None:
        """Compare as long as somebody watches."""
        try:
            while self._watchers and not self._is_over():
                self._renew_forecast()
                if self._changes.look(self._published()) is not None:
                    self._wake()
                await asyncio.sleep(COMPARE_EVERY_S)
        finally:
            self._task = None
            self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()
