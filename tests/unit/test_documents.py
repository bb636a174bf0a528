"""What is told of jobs and of drains is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.nodes import NodeGroup
from geminid.serve.documents import drain_warning, job_document
from geminid.serve.livejob import BEFORE_THE_END, LiveJob, ScriptFacts
from geminid.serve.state import ServiceState


def ended(reason: str = "", samples: int = 0, *, work: int | None = None) -> LiveJob:
    """A job that succeeded after so many samples."""
    state = JobState.submitted(job_id="j1", spec=JobSpec(name="x", command=("x",)), at_s=0.0)
    state = state.move(JobPhase.STARTING, at_s=0.0, placement=Placement.of({"a": [0]}))
    state = state.move(JobPhase.RUNNING, at_s=1.0).move(JobPhase.SUCCEEDED, at_s=2.0, reason=reason)
    limits = ScriptFacts.of(
        initial_batch=8,
        largest_batch=8,
        smallest_per_slot=1,
        largest_per_slot=8,
        parameter_count=1,
        work_samples=work,
    )
    return LiveJob(state=state, elastic=True, samples=samples, limits=limits)


@pytest.mark.parametrize(
    ("job", "done"),
    [
        (ended(), None),  # a plain command: nothing was reported
        (ended(work=100), None),
        (ended(samples=96, work=100), 1.0),  # what it had to do was foretold, and is known now
        (ended(samples=96), 1.0),
        (ended(BEFORE_THE_END, 25, work=100), 0.25),
        (ended(BEFORE_THE_END, 25), None),
    ],
)
def test_no_more_is_said_to_be_done_than_was_reported(job, done):
    assert job_document(job, 3.0)["done"] == done


def draining(cluster: Cluster, *asked: int, **state: object) -> str:
    """What is said of draining the node a, on which commands run that need so many slots."""
    jobs = {}
    for i, slots in enumerate(asked, 1):
        spec = JobSpec(name=f"n{i}", command=("x",), min_slots=slots, max_slots=slots)
        jobs[f"j{i}"] = LiveJob(state=JobState.submitted(job_id=f"j{i}", spec=spec, at_s=0.0), elastic=False)
    known = ServiceState(jobs=jobs, slots={node.name: node.slots for node in cluster.nodes})
    return drain_warning(replace(known, **state), cluster, "a", list(jobs))


def test_a_drain_says_where_the_commands_that_it_stops_begin_again():
    alone = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=4, name="a")])
    back = "when a is back: there are too few slots elsewhere"
    assert draining(alone, 1) == f"draining a stops j1 (n1); it starts again from its beginning {back}"
    assert draining(alone, 1, 1).endswith(f"(n2); they start again from their beginning {back}")
    both = Cluster.of_groups(
        [NodeGroup(gpu_type="cpu", slots=4, name="a"), NodeGroup(gpu_type="cpu", slots=2, name="b")]
    )
    assert draining(both, 1, 2).endswith("they start again from their beginning on other slots")
    assert draining(both, 1, 3).endswith("on other slots, j2 only when a is back")
    assert draining(both, 1, down=frozenset({"b"})).endswith(back)
    assert draining(both, 2, cordoned=frozenset({("b", 0)})).endswith(back)
