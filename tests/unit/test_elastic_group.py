"""Who is in a job's group: decisions about membership, without any process."""

from geminid.supervise.group import ElasticGroup, EndWorker, SendForm, SplitGroup, Standing, StartWorker
from geminid.supervise.protocol import Form, Joined


def started(actions):
    return [(action.worker, action.slot) for action in actions if isinstance(action, StartWorker)]


def told(actions):
    """The one order to form a group among the actions, and who gets it."""
    orders = [action for action in actions if isinstance(action, SendForm)]
    assert len({order.form.generation for order in orders}) <= 1
    return (orders[0].form if orders else None), [order.worker for order in orders]


def joined(group: ElasticGroup, worker: str, generation: int):
    """Have a worker join a generation; what follows from that."""
    return group.joined(worker, Joined(generation=generation, rank=0, size=1, step=0, resumed_at_s=0.0))


def formed(group: ElasticGroup, form: Form):
    """Have all members join; what follows from that."""
    actions = []
    for member in form.members:
        actions += joined(group, member, form.generation)
    return actions


def running(slots: str, min_slots: int = 1) -> ElasticGroup:
    """A group that trains on these slots, and needs so many."""
    group = ElasticGroup("file:/x/", min_slots=min_slots)
    actions = group.resize(list(slots))
    for worker, _ in started(actions):
        actions = group.ready(worker)
    form, _ = told(actions)
    assert form is not None
    assert formed(group, form) == []
    assert group.settled
    for member in form.members:
        group.stepped(member, form.generation)
    return group


def test_a_job_begins_when_all_of_its_workers_are_warm():
    group = ElasticGroup("file:/x/")
    assert started(group.resize(["a", "b"])) == [("w1", "a"), ("w2", "b")]
    assert group.ready("w2") == []
    form, receivers = told(group.ready("w1"))
    assert form == Form(generation=1, members=("w1", "w2"), rendezvous="file:/x/1")
    assert receivers == ["w1", "w2"]
    assert not group.formed
    assert formed(group, form) == []
    assert group.settled


def test_growing_waits_for_warm_newcomers_and_keeps_who_has_the_state_first():
    group = running("a")
    assert started(group.resize(["c", "a", "b"])) == [("w2", "c"), ("w3", "b")]
    assert group.ready("w3") == []
    assert group.formed  # still training on one slot
    form, _ = told(group.ready("w2"))
    assert form.members[0] == "w1"
    assert set(form.members) == {"w1", "w2", "w3"}


def test_shrinking_happens_at_once_and_tells_the_leavers():
    group = running("abcd")
    form, receivers = told(group.resize(["b", "c"]))
    assert form.members == ("w2", "w3")
    assert set(receivers) == {"w1", "w2", "w3", "w4"}
    assert group.standing("w1") is Standing.LEAVING
    assert formed(group, form) == []
    assert group.ended("w1") == []
    assert group.settled


def test_a_slot_that_must_be_freed_is_freed_before_newcomers_are_warm():
    group = running("ab")
    actions = group.resize(["b", "c"])
    assert started(actions) == [("w3", "c")]
    form, _ = told(actions)
    assert form.members == ("w2",)
    formed(group, form)
    grown, _ = told(group.ready("w3"))
    assert grown.members == ("w2", "w3")


def test_moving_to_other_slots_hands_the_state_over_first():
    group = running("ab")
    assert told(group.resize(["c"])) == (None, [])
    union, _ = told(group.ready("w3"))
    assert union.members == ("w1", "w2", "w3")
    alone, receivers = told(formed(group, union))
    assert alone.members == ("w3",)
    assert set(receivers) == {"w1", "w2", "w3"}


def test_survivors_go_on_at_once_and_the_dead_one_is_replaced():
    group = running("abc")
    actions = group.ended("w2")
    assert started(actions) == [("w4", "b")]
    form, _ = told(actions)
    assert form.members == ("w1", "w3")
    assert form.broken
    formed(group, form)
    grown, _ = told(group.ready("w4"))
    assert grown.members == ("w1", "w3", "w4")


