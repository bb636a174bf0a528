"""What the bridge to Ray was asked for, and has not answered yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Things (slots that are to be held, nodes to which code is to be brought, or none) that a bridge was asked for."""

    bridge: int
    job_id: str
    things: tuple[str, ...]


class Unanswered:
    """Requests by number. There may be thousands, so that jobs and things are found without looking at all of them.

    What is asked of it may be asked from any thread.
    """

    def __init__(self) -> None:
        self._last = 0
        self._requests: dict[int, Request] = {}
        self._of_jobs: dict[str, set[int]] = {}
        self._things: Counter[str] = Counter()

    def ask(self, job_id: str, things: Iterable[str], send: Callable[[int], int | None]) -> bool:
        """Ask a bridge for something for a job, under a number; whether there is one. ``send`` says which."""
        self._last += 1
        bridge = send(self._last)
        if bridge is not None:
            request = self._requests[self._last] = Request(bridge, job_id, tuple(things))
            self._of_jobs.setdefault(job_id, set()).add(self._last)
            self._things.update(request.things)
        return bridge is not None

    def get(self, number: int) -> Request | None:
        """What was asked for under a number, if it has not been answered."""
        return self._requests.get(number)

    def answered(self, number: int) -> Request | None:
        """It was answered, or will never be; what was asked for, if that is still known."""
        request = self._requests.pop(number, None)
        if request is not None:
            numbers = self._of_jobs[request.job_id]
            numbers.discard(number)
            if not numbers:
                del self._of_jobs[request.job_id]
            for thing in request.things:
                self._things[thing] -= 1
                if not self._things[thing]:
                    del self._things[thing]
        return request

    def drop_job(self, job_id: str) -> None:
        """A job does not need any more what was asked for it."""
        for number in list(self._of_jobs.get(job_id, ())):
            self.answered(number)

    def drop_bridge(self, bridge: int) -> None:
        """This bridge, and those before, will not answer any more."""
        for number in [number for number, request in self._requests.items() if request.bridge <= bridge]:
            self.answered(number)

    @property
    def jobs(self) -> Set[str]:
        """The jobs for which something was asked for."""
        return self._of_jobs.keys()

    @property
    def things(self) -> Set[str]:
        """All that was asked for, for any job."""
        return self._things.keys()

    def of(self, job_id: str) -> set[str]:
        """What was asked for a job."""
        requests = [self._requests.get(number) for number in tuple(self._of_jobs.get(job_id, ()))]
        return {thing for request in requests if request is not None for thing in request.things}

    def among(self, things: Iterable[str]) -> Collection[str]:
        """Those of some things that were asked for, for any job."""
        return [thing for thing in things if thing in self._things]
