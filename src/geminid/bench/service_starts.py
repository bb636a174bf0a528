"""How many short jobs a service starts per second while very many wait.

The queue is written into the log of a new home, and the service starts with it. Then the jobs that end within some
seconds are counted: each ends as soon as it has started.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.client import SERVICE, Client
from geminid.serve.server import DEFAULT_POLICY, Options
from geminid.serve.store import Store
from geminid.testing.service import temporary_service

#: The goal, in starts per second on two slots.
GOAL_PER_S = 5.0

#: Time before counting begins, at most; a queue that is empty by then is counted from its first moment.
WARM_UP_S = 2.0

#: Time between two looks at the number of jobs that have succeeded.
LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """``started`` of ``queued`` short jobs of a ``kind`` started in ``seconds``; a decision took ``decision_ms``.

    ``cpu_ms`` is the CPU time of the service per start, which does not depend on the load of the machine.
    """

    kind: str
    queued: int
    started: int
    seconds: float
    decision_ms: float
    cpu_ms: float = 0.0

    @property
    def per_s(self) -> float:
        """Starts per second."""
        return self.started / self.seconds if self.seconds > 0 else 0.0

    @property
    def missed(self) -> list[str]:
        """The goal, if it was missed, in a sentence."""
        if self.per_s >= GOAL_PER_S:
            return []
        queue = f"{self.queued:,} {self.kind} ones queued"
        return [f"{self.per_s:.1f} jobs a second started with {queue} (goal: {GOAL_PER_S:g})"]


def equal_job(number: int) -> JobSpec:
    """A job like all others."""
    program = shutil.which("true") or "/bin/true"
    return JobSpec(name="short", command=(program,), owner="bench", max_slots=1, working_dir="/", max_retries=0)


def mixed_job(number: int) -> JobSpec:
    """A job of one of many owners, with a priority, and for every other one a deadline of its own."""
    deadline_s = 3600.0 + 7919 * number % 100_003 if number % 2 else None
    owner, priority = f"user{number % 50}", -(1009 * number % 1001)
    return replace(equal_job(number), name=f"short{number}", owner=owner, priority=priority, deadline_s=deadline_s)


def owners_job(number: int) -> JobSpec:
    """A mixed job whose owner has no other, in one of many queues."""
    return replace(mixed_job(number), owner=f"user{number}", queue=f"queue{number % 300}")


def queues_job(number: int) -> JobSpec:
    """A mixed job of one of 2,000 owners, who use all of 300 queues."""
    return replace(mixed_job(number), owner=f"user{number % 2000}", queue=f"queue{7919 * number % 300}")


#: What the queue is made of.
KINDS: Mapping[str, Callable[[int], JobSpec]] = {
    "equal": equal_job,
    "mixed": mixed_job,
    "many-owner": owners_job,
    "many-queue": queues_job,
}

#: The kinds of which a decision is most expensive.
HARD_KINDS = ("many-owner", "many-queue")


def queue_writer(specs: Sequence[JobSpec]) -> Callable[[Path], None]:
    """Writes these jobs into the log of a new home, as if they had been submitted."""

    def write(home: Path) -> None:
        with Store(home) as store:
            jobs = [r.JobSubmitted(job_id=f"j{i + 1}", spec=spec, elastic=False) for i, spec in enumerate(specs)]
            store.append(time.time(), jobs, store.load().seq)

    return write


def measure(kind: str, queued: int, seconds: float, *, slots: int = 2, policy: str = DEFAULT_POLICY) -> Starts:
    """Start a service with a queue of short jobs of a kind, and count the starts."""
    write_queue = queue_writer([KINDS[kind](number) for number in range(queued)])
    options = Options(home=Path(), slots=slots, policy=policy, grace_s=1.0)
    warm_up_s = min(WARM_UP_S, seconds / 2)
    with temporary_service(options, prepare=write_queue) as (client, home):
        service = psutil.Process(json.loads((home / SERVICE).read_text(encoding="utf-8"))["pid"])
        began = _look(client, service)
        warm = began
        while True:
            time.sleep(LOOK_EVERY_S)
            now = _look(client, service)
            if now.over >= queued or now.at_s >= began.at_s + warm_up_s + seconds:
                break
            if warm is began and now.at_s >= began.at_s + warm_up_s:
                warm = now
        return Starts(
            kind=kind,
            queued=queued,
            started=now.over - warm.over,
            seconds=now.at_s - warm.at_s,
            decision_ms=now.decision_ms,
            cpu_ms=1e3 * (now.cpu_s - warm.cpu_s) / max(now.over - warm.over, 1),
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """How many jobs had succeeded at a moment, how long the last decision had taken, and the service's CPU time."""

    at_s: float
    over: int
    decision_ms: float
    cpu_s: float


def _look(client: Client, service: psutil.Process) -> _Look:
    status, used = client.get("status"), service.cpu_times()
    over = status["jobs"].get("succeeded", 0)
    return _Look(time.monotonic(), over, status["last_decision_ms"], used.user + used.system)
