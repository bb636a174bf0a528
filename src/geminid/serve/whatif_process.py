"""A what-if simulation in a process of its own: a question as JSON on standard input, an answer on standard output.

The live jobs are simulated to their end twice: under the present policy on the slots in service, and with one thing
changed. An answer with ``error`` says what was wrong with the question.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.serve.forecast import can_start, restrained
from geminid.serve.livejob import LiveJob, job_from_dict
from geminid.serve.translation import fits
from geminid.serve.whatif import from_now, what_if
from geminid.sim.metrics import summary
from geminid.sim.simulator import NoProgress

#: The identifier of a job that does not exist.
EXTRA_JOB = "new"

#: Slots and time of that job, at most.
MAX_EXTRA_SLOTS = 100_000
MAX_EXTRA_S = 1e8

#: What is said of a simulation as a whole.
FIGURES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "rescales_per_job", "utilization")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, a policy, and perhaps one job more, which takes ``extra_s``."""

    cluster: Cluster
    policy: str
    extra: LiveJob | None = None
    extra_s: float = 0.0


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Both simulations, beside each other."""
    snapshot, change = question["snapshot"], question["change"]
    before, after = scenarios(snapshot, change)
    notes: list[str] = []
    results = [simulated(snapshot, scenario, notes) for scenario in (before, after)]
    ends = [{job["name"]: job["completion_s"] for job in result["per_job"]} for result in results]
    names = {job["state"]["job_id"]: job["state"]["spec"].get("name", "") for job in snapshot["jobs"]}
    jobs = [
        {"id": job_id, "name": names.get(job_id, job_id), "before_s": ends[0].get(job_id), "after_s": end_s}
        for job_id, end_s in ends[1].items()
    ]
    labels = ({"policy": one.policy, "slots": one.cluster.total_slots} for one in (before, after))
    first, second = (
        {**label, **{name: result[name] for name in FIGURES}} for label, result in zip(labels, results, strict=True)
    )
    return {"before": first, "after": second, "jobs": jobs, "notes": list(dict.fromkeys(notes))}


def scenarios(snapshot: Mapping[str, Any], change: Mapping[str, Any]) -> tuple[Scenario, Scenario]:
    """How things are, and how they would be.

    Raises:
        InvalidInput, ValueError: the change makes no sense.
    """
    if snapshot["cluster"] is None:
        raise ValueError("nothing of the cluster is in service: there is nothing to compare with")
    before = after = Scenario(Cluster.from_dict(snapshot["cluster"]), snapshot["policy"])
    if change.get("cluster"):
        after = replace(after, cluster=Cluster.parse(str(change["cluster"])))
    if change.get("policy"):
        after = replace(after, policy=str(change["policy"]))
    if (job := change.get("job")) is not None:
        if not isinstance(job, dict):
            raise ValueError("job must be an object with slots and seconds")
        slots, seconds = job.get("slots"), job.get("seconds")
        if not isinstance(slots, int) or not 1 <= slots <= MAX_EXTRA_SLOTS:
            raise ValueError(f"job.slots must be a whole number from 1 to {MAX_EXTRA_SLOTS:,}")
        if not isinstance(seconds, int | float) or not 0.0 < seconds <= MAX_EXTRA_S:
            raise ValueError(f"job.seconds must be a number above 0, at most {MAX_EXTRA_S:,.0f}")
        spec = JobSpec(name=str(job.get("name") or EXTRA_JOB), command=("true",), min_slots=slots, max_slots=slots)
        state = JobState.submitted(job_id=EXTRA_JOB, spec=spec, at_s=snapshot["now_s"])
        after = replace(after, extra=LiveJob(state=state, elastic=False), extra_s=float(seconds))
    return before, after


def simulated(snapshot: Mapping[str, Any], scenario: Scenario, notes: list[str]) -> dict[str, Any]:
    """One simulation; what is to be said about it is added to ``notes``."""
    now_s, quotas, borrowers = snapshot["now_s"], snapshot["quotas"], frozenset(snapshot["may_borrow"])
    jobs = [job_from_dict(plain) for plain in snapshot["jobs"]]
    if scenario.extra is not None:
        jobs.append(scenario.extra)
    never = {
        job.id
        for job in jobs
        if job.wants_slots
        and not (
            fits(job, scenario.cluster)
            and can_start(job, scenario.cluster, quotas.get(job.id, {}), borrowers.__contains__)
        )
    }
    if never:
        notes.append(f"left out, because they need more slots than they can have: {', '.join(sorted(never))}")
    world = what_if([job for job in jobs if job.id not in never], scenario.cluster, now_s)
    if not world.workload.jobs:
        raise ValueError("no jobs are waiting or running: there is nothing to simulate")
    if guessed := sorted(world.guessed - {EXTRA_JOB}):
        notes.append(f"how long these take is a guess: {', '.join(guessed)}")
    traces = (
        replace(trace, duration_s=scenario.extra_s) if trace.name == EXTRA_JOB else trace
        for trace in world.workload.jobs
    )
    world = replace(world, workload=replace(world.workload, jobs=tuple(traces)))
    policy = restrained(
        *(scenario.policy, jobs, now_s),
        lambda job_id: quotas.get(job_id, {}),
        borrowers.__contains__,
        snapshot["patience_s"],
    )
    return summary(from_now(world.simulator(scenario.cluster, policy).run()))


def main() -> None:
    """Answer the question on standard input."""
    try:
        made = answer(json.load(sys.stdin))
    except (InvalidInput, NoProgress, ValueError) as problem:
        made = {"error": str(problem)}
    print(json.dumps(made, allow_nan=False))


if __name__ == "__main__":
    main()
