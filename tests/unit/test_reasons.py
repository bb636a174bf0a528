"""What a plan tells the jobs whose slots it changes: only what is true of their slots."""

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.reasons import RECENT_S, Causes, Change
from geminid.serve.state import ServiceState


def slots(*numbers: int) -> frozenset[tuple[str, int]]:
    return frozenset(("a", number) for number in numbers)


def change(before: frozenset[tuple[str, int]], after: frozenset[tuple[str, int]]) -> Change:
    return Change(before, after)


def state(*records: r.Record) -> ServiceState:
    made = ServiceState()
    jobs = [r.JobSubmitted(job_id=f"j{i}", spec=JobSpec(name="x", command=("x",), owner="ann"), elastic=True)
            for i in (1, 2, 3)]  # fmt: skip
    for record in (*jobs, *records):
        made.apply(made.seq + 1, 0.0, record)
    return made


def test_who_loses_a_slot_is_told_where_it_went():
    now = state(r.SlotCordoned(node="a", slot=0, cordoned=True, by="op"))
    changes = {
        "j1": change(slots(0, 1), slots(1, 2)),
        "j2": change(slots(2, 3), slots(3)),
    }
    told = Causes().explain(changes, now, 0.0)
    assert told == {"j1": "slot a/0 is cordoned; 1 from j2", "j2": "1 to j1 (slot a/0 is cordoned)"}


def test_a_drain_and_a_lost_node_are_told_as_such():
    changes = {"j1": change(slots(0, 1), frozenset())}
    drained = state(r.NodeDrained(node="a", drained=True, by="op"))
    assert Causes().explain(changes, drained, 0.0) == {"j1": "node a is drained"}
    gone = state(r.NodeLeft(node="a", reason="it is gone"))
    assert Causes().explain(changes, gone, 0.0) == {"j1": "node a is gone"}
    leaving = state(r.NodeLeaving(node="a", leaving=True))
    assert Causes().explain(changes, leaving, 0.0) == {"j1": "node a is about to leave the cluster"}
    others = state(r.SlotsTaken(node="a", slots=[1]))
    assert Causes().explain(changes, others, 0.0) == {"j1": "others use slot a/1"}
    unfit = state(r.SlotsTaken(node="a", slots=[1], reason="its disk is full"))
    assert Causes().explain(changes, unfit, 0.0) == {"j1": "node a is not used for now: its disk is full"}


def test_only_those_who_get_a_slot_that_became_free_are_told_so():
    causes = Causes()
    causes.freed(0.0, slots(0), "j9 succeeded")
    causes.freed(0.0, slots(3), "j8 was paused")
    changes = {"j1": change(slots(1), slots(0, 1)), "j2": change(frozenset(), slots(2))}
    assert causes.explain(changes, state(), 0.0) == {"j1": "j9 succeeded", "j2": ""}
    assert causes.explain(changes, state(), 2 * RECENT_S)["j1"] == ""
    causes.freed(0.0, slots(0), "j9 succeeded")
    causes.planned({"j1": Placement.of({"a": [0]})})
    assert causes.explain(changes, state(), 0.0)["j1"] == ""


def test_nobody_is_told_of_its_own_end():
    causes = Causes()
    causes.freed(0.0, slots(0), "j1 crashed")
    causes.freed(0.0, slots(1), "j10 succeeded")
    assert causes.explain({"j1": change(frozenset(), slots(0, 1))}, state(), 0.0) == {"j1": "j10 succeeded"}
    assert causes.explain({"j2": change(frozenset(), slots(0))}, state(), 0.0) == {"j2": "j1 crashed"}


def test_who_gives_way_is_told_for_whom_and_who_asked_for_it():
    causes = Causes()
    causes.requested(0.0, "ann set priority = 100 of j2", lambda job: job.id == "j2", more=True)
    causes.requested(0.0, "ann set priority = -1 of j3", lambda job: job.id == "j3", more=False)
    changes = {"j1": change(slots(0, 1), slots(0)), "j2": change(frozenset(), slots(1))}
    told = causes.explain(changes, state(), 1.0)
    assert told["j1"] == "ann set priority = 100 of j2; 1 to j2, which starts"
    assert told["j2"] == "ann set priority = 100 of j2; 1 from j1"
    later = causes.explain(changes, state(), 2 * RECENT_S)
    assert later["j1"] == "1 to j2, which starts"


def test_what_was_asked_for_explains_no_change_the_other_way():
    causes = Causes()
    causes.requested(0.0, "ann set max_slots = 4 of j1", lambda job: job.id == "j1", more=True)
    assert causes.explain({"j1": change(slots(0, 1), slots(0))}, state(), 0.0) == {"j1": ""}


def test_a_job_that_came_later_did_not_wait_for_a_slot():
    causes = Causes()
    causes.freed(-5.0, slots(0), "j9 succeeded")
    assert causes.explain({"j1": change(frozenset(), slots(0))}, state(), 0.0) == {"j1": ""}