def test_when_nobody_is_left_new_workers_begin_together():
    group = running("ab")
    group.ended("w1")
    assert started(group.ended("w2")) == [("w4", "b")]
    assert group.ready("w3") == []
    form, _ = told(group.ready("w4"))
    assert form.members == ("w3", "w4")


def test_a_newcomer_that_dies_while_joining_is_left_out():
    group = running("a")
    group.resize(["a", "b"])
    group.ready("w2")
    assert joined(group, "w1", 2) == []
    form, _ = told(group.ended("w2"))
    assert form.generation == 3
    assert form.members == ("w1",)


def test_survivors_form_by_themselves_and_newcomers_join_them_after_that():
    """The survivors may be anywhere in the script, where a newcomer has not been."""
    group = running("ab")
    group.resize(["a", "b", "c"])
    form, _ = told(group.ready("w3"))
    assert form.members == ("w1", "w2", "w3")
    assert joined(group, "w1", form.generation) == []
    form, receivers = told(group.ended("w2"))
    assert (form.members, receivers, form.broken) == (("w1",), ["w1"], True)
    assert group.standing("w3") is Standing.READY
    assert formed(group, form) == []  # somebody is started in the dead one's place, and is not warm yet
    actions = group.ready("w4")
    assert {action.worker: action.form.broken for action in actions} == {"w1": False, "w3": True, "w4": False}
    assert formed(group, told(actions)[0]) == []
    assert group.settled


def test_workers_that_lost_each_other_form_again_when_all_have_noticed():
    group = running("ab")
    assert group.lost("w1", 1) == []
    assert group.unaware() == ["w2"]
    form, _ = told(group.lost("w2", 1))
    assert form.members == ("w1", "w2")
    assert group.lost("w1", 1) == []  # an old message changes nothing


def test_whoever_lives_and_cannot_work_with_the_others_is_parted_from_them():
    """Whether that shows when they form a group, or only in its first step."""
    for joined in (False, True):
        group = running("ab")
        group.resize(["a", "b", "c"])
        form, _ = told(group.ready("w3"))
        if joined:
            formed(group, form)
            group.stepped("w9", form.generation)  # a stranger's step proves nothing
        assert [group.lost(worker, form.generation) for worker in ("w1", "w3")] == [[], []]
        assert group.lost("w2", form.generation) == [SplitGroup(("w3",))]
        actions = group.ended("w3")
        assert started(actions) == [("w4", "c")]
        alone, _ = told(actions)
        assert alone.members == ("w1", "w2")
        # They cannot either: nobody is new among them, and they are to try again.
        assert group.lost("w1", alone.generation) + group.lost("w2", alone.generation) == [SplitGroup(())]
        again, _ = told(group.reform())
        assert again.members == ("w1", "w2")
        formed(group, again)
        group.stepped("w1", again.generation)
        group.stepped("w2", again.generation)
        assert group.lost("w1", again.generation) == []
        once_more, _ = told(group.lost("w2", again.generation))  # they could work: it was the line
        assert once_more.members == ("w1", "w2")


def test_a_newcomer_that_cannot_reach_those_who_wait_for_it_is_parted_from_them():
    """They wait where they meet, and would for ever: only it knows that it cannot come."""
    group = running("ab")
    group.resize(["a", "b", "c", "d"])
    group.ready("w3")
    form, _ = told(group.ready("w4"))
    assert group.stop_waiting(["w1", "w2"]) == []  # nobody has given up: they may wait
    assert group.lost("w4", form.generation) == []
    assert group.stop_waiting(["w1", "w2"]) == []  # and w3 has not come to where they meet: it may be in its script
    assert group.stop_waiting(["w1", "w3"]) == [SplitGroup(("w4",))]
    alone, _ = told(group.ended("w4"))
    assert alone.members == ("w1", "w2")


def test_members_that_could_work_together_and_cannot_any_more_go_on_where_the_first_is():
    group = ElasticGroup("file:/x/")
    group.resize(["n1/0", "n2/0", "n1/1"])
    for worker in ("w1", "w2"):
        group.ready(worker)
    form, _ = told(group.ready("w3"))
    formed(group, form)
    for worker in form.members:
        group.stepped(worker, form.generation)
    again, _ = told(group.reform())
    assert again.members == ("w1", "w3", "w2")
    assert group.lost("w2", again.generation) == []
    assert group.stop_waiting(["w1", "w3"]) == [SplitGroup(("w2",))]
    alone, _ = told(group.ended("w2"))
    assert alone.members == ("w1", "w3")


