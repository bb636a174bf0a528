"""A what-if simulation in a process of its own: a question as JSON on standard input, an answer on standard output.

The live jobs are simulated to their end twice: under the present policy on the slots in service, and with one thing
changed. An answer with ``error`` says what was wrong with the question.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.serve.snapshot import EXTRA_JOB, ExtraJob, Snapshot, notes
from geminid.serve.whatif import from_now
from geminid.sim.metrics import summary
from geminid.sim.simulator import NoProgress

#: What can be changed.
CHANGES = ("policy", "cluster", "job")

#: Longest name of a job or text of a cluster, in characters.
MAX_LENGTH = 500

#: Most slots of another cluster.
MAX_SLOTS = 100_000

#: By how much the process gives way to others of the machine: jobs train there.
NICENESS = 10

#: What is reported of a simulation as a whole.
FIGURES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "rescales_per_job", "utilization")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be different; None where everything is as it is."""

    policy: str | None = None
    cluster: Cluster | None = None
    job: ExtraJob | None = None

    @classmethod
    def of(cls, given: Any) -> Self:
        """A change as somebody sent it.

        Raises:
            InvalidInput, ValueError: it makes no sense.
        """
        if not isinstance(given, dict) or not given or not given.keys() <= set(CHANGES):
            raise ValueError(f"what can be changed is {', '.join(CHANGES)}: at least one of them")
        policy, cluster, job = (given.get(name) for name in CHANGES)
        for name, text in (("policy", policy), ("cluster", cluster)):
            if text is not None and not (isinstance(text, str) and 0 < len(text) <= MAX_LENGTH):
                raise ValueError(f"{name} must be a text of at most {MAX_LENGTH} characters")
        made = None if cluster is None else Cluster.parse(cluster)
        if made is not None and made.total_slots > MAX_SLOTS:
            raise ValueError(f"cluster must have at most {MAX_SLOTS:,} slots")
        return cls(policy, made, None if job is None else _extra_job(job))


def _extra_job(given: Any) -> ExtraJob:
    if not isinstance(given, dict) or not {"slots", "seconds"} <= given.keys() <= {"slots", "seconds", "name"}:
        raise ValueError("job must be an object with slots, seconds and perhaps name")
    return ExtraJob(given["slots"], given["seconds"], str(given.get("name") or EXTRA_JOB)[:MAX_LENGTH])


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated: jobs under rules, on a cluster, with a policy."""

    snapshot: Snapshot
    cluster: Cluster
    policy: str


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Both simulations, beside each other.

    Raises:
        InvalidInput, ValueError: the change makes no sense, or there is nothing to simulate.
        NoProgress: a simulation comes to no end.
    """
    snapshot, change = Snapshot.from_dict(question["snapshot"]), Change.of(question["change"])
    if snapshot.cluster is None:
        raise ValueError("nothing of the cluster is in service: there is nothing to compare with")
    scenarios = (
        Scenario(snapshot, snapshot.cluster, snapshot.policy_text),
        Scenario(
            snapshot if change.job is None else snapshot.plus(change.job),
            change.cluster or snapshot.cluster,
            change.policy or snapshot.policy_text,
        ),
    )
    (before, before_notes), (after, after_notes) = map(simulated, scenarios)
    ends = [{job["name"]: job["completion_s"] for job in result["per_job"]} for result in (before, after)]
    names = {job.id: job.spec.name for job in scenarios[1].snapshot.jobs}
    jobs = [
        {"id": job_id, "name": names[job_id], "before_s": ends[0].get(job_id), "after_s": ends[1].get(job_id)}
        for job_id in dict.fromkeys([*ends[0], *ends[1]])
    ]
    first, second = (
        {"policy": one.policy, "slots": one.cluster.total_slots, **{name: result[name] for name in FIGURES}}
        for one, result in zip(scenarios, (before, after), strict=True)
    )
    said = list(dict.fromkeys([*before_notes, *after_notes]))
    return {"before": first, "after": second, "jobs": jobs, "notes": said}


def simulated(scenario: Scenario) -> tuple[dict[str, Any], list[str]]:
    """The results of one simulation, and what is to be known of it."""
    world = scenario.snapshot.world(scenario.cluster)
    said = notes(scenario.snapshot, scenario.cluster, world)
    if not world.workload.jobs:
        raise ValueError("; ".join([*said, "no jobs are left to simulate"]))
    policy = scenario.snapshot.policy(scenario.policy)
    return summary(from_now(world.simulator(scenario.cluster, policy).run())), said


def main() -> None:
    """Answer the question on standard input."""
    os.nice(NICENESS)
    try:
        made = answer(json.load(sys.stdin))
    except (InvalidInput, NoProgress, ValueError) as problem:
        made = {"error": str(problem)}
    print(json.dumps(made, allow_nan=False))


if __name__ == "__main__":
    main()
