"""The life of a job: which phase may follow which, and what is counted on the way."""

from dataclasses import replace
from typing import Any

import pytest

from geminid.configuration import BatchPlan, Placement
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import TRANSITIONS, IllegalTransition, JobPhase, JobState

SPEC = JobSpec(name="j", command=("python",), dataset_samples=1000, epochs=2, max_retries=1)
TWO = Placement.of({"n-0": [0, 1]})
FOUR = Placement.of({"n-0": [0, 1], "n-1": [0, 1]})


def pending() -> JobState:
    return JobState.submitted(job_id="j-1", spec=SPEC, at_s=100.0)


def running() -> JobState:
    started = pending().move(JobPhase.STARTING, at_s=110.0, placement=TWO)
    return started.move(JobPhase.RUNNING, at_s=115.0)


def test_a_job_from_submission_to_success() -> None:
    state = running().advance(at_s=215.0, progress_samples=500.0, durable_samples=400.0)
    state = state.move(JobPhase.RESCALING, at_s=215.0, placement=FOUR, reason="2 slots became free")
    state = state.move(JobPhase.RUNNING, at_s=216.0).advance(at_s=300.0, progress_samples=2000.0)
    assert state.remaining_samples == 0
    done = state.move(JobPhase.SUCCEEDED, at_s=300.0)
    assert (done.first_started_at_s, done.finished_at_s, done.jct_s) == (110.0, 300.0, 200.0)
    assert (done.rescales, done.max_slots_used, done.num_slots) == (1, 4, 0)
    assert done.attained_service_gpu_s == 2 * (215 - 110) + 4 * (300 - 215)
    assert done.placement is None


def test_every_phase_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(JobPhase)
    reached = {JobPhase.PENDING}
    for _ in JobPhase:
        reached |= {after for phase in reached for after in TRANSITIONS[phase]}
    assert reached == set(JobPhase)


def test_terminal_phases_absorb() -> None:
    terminal = [phase for phase in JobPhase if phase.is_terminal]
    assert terminal == [JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED]
    done = pending().move(JobPhase.CANCELLED, at_s=101.0)
    with pytest.raises(IllegalTransition, match=r"Job j-1 is cancelled and cannot become starting; .* is nothing\."):
        done.move(JobPhase.STARTING, at_s=102.0, placement=TWO)
    with pytest.raises(IllegalTransition, match="cannot change any more"):
        done.advance(at_s=102.0)


def test_a_job_that_holds_slots_is_cancelled_or_paused_only_by_way_of_stopping() -> None:
    for phase in JobPhase:
        if phase.holds_slots and phase is not JobPhase.STOPPING:
            assert JobPhase.STOPPING in TRANSITIONS[phase]
            assert not {JobPhase.CANCELLED, JobPhase.PAUSED} & TRANSITIONS[phase]


def test_slots_are_kept_until_the_job_has_stopped() -> None:
    stopping = running().move(JobPhase.STOPPING, at_s=120.0)
    assert stopping.placement == TWO
    assert stopping.move(JobPhase.PAUSED, at_s=121.0).placement is None


def test_an_illegal_move_says_what_would_be_allowed() -> None:
    with pytest.raises(IllegalTransition) as error:
        pending().move(JobPhase.RUNNING, at_s=101.0)
    assert str(error.value) == (
        "Job j-1 is pending and cannot become running; what can follow is cancelled, failed, paused, starting."
    )


def test_a_placement_comes_with_the_start_and_only_with_slots() -> None:
    with pytest.raises(IllegalTransition, match="cannot start without a placement"):
        pending().move(JobPhase.STARTING, at_s=101.0)
    with pytest.raises(IllegalTransition, match="cannot hold slots when it is paused"):
        pending().move(JobPhase.PAUSED, at_s=101.0, placement=TWO)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"max_slots": 1}, "Job j-1 may have at most 1 slots and cannot run on 2."),
        ({"min_slots": 3}, "Job j-1 needs at least 3 slots and cannot run on 2."),
    ],
)
def test_a_job_starts_on_as_many_slots_as_it_asked_for(limits: dict[str, int], sentence: str) -> None:
    state = JobState.submitted(job_id="j-1", spec=replace(SPEC, **limits), at_s=0.0)
    with pytest.raises(IllegalTransition) as error:
        state.move(JobPhase.STARTING, at_s=1.0, placement=TWO)
    assert str(error.value) == sentence


def test_a_job_may_hold_more_than_it_asked_for_only_while_it_rescales() -> None:
    state = JobState.submitted(job_id="j-1", spec=replace(SPEC, max_slots=2), at_s=0.0)
    state = state.move(JobPhase.STARTING, at_s=1.0, placement=TWO).move(JobPhase.RUNNING, at_s=2.0)
    rescaling = state.move(JobPhase.RESCALING, at_s=3.0, placement=FOUR)
    with pytest.raises(IllegalTransition, match="at most 2 slots and cannot run on 4"):
        rescaling.move(JobPhase.RUNNING, at_s=4.0)
    assert rescaling.move(JobPhase.RUNNING, at_s=4.0, placement=Placement.of({"n-1": [0, 1]})).num_slots == 2


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_job_is_restarted_as_often_as_its_retries_say(retries: int) -> None:
    state = JobState.submitted(job_id="j-1", spec=replace(SPEC, max_retries=retries), at_s=0.0)
    starts = 0
    while state.phase is JobPhase.PENDING:
        state = state.move(JobPhase.STARTING, at_s=0.0, placement=TWO).crash(at_s=0.0, reason="")
        starts += 1
    assert (state.phase, starts - 1) == (JobPhase.FAILED, retries)