def test_the_first_stays_though_it_is_the_one_that_gives_up():
    """As where its network interface is another than it was told: alone it can train."""
    group = running("a")
    group.stepped("w1", 1)
    group.resize(["a", "b"])
    form, _ = told(group.ready("w2"))
    assert group.lost("w1", form.generation) == []
    assert group.stop_waiting(["w2"]) == [SplitGroup(("w2",))]
    together = ElasticGroup("file:/x/")
    together.resize(["n1/0", "n2/0"])
    together.ready("w1")
    form, _ = told(together.ready("w2"))
    formed(together, form)
    for worker in form.members:
        together.stepped(worker, form.generation)
    again, _ = told(together.reform())
    assert together.lost("w1", again.generation) == []
    assert together.stop_waiting(["w2"]) == [SplitGroup(("w2",))]


def test_a_new_job_whose_nodes_cannot_reach_each_other_begins_on_the_first_if_that_is_enough():
    for min_slots, leaving in ((1, ("w2",)), (2, ("w1", "w2"))):
        group = ElasticGroup("file:/x/", min_slots=min_slots)
        group.resize(["n1/0", "n2/0"])
        group.ready("w1")
        form, _ = told(group.ready("w2"))
        assert group.lost("w2", form.generation) == []
        assert group.stop_waiting(["w1"]) == [SplitGroup(leaving)]


def test_workers_of_a_new_job_that_cannot_work_together_all_begin_anew():
    group = ElasticGroup("file:/x/")
    group.resize(["a", "b"])
    group.ready("w1")
    form, _ = told(group.ready("w2"))
    assert group.lost("w2", form.generation) == []
    assert group.lost("w1", form.generation) == [SplitGroup(("w1", "w2"))]
    assert started(group.ended("w1")) == [("w3", "a")]
    assert started(group.ended("w2")) == [("w4", "b")]


def test_who_is_not_wanted_any_more_before_it_joined_is_ended():
    group = running("a")
    group.resize(["a", "b"])
    assert group.resize(["a"]) == [EndWorker("w2")]
    assert group.ended("w2") == []
    assert group.settled


def test_another_supervisor_takes_over_where_the_first_one_was():
    group = ElasticGroup("file:/x/")
    for worker, slot in (("w1", "a"), ("w7", "b")):
        group.adopt(worker, slot, member=True)
    group.resume(5, ["w1", "w7"], ["a", "b"])
    assert group.settled
    actions = group.ended("w7")
    assert started(actions) == [("w8", "b")]
    assert told(actions)[0].generation == 6


def test_nobody_gets_the_name_of_one_that_died_while_there_was_no_supervisor():
    group = ElasticGroup("file:/x/")
    group.adopt("w5", "a", member=True)
    group.resume(3, ["w5", "w6"], ["a", "b"], ["w5", "w6", "w7"])
    actions = group.resumed()
    assert started(actions) == [("w8", "b")]
    form, members = told(actions)
    assert (form.members, members) == (("w5",), ["w5"])  # the survivor waits for nobody


def test_ranks_of_a_node_are_consecutive_and_the_first_member_says_where_to_meet():
    group = ElasticGroup("file:/x/")
    group.resize(["n1/0", "n2/0", "n1/1"])
    group.ready("w1", "tcp:10.0.0.1:5")
    group.ready("w2", "tcp:10.0.0.2:5")
    form = group.ready("w3", "tcp:10.0.0.1:6")[0].form
    assert form.members == ("w1", "w3", "w2")
    assert form.rendezvous == "tcp:10.0.0.1:5/1"


