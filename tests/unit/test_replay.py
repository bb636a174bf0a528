"""A decision of the past can be made again from the log."""

from __future__ import annotations

import pytest

from geminid.configuration import Placement
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.replay import moment, replay
from geminid.serve.store import Store


def submitted(job_id: str, **fields: object) -> r.JobSubmitted:
    spec = JobSpec.from_dict({"name": "x", "command": ["x"], "owner": "ann", **fields})
    return r.JobSubmitted(job_id=job_id, spec=spec, elastic=False)


@pytest.fixture
def log(tmp_path):
    nodes = {"gpu_types_by_node": {"local": "cpu"}, "slots": {"local": 2}}
    records = [
        r.ServiceStarted(epoch=1, version="0", policy="fifo", cluster=nodes),
        submitted("j1", slots=1),
        r.Planned(targets={"j1": Placement.of({"local": [0]})}),
        submitted("j2", slots=1),
        submitted("j3", slots=1, priority=500),
        r.Planned(targets={"j2": Placement.of({"local": [1]})}),
        submitted("j4", slots=1),
    ]
    with Store(tmp_path) as store:
        store.append(100.0, records, 0)
    return tmp_path


def test_the_last_decision_is_made_again_and_under_another_policy(log):
    told = replay(moment(log))
    assert (told["seq"], told["policy"], told["slots"]) == (6, "fifo", 2)
    given = {job["id"]: (job["slots"], job["decided_then"], job["decided_now"]) for job in told["jobs"]}
    assert given == {"j1": (1, 1, 1), "j2": (0, 1, 1), "j3": (0, 0, 0)}
    other = {job["id"]: job for job in replay(moment(log), "geminid:gap=0")["jobs"]}
    assert [other[job]["decided_now"] for job in ("j1", "j2", "j3")] == [1, 0, 1]  # the plain command is left alone
    assert other["j3"]["factors"]["priority"] > other["j2"]["factors"]["priority"]


def test_any_record_is_a_moment_and_others_are_refused(log):
    assert [job["id"] for job in replay(moment(log, 7))["jobs"]] == ["j1", "j2", "j3"]
    assert moment(log, 3).planned is not None
    for seq in (1, 99):
        with pytest.raises(InvalidInput):
            moment(log, seq)
    with pytest.raises(InvalidInput, match="has no log"):
        moment(log / "nowhere")
