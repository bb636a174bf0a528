"""A long queue of jobs that differ: few are shown to the policy, and never without those that could be next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from test_equal_jobs import Service

from geminid.cluster import Cluster
from geminid.policies.base import JobFacts
from geminid.policies.registry import make_policy
from geminid.serve.crowds import MAX_SHOWN, SHOWN_BY_ORDER, Crowds, crowd_of, ranks_of

FACTS = st.builds(
    JobFacts,
    id=st.just(""),
    submitted_s=st.integers(0, 50).map(float),
    requested_slots=st.sampled_from([1, 2]),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
    deadline_s=st.none() | st.integers(0, 50).map(float),
    work=st.none() | st.integers(1, 50).map(float),
    owner=st.sampled_from(["ann", "bob"]),
)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "discard"]), st.integers(0, 150), FACTS), max_size=300)


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_whoever_is_first_by_any_order_is_shown_and_small_crowds_are_shown_whole(steps):
    shown: set[str] = set()
    crowds = Crowds(shown.add, shown.remove)
    waiting: dict[str, JobFacts] = {}
    for what, number, facts in steps:
        job_id = f"j{number}"
        if what == "put":
            crowds.put(job_id, crowd_of(facts, (), by_owner=True), ranks_of(facts), 2)
            waiting[job_id] = facts
        else:
            crowds.discard(job_id)
            waiting.pop(job_id, None)
            crowds.refresh()
            shown.discard(job_id)
    crowds.refresh()
    assert shown <= waiting.keys()
    assert {job_id for job_id in waiting if not crowds.hides(job_id)} == shown
    hidden = Counter((crowds.shown_for(one), waiting[one].submitted_s) for one in waiting.keys() - shown)
    behind = Counter((one, at_s) for one, times_s in crowds.hidden().items() for at_s in times_s)
    assert behind == hidden
    assert crowds.hidden().keys() <= shown
    for key in {(facts.owner, facts.requested_slots) for facts in waiting.values()}:
        crowd = {one: facts for one, facts in waiting.items() if (facts.owner, facts.requested_slots) == key}
        if len(crowd) <= SHOWN_BY_ORDER:
            assert crowd.keys() <= shown
        for order in range(len(ranks_of(next(iter(crowd.values()))))):
            best = min(ranks_of(facts)[order] for facts in crowd.values())
            assert any(ranks_of(facts)[order] == best and one in shown for one, facts in crowd.items())


def test_what_a_decision_looks_at_does_not_grow_with_a_queue_of_all_kinds_of_jobs():
    service = Service(make_policy("geminid:gap=0"), Cluster.parse("a100:1x2"))
    sizes = []
    for count in range(400):
        asks = {"slots": 1, "priority": count % 97, "owner": f"u{count % 50}"}
        service.submit(1, asks | ({"deadline": f"{1000 + 37 * count % 991}s"} if count % 3 else {}))
        sizes.append(len(service.planner.engine.jobs))
    assert sizes[-1] <= 5 * SHOWN_BY_ORDER
    assert max(sizes[200:]) <= 5 * SHOWN_BY_ORDER
    view, _ = service.planner.view_with("j1")
    assert sum(map(len, view.behind.values())) + len(view.jobs) == 400
    started: set[str] = set()
    for _ in range(220):  # everybody has a turn
        started |= service.decide(1.0).keys()
        service.end(0, "succeeded")
        service.end(0, "succeeded")
    assert len(started) == 400


@given(st.integers(1, 4000), st.integers(1, 300), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_no_more_are_shown_than_the_limit_however_many_owners_and_queues_there_are(owners, queues, each, chance):
    """Whoever is first by any order of all is among them, and everybody gets a turn."""
    shown: set[str] = set()
    crowds = Crowds(shown.add, shown.remove)
    waiting: dict[str, JobFacts] = {}
    for number in range(min(owners * each, 6000)):
        facts = JobFacts(
            id=f"j{number}",
            submitted_s=float(number),
            requested_slots=1,
            weight=chance.choice([0.5, 1.0, 2.0]),
            deadline_s=chance.choice([None, float(chance.randrange(1000))]),
            owner=f"u{number % owners}",
            queue=f"q{number % queues}",
        )
        crowds.put(facts.id, crowd_of(facts, (), by_owner=True), ranks_of(facts), 2)
        waiting[facts.id] = facts
        if number % 500 == 0:
            crowds.refresh()
    turns = 0
    while waiting:
        crowds.refresh()
        assert shown == {job_id for job_id in waiting if not crowds.hides(job_id)}
        assert 0 < len(shown) <= MAX_SHOWN
        hidden = Counter((crowds.shown_for(one), waiting[one].submitted_s) for one in waiting.keys() - shown)
        behind = Counter((one, at_s) for one, times_s in crowds.hidden().items() for at_s in times_s)
        assert behind == hidden
        assert crowds.hidden().keys() <= shown
        for order in range(5):
            best = min(ranks_of(facts)[order] for facts in waiting.values())
            assert any(ranks_of(waiting[job_id])[order] == best for job_id in shown)
        for job_id in list(shown)[: max(1, len(shown) // 2)]:
            crowds.discard(job_id)
            shown.discard(job_id)
            del waiting[job_id]
        turns += 1
    assert turns < 100
