"""When jobs will start and finish: intervals, from simulating the present state forward under the present policy.

Three worlds are simulated: jobs turn out as fast as measured, slower, and faster, by what the measurements leave open.
The interval reaches from the earliest to the latest of the three. It holds for the jobs that are there now: those that
come later may change it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.policies.registry import make_policy
from geminid.serve.service import Service
from geminid.serve.state import LiveJob
from geminid.serve.whatif import what_if
from geminid.sim.run import load_policy
from geminid.sim.simulator import Settings, Simulator

log = logging.getLogger("geminid.serve")

#: A forecast is made anew at most so often, and takes at most this share of the time.
EVERY_S, SHARE_OF_TIME = 2.0, 0.1

#: Of jobs that wait, so many are looked at; later ones have no forecast.
MOST_JOBS = 100

PACES = (-1.0, 0.0, 1.0)

#: Start and finish of a job in seconds from now, each from the earliest to the latest; whether a guess is involved.
Forecast = dict[str, Any]


def forecast(jobs: Sequence[LiveJob], cluster: Cluster, policy: str, now_s: float) -> dict[str, Forecast]:
    """Intervals for the start and the finish of every active job, in seconds from now."""
    active = [job for job in jobs if job.wants_slots]
    active.sort(key=lambda job: (job.target is None, -job.spec.priority, job.state.submitted_at_s))
    left_out = {job.id for job in active[MOST_JOBS:]}
    considered = [job for job in jobs if job.id not in left_out]
    starts: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    guessed: frozenset[str] = frozenset()
    for pace in PACES:
        world = what_if(considered, cluster, now_s, pace=pace)
        guessed = world.guessed
        if not world.workload.jobs:
            return {}
        settings = Settings(oracle=True)
        simulator = Simulator(world.workload, world.applications, cluster, make_policy(policy, load_policy), settings)
        for job in simulator.run().jobs:
            if job.stints and job.completed_s is not None:
                starts.setdefault(job.facts.id, []).append(job.stints[0].start_s)
                ends.setdefault(job.facts.id, []).append(job.completed_s)
    running = {job.id for job in active if job.target is not None}
    depends = bool(guessed)
    return {
        job_id: {
            "start_s": None if job_id in running else [min(starts[job_id]), max(starts[job_id])],
            "finish_s": [min(ends[job_id]), max(ends[job_id])],
            "guessed": job_id in guessed or (depends and job_id not in running),
        }
        for job_id in ends
    }


class Forecaster:
    """Keeps a forecast of a service's jobs, made in a thread of its own when somebody looks and it is old."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made: Mapping[str, Forecast] = {}
        self._made_at_s, self._seq, self._busy_until_s = 0.0, -1, 0.0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def freshen(self, patience_s: float = 0.2) -> None:
        """Have the forecast made anew if it is old, and wait for it a little."""
        self._refresh()
        self._idle.wait(patience_s)

    def of(self, job_id: str) -> Forecast | None:
        """The forecast of a job, as times since the epoch; None if there is none (yet)."""
        found = self._made.get(job_id)
        if found is None:
            return None
        return {
            "start_at_s": None if found["start_s"] is None else [self._made_at_s + at_s for at_s in found["start_s"]],
            "finish_at_s": [self._made_at_s + at_s for at_s in found["finish_s"]],
            "guessed": found["guessed"],
        }

    def dry_run(self, spec: JobSpec) -> dict[str, Any]:
        """What would become of a job if it were submitted now."""
        service, now_s = self._service, self._service.clock.now_s()
        state = JobState.submitted(job_id="new", spec=spec, at_s=now_s)
        new = LiveJob(state=state, elastic=service.executor.is_elastic(spec))
        jobs = list(service.published.state.jobs.values())
        made = self._forecast([*jobs, new], now_s)
        before = self._forecast(jobs, now_s)
        later = {
            job_id: made[job_id]["finish_s"][1] - found["finish_s"][1]
            for job_id, found in before.items()
            if job_id in made and made[job_id]["finish_s"][1] > found["finish_s"][1] + 1.0
        }
        found = made.get("new")
        waiting = [job for job in jobs if job.wants_slots and job.target is None]
        return {
            "dry_run": True,
            "spec": spec.redacted().to_dict(),
            "elastic": new.elastic,
            "position": 1 + sum(job.spec.priority >= spec.priority for job in waiting),
            "start_s": None if found is None else found["start_s"],
            "finish_s": None if found is None else found["finish_s"],
            "guessed": found is None or found["guessed"],
            "delays_s": later,
        }

    def prices(self) -> dict[str, float]:
        """What a slot of each GPU type is worth in the last decision, if the policy has prices."""
        solution = getattr(self._service.policy, "solution", None)
        if solution is None:
            return {}
        types = self._service.cluster.type_index
        return {name: float(price) for name, price in zip(types, solution.prices.types, strict=True)}

    def _refresh(self) -> None:
        published = self._service.published
        with self._lock:
            if published.state.seq == self._seq or time.monotonic() < self._busy_until_s:
                return
            self._busy_until_s = float("inf")
            self._idle.clear()
        threading.Thread(target=self._make, name="geminid forecast", daemon=True).start()

    def _make(self) -> None:
        published, began = self._service.published, time.monotonic()
        now_s = self._service.clock.now_s()
        made = self._forecast(list(published.state.jobs.values()), now_s)
        with self._lock:
            self._made, self._made_at_s, self._seq = made, now_s, published.state.seq
            took_s = time.monotonic() - began
            self._busy_until_s = time.monotonic() + max(EVERY_S, took_s / SHARE_OF_TIME)
        self._idle.set()

    def _forecast(self, jobs: Sequence[LiveJob], now_s: float) -> dict[str, Forecast]:
        service = self._service
        in_service = service.published.state
        out = len(in_service.cordoned)
        cluster = service.cluster if not out else _without(service.cluster, out)
        try:
            return forecast(jobs, cluster, service.policy_text, now_s) if cluster is not None else {}
        except Exception as problem:  # a forecast is nice to have; whatever is wrong with it, the service goes on
            log.warning("no forecast: %s: %s", type(problem).__name__, problem)
            return {}


def _without(cluster: Cluster, out: int) -> Cluster | None:
    """The cluster with fewer slots on its first node."""
    node = cluster.nodes[0]
    if node.slots <= out:
        return None
    return replace(cluster, nodes=(replace(node, slots=node.slots - out), *cluster.nodes[1:]))
