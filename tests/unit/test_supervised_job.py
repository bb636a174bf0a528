"""What a job's state machine decides when things happen to its workers: in virtual time, without any process."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geminid.supervise import inputs, protocol
from geminid.supervise.connections import Link
from geminid.supervise.events import (
    CouldNotGrow,
    FirstStepDone,
    GroupFormed,
    InitCalled,
    JobEnded,
    JobPhase,
    WorkerEnded,
    WorkerStarted,
)
from geminid.supervise.instructions import ForgetWorker, SendMessage, SignalWorker, StartProcess
from geminid.supervise.spec import Patience
from geminid.supervise.state import SupervisedJob
from geminid.supervise.takeover import handover_of, take_over
from supervised import KILLED, World


def training(slots: str, **spec) -> World:
    """A job that trains on these slots, one letter each."""
    world = World(**spec)
    world.handle(inputs.Begin())
    world.handle(inputs.Resize(tuple(slots)))
    world.train()
    assert world.job.phase is JobPhase.RUNNING
    return world


def of_kind(world: World, kind: type) -> list:
    return [event for event in world.events if isinstance(event, kind)]


def progress(samples: int, **more) -> protocol.Progress:
    return protocol.Progress(
        generation=1,
        step=1,
        epoch=0,
        samples=samples,
        progress=float(samples),
        size=1,
        plan=protocol.Plan(8),
        total_batch=8,
        **more,
    )


def test_a_job_starts_its_workers_and_runs_once_all_have_joined():
    world = World()
    world.handle(inputs.Resize(("a", "b")))
    assert [(event.worker, event.slot) for event in of_kind(world, WorkerStarted)] == [("w1", "a"), ("w2", "b")]
    world.ready("w1")
    world.ready("w2")
    world.join("w1")
    assert world.job.phase is JobPhase.STARTING
    world.join("w2")
    assert world.job.phase is JobPhase.RUNNING
    (formed,) = of_kind(world, GroupFormed)
    assert (formed.generation, formed.slots) == (1, ("a", "b"))
    world.step("w1")
    assert of_kind(world, FirstStepDone) == []
    world.step("w2")
    assert len(of_kind(world, FirstStepDone)) == 1


def test_a_crash_makes_the_job_recover_and_the_survivors_continue_without_a_restart():
    world = training("ab")
    world.exit("w2", 1)
    assert world.job.phase is JobPhase.RECOVERING
    assert world.forms[-1].members == ("w1",)
    assert world.job.reason == "worker w2 on slot b ended with exit code 1"
    world.train()
    assert world.job.phase is JobPhase.RUNNING
    assert world.job.group.current.members == ("w1", "w3")
    assert world.job.failures.count == 1


def test_workers_that_fail_together_are_one_failure_and_progress_resets_the_count():
    world = training("ab", max_failures=1)
    world.exit("w1", 1)
    world.exit("w2", 1)
    assert world.job.failures.count == 1
    world.train()
    world.handle(inputs.MessageReceived("w3", progress(100)))
    world.exit("w3", 1)
    assert world.job.failures.count == 1
    world.train()
    world.exit("w4", 1)
    assert world.job.phase is JobPhase.FAILED
    assert world.job.end.reason == "worker w4 on slot b ended with exit code 1; 2 failures without progress in between"
    assert world.job.end.failures == 2


def test_restarts_after_repeated_failures_are_delayed_further_and_further():
    world = training("a", max_failures=9)
    delays = []
    for _ in range(4):
        world.exit(world.named[-1], 1)
        began_s = world.clock.at_s
        while not world.processes:
            world.pass_time(0.5)
        delays.append(world.clock.at_s - began_s)
    assert delays == [0.0, 1.0, 2.0, 4.0]


def test_a_job_that_completes_is_finished_when_the_leader_has_ended_and_the_others_have_not_much_longer():
    world = training("ab")
    world.finish("w2")
    world.bury()
    assert world.job.phase is JobPhase.RUNNING
    world.pass_time(world.spec.patience.grace + 1.0)
    assert world.processes["w1"].exit_code == KILLED  # it did not finish though its peer had
    other = training("ab")
    for worker in ("w2", "w1"):
        other.finish(worker)
    other.bury()
    assert other.job.end == JobEnded(JobPhase.FINISHED, "finished", initialised=True)
    assert other.processes == {}


def test_what_follows_training_is_repeated_if_the_leader_fails_there():
    world = training("ab")
    world.finish("w2")
    world.bury()
    world.exit("w1", 1)
    assert world.job.phase is JobPhase.RECOVERING
    world.train()
    assert world.job.phase is JobPhase.RUNNING
    assert world.job.group.current.members == ("w3", "w4")


def test_an_exit_with_code_0_of_the_leader_ends_the_job_and_of_another_worker_only_if_its_peers_follow():
    leader = training("ab")
    leader.exit("w1", 0)
    leader.pass_time(6.0)
    leader.bury()
    assert leader.job.end == JobEnded(JobPhase.FINISHED, "finished", early=True, initialised=True)
    other = training("ab")
    other.exit("w2", 0)
    assert other.job.failures.count == 0
    other.pass_time(6.0)
    assert other.job.reason == "worker w2 ended with exit code 0, and its peers train on"
    other.train()
    assert other.job.phase is JobPhase.RUNNING


def test_stopping_asks_members_to_save_and_kills_those_that_do_not_end_in_time():
    world = training("ab")
    world.handle(inputs.Resize(("a", "b", "c")))
    instructions = world.job.handle(inputs.StopRequested(save=True))
    stop = protocol.Stop(save=True)
    assert instructions == [
        SendMessage("w1", stop, signal.SIGTERM),
        SendMessage("w2", stop, signal.SIGTERM),
        SignalWorker("w3", signal.SIGTERM),  # it is still starting
    ]
    for worker in ("w1", "w3"):
        world.exit(worker, 143)
    world.pass_time(world.spec.patience.grace - 1.0)
    assert world.processes["w2"].exit_code is None
    world.pass_time(2.0)
    world.bury()
    assert world.job.end == JobEnded(JobPhase.STOPPED, "stopped")
    assert [event.reason for event in of_kind(world, WorkerEnded)] == ["was stopped"] * 3


def test_a_stop_while_survivors_recover_waits_until_they_have_a_leader_that_can_save():
    world = training("abc")
    world.exit("w1", 1)
    assert world.job.handle(inputs.StopRequested(save=True)) == []
    assert world.job.phase is JobPhase.RECOVERING
    for worker in ("w2", "w3"):
        world.join(worker)
    world.pass_time(0.5)
    assert world.job.phase is JobPhase.STOPPING
    assert ("w2", protocol.Stop(save=True)) in world.sent


def test_lost_slots_count_as_no_failure_and_their_workers_are_forgotten_at_once():
    world = training("ab")
    instructions = world.job.handle(inputs.SlotsLost({"b"}, "its node is gone"))
    assert SendMessage("w2", protocol.Stop(save=False)) in instructions
    assert ForgetWorker("w2") in instructions
    assert world.job.phase is JobPhase.RECOVERING
    assert world.job.failures.count == 0
    assert world.job.group.requested == ("a",)


def test_a_worker_that_sends_nothing_is_killed_after_its_patience_and_not_before():
    world = training("ab", patience=Patience(hang=10.0))
    world.pass_time(9.0, silent=("w2",))
    assert world.processes["w2"].exit_code is None
    world.pass_time(2.0, silent=("w2",))
    world.bury()
    assert of_kind(world, WorkerEnded)[-1].reason == "hung: it was silent for 10 s"
    assert world.job.phase is JobPhase.RECOVERING


def test_a_worker_that_does_not_join_is_killed_once_forming_has_taken_too_long():
    world = training("a", patience=Patience(form=60.0))
    world.handle(inputs.Resize(("a", "b")))
    world.ready("w2")
    world.says("w1", "forming")
    world.pass_time(59.0)
    assert world.processes["w2"].exit_code is None
    world.pass_time(2.0)
    world.bury()
    assert of_kind(world, WorkerEnded)[-1].reason == "hung: it did not join its peers within 60 s"


def test_newcomers_that_cannot_reach_the_others_are_ended_without_a_failure_of_the_job():
    world = training("a")
    world.handle(inputs.Resize(("a", "b")))
    world.ready("w2")
    world.lose_peers("w2")
    world.lose_peers("w1")
    assert of_kind(world, CouldNotGrow) == [CouldNotGrow(("b",), "no route")]
    world.bury()
    assert world.job.failures.count == 0
    assert world.forms[-1].members == ("w1",)


def test_a_process_that_has_not_called_init_becomes_a_worker_when_it_does():
    world = World(lone_slots=("a", "b"))
    world.handle(inputs.Resize(("a",)))
    world.pass_time(1e6)  # nobody knows what it does, or for how long
    assert world.processes["w1"].exit_code is None
    world.ready("w1")
    assert of_kind(world, InitCalled) == [InitCalled("w1")]
    assert world.job.lone_slots == ()


@pytest.mark.parametrize(
    ("event", "phase", "reason"),
    [
        (inputs.ProcessEnded("w1", 3, "ended with exit code 3"), JobPhase.FAILED, "it ended with exit code 3"),
        (inputs.SlotsLost({"a"}, "its node is gone"), JobPhase.STOPPED, "its node is gone"),
    ],
)
def test_a_process_that_never_called_init_is_the_whole_job(event, phase, reason):
    world = World(lone_slots=("a",))
    world.handle(inputs.Resize(("a",)))
    world.handle(event)
    assert (world.job.end.state, world.job.end.reason) == (phase, reason)


def test_a_start_that_fails_fails_the_job_and_cancels_the_other_starts():
    world = World()
    world.job.handle(inputs.Resize(("a", "b")))
    world.handle(inputs.StartFailed("w1", "train could not be started: no such file", shortage=False))
    assert world.job.end == JobEnded(JobPhase.FAILED, "train could not be started: no such file")
    assert world.job.starts == {}


def test_a_failure_for_which_somebody_has_to_act_ends_the_job_at_once():
    world = training("ab")
    world.handle(inputs.MessageReceived("w1", protocol.Failed(reason="no checkpoint is intact", hold=True)))
    world.bury()
    assert world.job.end == JobEnded(JobPhase.FAILED, "no checkpoint is intact", hold=True)


def test_a_malformed_message_ends_its_worker():
    world = training("ab")
    world.handle(inputs.MalformedMessage("w2", "not JSON"))
    world.bury()
    assert of_kind(world, WorkerEnded)[-1].reason == "sent a malformed message: not JSON"


def test_metrics_of_a_report_are_averaged_over_the_members():
    world = training("ab")
    world.handle(inputs.MessageReceived("w2", protocol.Metrics(generation=1, metrics={"loss": 3.0})))
    world.handle(inputs.MessageReceived("w1", progress(5, metrics={"loss": 1.0})))
    assert of_kind(world, protocol.Progress)[-1].metrics == {"loss": 2.0}


def test_a_worker_that_reconnects_gets_the_order_that_it_has_missed():
    world = training("abc")
    world.exit("w3", 1)
    form = world.forms[-1]
    hello = protocol.Hello(token="", worker="w2", pid=1, generation=1)
    assert world.job.handle(inputs.WorkerConnected(hello)) == [SendMessage("w2", form)]
    assert world.job.handle(inputs.WorkerConnected(replace_generation(hello, form.generation))) == []


def replace_generation(hello: protocol.Hello, generation: int) -> protocol.Hello:
    return protocol.Hello(token=hello.token, worker=hello.worker, pid=hello.pid, generation=generation)


def test_nothing_is_due_while_all_is_well_and_everything_while_a_group_forms():
    world = training("ab")
    assert world.job.next_due_s() == float("inf")
    world.exit("w2", 1)
    assert world.job.next_due_s() == 0.0
    stopping = training("a")
    stopping.job.handle(inputs.StopRequested(save=True))
    assert stopping.job.next_due_s() == stopping.clock.at_s + stopping.spec.patience.grace


def test_events_of_workers_that_are_gone_change_nothing():
    world = training("ab")
    world.exit("w2", 1)
    for event in (
        inputs.ProcessEnded("w2", 1, "ended with exit code 1"),
        inputs.MessageReceived("w2", protocol.Finished(step=1, samples=1)),
        inputs.MalformedMessage("w2", "late"),
        inputs.WorkerConnected(protocol.Hello(token="", worker="w2", pid=1)),
    ):
        assert world.job.handle(event) == []


def test_patience_grows_after_a_script_was_ended_where_it_may_take_its_time():
    world = training("ab", patience=replace(Patience(), free=5.0, step=5.0))
    for _ in range(3):
        world.says("w1", "synchronising")
        world.says("w2", "between")
    before = world.job._patience.free
    contacts = {
        "w1": inputs.Contact(0.0, "synchronising", 6.0, 0.1),
        "w2": inputs.Contact(0.0, "between", 6.0, 0.1),
    }
    world.handle(inputs.Tick(contacts))
    assert world.processes["w2"].exit_code == KILLED
    assert world.job._patience.free == 4.0 * before


def test_a_worker_that_was_about_to_start_on_a_lost_slot_is_not_started():
    world = training("ab", max_failures=9)
    for _ in range(2):
        world.exit(next(one for one, process in world.processes.items() if process.slot == "b"), 1)
        world.train(1)
    world.exit(next(one for one, process in world.processes.items() if process.slot == "b"), 1)
    assert [start.slot for start in world.job.starts.values()] == ["b"]  # after a delay
    world.handle(inputs.SlotsLost({"b"}, "its node is gone"))
    assert world.job.starts == {}
    world.train()
    assert world.job.group.settled
    assert {process.slot for process in world.processes.values()} == {"a"}


def handed_over(world: World, alive: Collection[str]) -> SupervisedJob:
    """The same job under another supervisor, which finds these workers alive."""
    processes = {worker: SimpleNamespace(identity={"pid": 1}) for worker in world.processes}
    links = {worker: Link(cast(Any, one), world.processes[worker].slot, "token") for worker, one in processes.items()}
    left = handover_of(world.job, "token", "unix:/job/control", links)
    job = SupervisedJob(world.spec, world.clock, "file:/job/")
    take_over(job, left, dict.fromkeys(alive, 1))
    return job


def test_the_next_supervisor_has_nothing_to_do_if_all_workers_still_train():
    world = training("ab")
    job = handed_over(world, ("w1", "w2"))
    assert job.phase is JobPhase.RUNNING
    assert job.group.settled
    assert job.handle(inputs.Begin()) == []


def test_the_next_supervisor_replaces_workers_that_died_while_there_was_none_and_uses_no_name_twice():
    world = training("ab")
    world.handle(inputs.Resize(("a", "b", "c")))
    job = handed_over(world, ("w1", "w3"))
    instructions = job.handle(inputs.Begin())
    (form,) = [one.message for one in instructions if isinstance(one, SendMessage)]
    assert (form.members, form.broken) == (("w1",), True)
    assert [(one.worker, one.slot) for one in instructions if isinstance(one, StartProcess)] == [("w4", "b")]
    assert job.group.requested == ("a", "b", "c")  # w3 was about to join, and still is


def test_a_job_of_which_nothing_is_left_starts_again_when_it_is_resized():
    job = handed_over(training("ab"), ())
    assert job.phase is JobPhase.IDLE
    assert job.handle(inputs.Begin()) == []
    instructions = job.handle(inputs.Resize(("a",)))
    assert [one.worker for one in instructions if isinstance(one, StartProcess)] == ["w3"]