def test_ranks_of_a_rack_are_consecutive_too():
    racks = {"n1": ("z1", "r2"), "n2": ("z1", "r1"), "n3": ("z1", "r2"), "n4": ("z2", "r2")}
    group = ElasticGroup("file:/x/", racks.__getitem__)
    group.resize(["n1/0", "n4/0", "n2/0", "n3/0", "n1/1"])
    for worker in ("w1", "w2", "w3", "w4"):
        group.ready(worker)
    form = group.ready("w5")[0].form
    slots = {"w1": "n1", "w2": "n4", "w3": "n2", "w4": "n3", "w5": "n1"}
    assert [slots[member] for member in form.members] == ["n1", "n1", "n3", "n2", "n4"]
    assert form.members[0] == "w1"


def test_nobody_is_started_on_slots_that_are_gone():
    group = ElasticGroup("file:/x/")
    group.resize(["n1/0", "n2/0"])
    for worker in ("w1", "w2"):
        group.ready(worker)
    for worker in ("w1", "w2"):
        joined(group, worker, 1)
    group.remove_slots({"n1/0"})
    actions = group.ended("w1")
    assert [action.worker for action in actions] == ["w2"]
    assert actions[0].form.members == ("w2",)
    assert actions[0].form.broken


def test_messages_that_are_repeated_late_or_of_strangers_change_nothing():
    group = running("ab")
    old = group.current.number
    actions = group.ended("w2")
    form, _ = told(actions)
    assert form.generation == old + 1
    before = (group.current.number, group.current.members, group.formed)
    for late in (
        lambda: joined(group, "w1", old),  # of the generation before
        lambda: joined(group, "w2", old),  # of somebody who is gone
        lambda: joined(group, "w2", form.generation),
        lambda: group.lost("w1", old),
        lambda: group.lost("w2", old),
        lambda: group.ended("w2"),  # told twice
        lambda: group.ready("w9"),
        lambda: joined(group, "w1", form.generation + 5),  # of a generation that is not yet
    ):
        assert late() == []
        assert (group.current.number, group.current.members, group.formed) == before
    assert joined(group, "w1", form.generation) == []
    assert joined(group, "w1", form.generation) == []  # repeated
    assert group.formed


def test_survivors_that_are_too_few_wait_for_newcomers():
    group = running("abc", min_slots=2)
    form, _ = told(group.ended("w1"))
    assert not form.hold  # two are enough
    formed(group, form)
    form, receivers = told(group.ended("w2"))
    assert (form.members, form.hold, receivers) == (("w3",), True, ["w3"])
    assert formed(group, form) == []  # newcomers are on their way
    form, _ = told(group.ready("w4"))  # and join as soon as there are enough of them
    assert (set(form.members), form.hold) == ({"w3", "w4"}, False)


def test_survivors_that_wait_go_on_when_their_job_needs_no_more_than_them():
    group = running("ab", min_slots=2)
    group.remove_slots(["b"])
    form, _ = told(group.ended("w2"))
    assert form.hold
    assert formed(group, form) == []  # although there is no other slot for it
    assert group.resize(["a"]) == []
    form, _ = told(group.set_min_slots(1))
    assert (form.members, form.hold, form.broken) == (("w1",), False, False)
    assert formed(group, form) == []
    assert group.settled


def test_workers_of_an_earlier_version_are_not_asked_to_wait():
    group = ElasticGroup("file:/x/", min_slots=2)
    for worker, slot in (("w1", "a"), ("w2", "b")):
        group.adopt(worker, slot, member=True, can_hold=False)
    group.resume(1, ("w1", "w2"), ("a", "b"))
    form, _ = told(group.ended("w2"))
    assert (form.members, form.hold) == (("w1",), False)


def test_a_group_that_waits_does_so_under_the_next_supervisor():
    group = ElasticGroup("file:/x/", min_slots=2)
    group.adopt("w1", "a", member=True)
    group.resume(2, ("w1",), ("a", "b"), held=True)
    assert started(group.resumed()) == [("w2", "b")]
    form, _ = told(group.ready("w2"))
    assert (set(form.members), form.hold) == ({"w1", "w2"}, False)


def test_a_group_that_waits_for_newcomers_still_waits_when_one_of_its_members_leaves():
    group = running("abc", min_slots=3)
    form, _ = told(group.ended("w3"))
    assert form.hold
    formed(group, form)
    form, _ = told(group.resize(["b", "d", "e"]))
    assert (form.members, form.hold) == (("w2",), True)
