"""That what is checked at the end of every test with a service can fail."""

import pytest
from live import check_invariants

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.store import Store


def job(job_id: str, **fields: object) -> r.JobSubmitted:
    spec = JobSpec.from_dict({"name": "x", "command": ["x"], "owner": "ann", **fields})
    return r.JobSubmitted(job_id=job_id, spec=spec, elastic=True)


def planned(**slots: list[int]) -> r.Planned:
    return r.Planned(targets={job_id: Placement.of({"here": taken}) for job_id, taken in slots.items()})


QUOTA = r.QuotaSet(of="owner", name="ann", slots=2, by="op")
GOOD = [job("j1", max_slots=2), job("j2", max_slots=2)]


@pytest.mark.parametrize(
    "log",
    [
        [*GOOD, planned(j1=[0, 1, 2])],
        [job("j1", min_slots=2), planned(j1=[0])],
        [*GOOD, planned(j1=[0], j2=[0])],
        [*GOOD, QUOTA, planned(j1=[0, 1], j2=[2])],
        [*GOOD, r.SlotCordoned(node="here", slot=0, cordoned=True, by="op"), planned(j1=[0])],
        [*GOOD, r.NodeDrained(node="here", drained=True, by="op"), planned(j1=[0])],
        [*GOOD, r.Noted(level="alert", text="a decision was rejected")],
    ],
    ids=["too large", "too small", "twice", "beyond a quota", "cordoned", "drained", "alert"],
)
def test_a_log_in_which_something_is_wrong_is_noticed(tmp_path, log):
    write(tmp_path, log)
    with pytest.raises(AssertionError):
        check_invariants(tmp_path)


def test_a_log_in_which_all_is_right_passes(tmp_path):
    write(tmp_path, [*GOOD, QUOTA, planned(j1=[0], j2=[1]), r.QuotaSet(of="owner", name="ann", slots=1, by="op")])
    assert set(check_invariants(tmp_path).jobs) == {"j1", "j2"}


def write(folder, log: list[r.Record]) -> None:
    started = r.ServiceStarted(epoch=1, version="0", policy="", cluster={"gpu_types_by_node": {"here": "cpu"}})
    with Store(folder) as store:
        store.append(1.0, [started, *log], 0)