@pytest.mark.parametrize("at_s", [114.9, float("nan"), float("inf")])
def test_time_never_goes_back(at_s: float) -> None:
    with pytest.raises(IllegalTransition, match="time never goes back"):
        running().advance(at_s=at_s)
    with pytest.raises(IllegalTransition, match="time never goes back"):
        running().move(JobPhase.STOPPING, at_s=at_s)


@pytest.mark.parametrize(("progress", "durable"), [(9.0, 5.0), (float("nan"), 5.0), (11.0, 4.0), (11.0, 12.0)])
def test_progress_never_goes_back(progress: float, durable: float) -> None:
    state = running().advance(at_s=120.0, progress_samples=10.0, durable_samples=5.0)
    with pytest.raises(IllegalTransition, match="progress never goes back"):
        state.advance(at_s=121.0, progress_samples=progress, durable_samples=durable)


def test_a_job_without_slots_makes_no_progress() -> None:
    with pytest.raises(IllegalTransition, match="is pending and cannot make progress"):
        pending().advance(at_s=101.0, progress_samples=1.0)


def test_a_crash_leaves_what_was_durable_and_retries_run_out() -> None:
    state = running().advance(at_s=120.0, progress_samples=10.0, durable_samples=5.0)
    once = state.crash(at_s=121.0, reason="node n-0 was lost")
    assert (once.phase, once.failures, once.progress_samples) == (JobPhase.PENDING, 1, 5.0)
    assert once.reason == "node n-0 was lost"
    again = once.move(JobPhase.STARTING, at_s=122.0, placement=TWO).crash(at_s=123.0, reason="out of memory")
    assert (again.phase, again.failures) == (JobPhase.FAILED, 2)
    assert again.first_started_at_s == 110.0


def test_what_does_not_run_cannot_crash() -> None:
    with pytest.raises(IllegalTransition, match="runs nothing that could crash"):
        pending().crash(at_s=101.0, reason="")


def test_the_batch_plan_is_kept_until_there_is_a_new_one() -> None:
    plan = BatchPlan(per_slot_batch_samples=8)
    state = running().advance(at_s=120.0, batch_plan=plan)
    assert state.move(JobPhase.STOPPING, at_s=121.0).batch_plan == plan


def test_age_and_remaining_work() -> None:
    state = running().advance(at_s=160.0, progress_samples=300.0)
    assert (state.age_s, state.remaining_samples, state.jct_s) == (60.0, 1700.0, None)
    open_ended = JobState.submitted(job_id="k", spec=JobSpec(name="k", command=("x",)), at_s=0.0)
    assert open_ended.remaining_samples is None


def test_a_state_that_contradicts_itself_cannot_be_constructed() -> None:
    base = {"job_id": "j", "spec": SPEC.to_dict(), "submitted_at_s": 5, "updated_at_s": 6, "phase_since_s": 5}
    contradictions: list[tuple[dict[str, object], str]] = [
        ({"phase": "running"}, "phase is 'running', but then placement must be given."),
        (
            {"phase": "paused", "finished_at_s": 6},
            "phase is 'paused', but then finished_at_s must not be given.",
        ),
        ({"phase": "failed"}, "phase is 'failed', but then finished_at_s must be given."),
        (
            {"durable_samples": 3},
            "durable_samples is 3.0, but must be at most progress_samples, which is 0.0.",
        ),
        ({"updated_at_s": 1}, "updated_at_s is 1.0, but must be the latest time, after submission"),
        ({"rescales": -1}, "rescales is -1, but must be a whole number, at least 0."),
        ({"spec": None}, "spec is missing: it must be the specification of a job."),
        ({"spec": {"name": "x"}}, "spec.command is missing: it must be a list of texts."),
    ]
    for change, sentence in contradictions:
        with pytest.raises(InvalidInput) as error:
            JobState.from_dict({**base, **change})
        assert str(error.value).startswith(sentence)


def test_a_bad_field_does_not_hide_broken_rules() -> None:
    with pytest.raises(InvalidInput) as error:
        replace(running(), rescales=-1, durable_samples=5.0, finished_at_s=115.0, max_slots_used=1)
    fields = [(problem.field, problem.involves) for problem in error.value.problems]
    assert fields == [
        ("rescales", ()),
        ("durable_samples", ("progress_samples",)),
        ("max_slots_used", ("placement",)),
        ("phase", ("finished_at_s",)),
    ]


def test_the_constructor_checks_the_types_of_all_fields() -> None:
    wrong: dict[str, Any] = {"spec": "j", "phase": "running", "placement": {"n-0": [0]}, "batch_plan": 3}
    with pytest.raises(InvalidInput) as error:
        JobState(job_id="j", submitted_at_s=0, updated_at_s=0, phase_since_s=0, finished_at_s=-1, **wrong)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["spec", "phase", "placement", "batch_plan", "updated_at_s"]


def test_a_time_that_cannot_be_read_is_the_only_time_that_is_blamed() -> None:
    data = {**running().to_dict(), "submitted_at_s": "yesterday", "updated_at_s": -5, "phase_since_s": -5}
    with pytest.raises(InvalidInput) as error:
        JobState.from_dict(data)
    assert [problem.field for problem in error.value.problems] == ["submitted_at_s"]


def test_the_reasons_of_states_do_not_leak_secrets() -> None:
    spec = JobSpec(name="j", command=("x",), env=(("TOKEN", "hunter2"),))
    assert "hunter2" not in repr(JobState.submitted(job_id="j", spec=spec, at_s=0.0))
