"""The rules of queues: what users may do, and that they are kept."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.queues import QueueRules, existing, why_not_raised, why_not_submitted
from geminid.serve.state import ServiceState

priorities = st.integers(-1000, 1000)


@given(priorities, priorities, priorities)
def test_a_priority_can_always_be_lowered_and_never_be_raised_beyond_the_limit(limit, before, after):
    refused = bool(why_not_raised(QueueRules(max_priority=limit), "q", after, before))
    assert refused == (after > before and after > limit)


@given(priorities, priorities, st.sets(st.sampled_from(["ann", "bob"])), st.sampled_from(["ann", "bob", "eve"]))
def test_a_job_is_taken_from_members_up_to_the_limit(limit, priority, members, user):
    spec = JobSpec(name="x", command=("true",), queue="q", priority=priority)
    rules = QueueRules(max_priority=limit, members=frozenset(members))
    refused = why_not_submitted(rules, spec, user)
    assert bool(refused) == (priority > limit or (bool(members) and user not in members))
    assert not refused or "queue q" in refused


users = st.sampled_from(["ann", "bob", "eve"])
member_changes = st.one_of(st.tuples(st.sampled_from(["add", "remove"]), users), st.just(("open", "")))


@given(st.lists(member_changes), users)
def test_a_queue_is_open_until_it_has_members_and_then_until_it_is_opened(steps, user):
    rules, is_open, members = QueueRules(), True, set()
    for what, one in steps:
        add, remove = ({one} if what == name else set() for name in ("add", "remove"))
        if remove - members:  # that is refused
            continue
        rules = rules.changed(max_priority=None, add=add, remove=remove, everybody=what == "open")
        is_open = what == "open" or (is_open and what != "add")
        members = set() if what == "open" else (members | add) - remove
    assert (rules.is_open, rules.members) == (is_open, members)
    spec = JobSpec(name="x", command=("true",), queue="q")
    assert bool(why_not_submitted(rules, spec, user)) == (not is_open and user not in members)


def test_the_last_member_that_is_removed_from_rules_of_an_earlier_version_leaves_them_closed():
    written = QueueRules.from_dict({"max_priority": 0, "members": ["ann"]})
    rules = written.changed(max_priority=None, add=set(), remove={"ann"}, everybody=False)
    assert not rules.is_open
    assert not QueueRules.from_dict(rules.to_dict()).is_open
    assert QueueRules.from_dict({"max_priority": 5, "members": []}).is_open


@given(
    st.dictionaries(st.sampled_from("abc"), st.builds(QueueRules, max_priority=st.sampled_from([0, 5]))),
    st.sets(st.tuples(st.sampled_from(["queue", "owner"]), st.sampled_from("abc"))),
    st.sampled_from(["a", "b", "c", "default", "zzz"]),
)
def test_users_name_only_queues_that_exist_once_some_are_managed(rules, quotas, queue):
    limited = {name for of, name in quotas if of == "queue"}
    managed = limited or any(one.max_priority for one in rules.values())
    spec = JobSpec(name="x", command=("true",), queue=queue)
    why = why_not_submitted(QueueRules(), spec, "ann", existing(rules, quotas))
    assert bool(why) == bool(managed and queue not in {"default", *limited, *rules})
    assert not why or all(name in why for name in {"default", *limited, *rules, queue})


names = st.sampled_from(["a", "b"])
changes = st.builds(
    r.QueueRulesSet,
    queue=names,
    max_priority=priorities,
    members=st.lists(names, unique=True),
    by=st.just("op"),
    open=st.sampled_from([None, False, True]),
)


@given(st.lists(changes))
def test_rules_are_those_that_were_set_last_and_outlive_the_service(records):
    state = ServiceState()
    for seq, record in enumerate(records, 1):
        state.apply(seq, float(seq), r.decode(r.kind_of(record), r.encode(record)))
    for queue in ("a", "b", "c"):
        last = next((one for one in reversed(records) if one.queue == queue), None)
        expected = QueueRules() if last is None else QueueRules.from_dict(r.to_plain(last))
        assert state.rules_of(queue) == expected
    written = json.loads(json.dumps(state.to_dict()))
    assert ServiceState.from_dict(written).queues == state.queues
    del written["queues"]  # as an older version wrote it
    assert ServiceState.from_dict(written).queues == {}
