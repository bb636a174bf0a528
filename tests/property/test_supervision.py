"""Whatever happens to a job and its workers, in any order: the promises of its state machine hold (virtual time)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.supervise import inputs, protocol
from geminid.supervise.events import JobPhase as P
from supervised import World

SLOTS = ("n1/0", "n1/1", "n2/0", "n2/1")

#: Where a job may go from each phase; from those that are not here, nowhere.
NEXT = {
    P.IDLE: {P.STARTING, P.STOPPING, P.STOPPED},
    P.STARTING: {P.RUNNING, P.STOPPING, P.FINISHED, P.STOPPED, P.FAILED},
    P.RUNNING: {P.RECOVERING, P.STOPPING, P.FINISHED, P.STOPPED, P.FAILED},
    P.RECOVERING: {P.RUNNING, P.STOPPING, P.FINISHED, P.STOPPED, P.FAILED},
    P.STOPPING: {P.FINISHED, P.STOPPED, P.FAILED},
}

WORKER = st.integers(0, 7)
STEPS = st.one_of(
    st.tuples(st.just("resize"), st.sets(st.sampled_from(SLOTS), min_size=3)),
    st.tuples(st.just("lose slot"), st.sampled_from(SLOTS)),
    st.tuples(st.sampled_from(["ready", "ready", "join", "join", "join", "step", "lose peers", "finish"]), WORKER),
    st.tuples(st.just("exit"), WORKER, st.sampled_from([0, 1, -9])),
    st.tuples(st.just("malformed"), WORKER),
    st.tuples(st.just("progress"), WORKER, st.integers(0, 100)),
    st.tuples(st.just("says"), WORKER, st.sampled_from(["forming", "synchronising", "training", "between"])),
    st.tuples(st.just("bury")),
    st.tuples(st.just("train")),
    st.tuples(st.just("time"), st.sampled_from([0.5, 3.0, 11.0, 70.0]), st.sets(WORKER, max_size=2)),
)
ENDS = st.sampled_from(["stop", "kill", "go on"])


def perform(world: World, step: tuple) -> None:
    """Have something happen; to a worker, if there is one of that number."""
    what, *more = step
    living = list(world.processes)
    worker = living[more[0] % len(living)] if living and more and isinstance(more[0], int) else None
    match what, *more:
        case "resize", slots:
            world.handle(inputs.Resize(tuple(sorted(slots))))
        case "lose slot", slot if len(world.job.group.requested) > 3:
            world.handle(inputs.SlotsLost({slot}, "its node is gone"))
        case "bury", *_:
            world.bury()
        case "train", *_:
            world.train(3)
        case "time", seconds, silent:
            world.pass_time(seconds, silent=tuple(living[index] for index in silent if index < len(living)))
        case _ if worker is None:
            pass
        case "exit", _, code:
            world.exit(worker, code)
        case "malformed", _:
            world.handle(inputs.MalformedMessage(worker, "not JSON"))
        case "progress", _, samples:
            report = protocol.Progress(
                generation=1,
                step=1,
                epoch=0,
                samples=samples,
                progress=0.0,
                size=1,
                plan=protocol.Plan(8),
                total_batch=8,
            )
            world.handle(inputs.MessageReceived(worker, report))
        case "says", _, phase:
            world.says(worker, phase)
        case _:
            getattr(world, what.replace(" ", "_"))(worker)


def check(world: World) -> None:
    """What holds at any time."""
    job = world.job
    assert job.workers.keys() == world.processes.keys()
    assert not job.workers.keys() & job.starts.keys()
    for before, after in zip(world.phases, world.phases[1:], strict=False):
        assert after in NEXT.get(before, set()), f"from {before} to {after}"
    assert job.phase.over == (job.end is not None)
    slots = [known.slot for known in job.group.workers.values() if known.standing in ("ready", "member")]
    assert len(slots) == len(set(slots)), "two workers train on the same slot"


def check_minimum(world: World, min_slots: int) -> None:
    """After a member was lost, no generation of fewer than the job needs trains until there were enough again."""
    forms: dict[int, list[protocol.Form]] = {}
    for form in world.forms:
        forms.setdefault(form.generation, []).append(form)
    are_too_few = False
    for _, same in sorted(forms.items()):
        is_short = len(same[0].members) < min_slots
        are_too_few = is_short and (are_too_few or all(form.broken for form in same))
        assert not are_too_few or same[0].hold, f"it trains on too few slots: {same[0]}"


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(STEPS, max_size=40), ENDS, st.integers(1, 3), st.integers(0, 5))
def test_whatever_happens_the_promises_of_a_supervisor_hold(steps, end, min_slots, max_failures):
    """No name is used twice and no script runs unrecorded (``World``), and every started worker is ended once.

    A group that was broken does not train on fewer slots than the job needs. A job that is left in peace trains on the
    slots that were requested, or is over; one that is stopped or killed is over, and nothing of it is left.
    """
    world = World(min_slots=min_slots, max_failures=max_failures)
    world.handle(inputs.Begin())
    world.handle(inputs.Resize(SLOTS[:3]))
    for step in steps:
        perform(world, step)
        check(world)
    check_minimum(world, min_slots)
    world.train()
    if end == "go on":
        assert world.job.phase.over or world.job.phase is P.STOPPING or world.job.group.settled
    world.handle(inputs.StopRequested(save=True) if end == "stop" else inputs.KillRequested())
    for _ in range(20):
        world.bury()
        world.pass_time(40.0)
        check(world)
    assert world.job.phase.over
    assert world.processes == {}
    assert sorted(event.worker for event in world.ended()) == sorted(world.named)
