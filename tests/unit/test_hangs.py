"""Which workers hang: decisions from what they last said, without any process."""

from dataclasses import replace

from geminid.supervise.group import Standing
from geminid.supervise.hangs import Seen, busy, deadlocked, hung, late, more_patient, waiting
from geminid.supervise.spec import Patience

PATIENCE = Patience(hang=10.0, step=20.0, free=60.0, stall=900.0, form=60.0, grace=30.0)
WAITING = Seen(worker="w1", standing=Standing.MEMBER, silent_s=0.1, phase="synchronising", phase_s=100.0, usual_s=0.1)
BUSY = Seen(worker="w2", standing=Standing.MEMBER, silent_s=0.1, phase="training", phase_s=100.0, usual_s=0.1)


def ended(*workers):
    return [one.worker for one in hung(workers, PATIENCE)]


def test_silence_is_a_hang_whatever_a_worker_was_doing():
    assert ended(replace(BUSY, silent_s=10.1)) == ["w2"]
    assert ended(replace(BUSY, standing=Standing.STARTING, silent_s=10.1)) == []  # its imports may keep it busy
    assert ended(replace(BUSY, standing=Standing.STARTING, silent_s=901.0)) == ["w2"]


def test_a_worker_that_never_gets_to_its_first_word_hangs_too():
    starting = replace(BUSY, standing=Standing.STARTING, phase="starting", usual_s=None)
    assert ended(replace(starting, silent_s=899.0)) == []
    assert [one.reason for one in hung([replace(starting, silent_s=901.0)], PATIENCE)] == [
        "hung: it did not get to geminid.init() in 900 s"
    ]


def test_a_script_may_take_hours_after_training_but_not_for_ever():
    for phase in ("left", "finished"):
        assert ended(replace(BUSY, phase=phase, finished=True, phase_s=7199.0)) == []
        assert ended(replace(BUSY, phase=phase, finished=True, phase_s=7201.0)) == ["w2"]


def test_a_worker_hangs_if_it_takes_far_longer_than_usual_while_a_peer_waits():
    assert ended(WAITING, BUSY) == ["w2"]
    assert ended(BUSY, replace(BUSY, worker="w3")) == []  # nobody waits
    assert ended(replace(WAITING, phase_s=19.0), BUSY) == []  # not for long
    assert ended(WAITING, replace(BUSY, usual_s=6.0)) == []  # its steps are that long
    assert ended(WAITING, replace(BUSY, usual_s=None)) == []  # it may be compiling
    assert ended(WAITING, replace(BUSY, standing=Standing.LEAVING)) == ["w2"]


def test_the_leader_may_take_its_time_where_it_evaluates_and_saves_but_not_without_a_sign_of_life():
    for phase in ("training", "between"):
        leader = replace(BUSY, leads=True, phase=phase)
        assert ended(WAITING, replace(leader, phase_s=59.0)) == []
        assert [one.free for one in hung([WAITING, replace(leader, phase_s=61.0)], PATIENCE)] == [True]
        assert ended(replace(WAITING, phase_s=200.0), replace(leader, usual_s=6.0, phase_s=119.0)) == []
        assert ended(replace(WAITING, phase_s=899.0), replace(leader, usual_s=None, phase_s=950.0)) == []
    for phase in ("loading", "forward", "computing", "stepping"):
        found = hung([WAITING, replace(BUSY, leads=True, phase=phase, phase_s=21.0)], PATIENCE)
        assert [(one.worker, one.free) for one in found] == [("w2", False)]


def test_what_nobody_can_know_the_time_of_may_take_long():
    for phase in ("opening", "compiling"):
        assert ended(replace(WAITING, phase_s=901.0), replace(BUSY, phase=phase, phase_s=899.0)) == []
        assert ended(replace(WAITING, phase_s=901.0), replace(BUSY, phase=phase, phase_s=901.0)) == ["w2"]


def test_patience_with_the_script_grows_until_it_is_as_long_as_any():
    patience, limits = PATIENCE, []
    for _ in range(4):
        patience = more_patient(patience)
        limits.append(patience.free)
    assert limits == [240.0, 900.0, 900.0, 900.0]
    assert more_patient(replace(PATIENCE, free=2000.0)).free == 2000.0
    assert patience.step == PATIENCE.step


def test_steps_that_take_minutes_are_waited_for():
    slow = replace(BUSY, usual_s=600.0, phase_s=1000.0)
    assert ended(replace(WAITING, phase_s=999.0), slow) == []
    assert ended(replace(WAITING, phase_s=1300.0), replace(slow, phase_s=1300.0)) == ["w2"]


def test_who_has_finished_may_do_what_it_likes_until_it_hangs_up():
    after = replace(BUSY, finished=True, phase="finished", phase_s=5000.0)
    assert ended(WAITING, after) == []
    assert ended(replace(after, connected=False, silent_s=20.0)) == []
    assert ended(replace(after, connected=False, silent_s=31.0)) == ["w2"]


def test_members_that_all_wait_for_each_other_are_deadlocked():
    everybody = [WAITING, replace(WAITING, worker="w2", phase_s=61.0)]
    assert deadlocked(everybody, PATIENCE)
    assert not deadlocked([WAITING, BUSY], PATIENCE)
    assert not deadlocked([WAITING], PATIENCE)
    assert not deadlocked([WAITING, replace(WAITING, worker="w2", phase_s=59.0)], PATIENCE)
    first = [replace(WAITING, phase_s=181.0), replace(WAITING, worker="w2", usual_s=None, phase_s=181.0)]
    assert deadlocked(first, PATIENCE)
    assert not deadlocked([first[0], replace(first[1], phase_s=179.0)], PATIENCE)
    forming = replace(BUSY, phase="forming", joined=False, phase_s=901.0)
    assert deadlocked([forming, replace(WAITING, joined=True)], PATIENCE)
    assert not deadlocked([forming, replace(forming, worker="w3", phase="between")], PATIENCE)
    assert not deadlocked([replace(forming, phase_s=899.0)], PATIENCE)


def test_nobody_is_late_who_is_with_the_script_or_waits_for_one_who_is():
    newcomer = replace(BUSY, worker="w3", phase="forming", joined=False, usual_s=None)
    leader = replace(BUSY, phase="between", phase_s=59.0, leads=True, joined=False)
    peer = replace(WAITING, joined=False)
    assert late([newcomer, leader, peer], 100.0, 0.0, PATIENCE) == []
    leaver = replace(leader, standing=Standing.LEAVING)
    assert late([newcomer, leaver, peer], 100.0, 0.0, PATIENCE) == []
    assert late([newcomer, peer], 100.0, 59.0, PATIENCE) == []  # the leader has only just come back
    assert [one.worker for one in late([newcomer, peer], 100.0, 61.0, PATIENCE)] == ["w1"]
    assert [one.worker for one in late([newcomer, replace(leader, phase_s=61.0)], 100.0, 61.0, PATIENCE)] == ["w2"]
    assert late([newcomer, peer], 59.0, 59.0, PATIENCE) == []
    for phase in ("left", "finished"):  # training is over for it
        assert late([newcomer, replace(leader, phase=phase, phase_s=5000.0)], 100.0, 61.0, PATIENCE) == []
    assert late([leader, peer], 100.0, 61.0, PATIENCE) == []  # nobody waits for them
    assert busy([newcomer, leaver], PATIENCE)
    assert not busy([newcomer, peer], PATIENCE)


def test_who_waits_for_one_that_gave_up_waits_in_vain_unless_it_may_be_the_one_that_died():
    waits, died, trains = (
        Seen(worker=name, standing=Standing.MEMBER, silent_s=silent_s, phase=phase, phase_s=5.0)
        for name, silent_s, phase in (("w1", 0.4, "forming"), ("w2", 2.1, "forming"), ("w3", 0.4, "computing"))
    )
    assert waiting([waits, died, trains], 2.1) == ["w1"]
