"""Deadlines: what is said of those that cannot be met, and that what is suggested would help."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_forecast import CLUSTER, job, submitted

from geminid.cli.jobs import about_deadline
from geminid.configuration import Placement
from geminid.engine.hints import Levers, Rivals
from geminid.job import FoundKind, JobKind
from geminid.jobstate import JobPhase, JobState
from geminid.policies.registry import make_policy
from geminid.serve.api.explain import about_deadline as deadline_explained
from geminid.serve.deadlines import Verdict, alone_s, judged
from geminid.serve.forecaster import Forecaster
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState

#: What a job competes with where others hold slots that they may give to it.
BUSY = Rivals(others=2, pass_by=True, in_the_way=True)


def of(due_s: float, **known: object):
    facts = {"forecast": None, "starts": None, "known": True, "alone": {}, "most_slots": None, "job_id": "j1"}
    return judged(due_s, **(facts | {"levers": Levers(), "rivals": BUSY} | known))


def test_a_job_alone_is_as_fast_as_its_model_says_on_every_size():
    times = alone_s(job("j1", work=6_000, max_slots=1), None, CLUSTER)
    assert set(times) == {1, 2, 3, 4}
    assert 40.0 < times[1] < 60.0  # a hundred samples a second, or somewhat more at best
    assert times[4] < 0.5 * times[1]
    assert alone_s(job("j2", elastic=False), None, CLUSTER) == {}
    assert alone_s(job("j3", work=None), None, CLUSTER) == {}


def test_more_slots_are_suggested_if_they_would_be_enough():
    alone = {1: 100.0, 2: 60.0, 4: 40.0}
    told = of(70.0, alone=alone, most_slots=1, levers=Levers(asked_max_slots=1))
    assert (told.verdict, told.earliest_s) == (Verdict.TOO_EARLY, 100.0)
    assert "even alone" in told.why
    assert told.hints[0].change == ("max_slots", "j1", 2)
    assert "later deadline: 1m 50s" in told.hints[1].text
    hopeless = of(30.0, alone=alone, most_slots=1, levers=Levers(asked_max_slots=1))
    assert [hint.change for hint in hopeless.hints] == [None]  # four slots would not be enough


def test_others_that_go_first_are_told_apart_from_a_job_that_is_too_slow():
    alone = {1: 50.0}
    told = of(70.0, alone=alone, forecast=[90.0, 120.0])
    assert told.verdict is Verdict.TOO_EARLY
    assert "beside the others it will be done in 1m 30s at the earliest" in told.why
    assert [hint.change and hint.change[0] for hint in told.hints] == ["priority", None, None]
    deaf = of(70.0, alone=alone, forecast=[90.0, 120.0], levers=Levers(priority_counts=False))
    assert "priority" not in " ".join(hint.text for hint in deaf.hints)
    assert of(100.0, alone=alone, forecast=[90.0, 120.0]).verdict is Verdict.AT_RISK
    assert of(130.0, alone=alone, forecast=[90.0, 120.0]).verdict is Verdict.MET


def test_what_nobody_knows_is_not_judged_unless_it_does_not_even_start_in_time():
    assert of(60.0, known=False).verdict is Verdict.UNKNOWN
    assert of(60.0, known=False, forecast=[1.0, 900.0], starts=[0.0, 30.0]).verdict is Verdict.UNKNOWN
    late = of(60.0, known=False, forecast=[100.0, 900.0], starts=[90.0, 300.0])
    assert (late.verdict, late.earliest_s) == (Verdict.TOO_EARLY, 100.0)  # it is not done when it starts
    assert "later deadline: 1m 50s or more" in late.hints[-1].text
    assert of(60.0).why == "its forecast is being computed"
    assert of(-5.0).verdict is Verdict.MISSED


@given(
    due_s=st.floats(1.0, 1e4),
    alone=st.dictionaries(st.integers(1, 8), st.floats(1.0, 1e4), max_size=4),
    forecast=st.none() | st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e4)).map(sorted),
    asked=st.integers(1, 8),
    known=st.booleans(),
    rivals=st.builds(
        Rivals,
        others=st.integers(0, 2),
        quotas=st.sampled_from([(), ("owner ann",), ("owner ann", "queue q")]),
        shared=st.booleans(),
        pass_by=st.booleans(),
        in_the_way=st.booleans(),
        most_slots=st.none() | st.integers(0, 8),
    ),
    unsure_of=st.sampled_from([(), ("j7",)]),
)
def test_every_suggestion_would_help(due_s, alone, forecast, asked, known, rivals, unsure_of):
    told = of(
        due_s,
        alone=alone,
        forecast=forecast,
        starts=None,
        known=known,
        most_slots=asked,
        levers=Levers(asked_max_slots=asked),
        rivals=rivals,
        unsure_of=unsure_of,
    )
    for hint in told.hints:
        what, _, value = hint.change or ("", "", 0)
        if what == "max_slots":
            assert value > asked
            assert alone[value] <= due_s
            assert rivals.most_slots is None or value <= rivals.most_slots
        if what == "priority":
            assert min(time_s for slots, time_s in alone.items() if slots <= asked) <= due_s
            assert rivals.pass_by
            assert not rivals.quotas
        if "fewer jobs" in hint.text:
            assert rivals.shared if rivals.quotas else rivals.in_the_way
    assert "beside the others" not in told.why or rivals.others
    if told.verdict is Verdict.TOO_EARLY:
        assert told.earliest_s == pytest.approx(told.earliest_s)
        assert told.earliest_s > due_s
        assert any("later deadline" in hint.text for hint in told.hints)
    if told.verdict is Verdict.MET:
        assert not told.hints


def forecaster(*jobs: LiveJob, now_s: float = 0.0, **state: object) -> Forecaster:
    """A forecaster of a service with these jobs, whose forecast is made."""
    known = ServiceState(seq=1, gpu_types={"cpu-0": "cpu"}, slots={"cpu-0": 4}, jobs={one.id: one for one in jobs})
    service = SimpleNamespace(
        published=SimpleNamespace(state=replace(known, **state)),
        cluster=CLUSTER,
        policy=make_policy("geminid"),
        policy_text="geminid",
        patience_s=600.0,
        clock=SimpleNamespace(now_s=lambda: now_s, monotonic_s=lambda: now_s),
        executor=SimpleNamespace(submissions=SimpleNamespace(kind_of=lambda spec: FoundKind(JobKind.UNKNOWN, ""))),
    )
    made = Forecaster(service)  # type: ignore[arg-type]
    until = time.monotonic() + 60.0
    while not all(made.knows(one) for one in jobs if one.wants_slots) and time.monotonic() < until:
        asyncio.run(made.freshen())
    return made


def told_of(made: Forecaster, one: LiveJob) -> dict[str, Any]:
    told = made.deadline_of(one, 0.0)
    assert told is not None
    return told


def plain(name: str, slots: int, on: tuple[int, ...] = (), **spec: object) -> LiveJob:
    return job(name, slots=on, elastic=False, min_slots=slots, max_slots=slots, **spec)


FEWER = "have fewer jobs before it: cancel or pause some"


def test_a_deadline_of_one_whom_a_quota_keeps_waiting_is_not_helped_by_priority():
    holder, waits = plain("j1", 2, (0, 1), owner="ann"), plain("j2", 1, owner="ann", deadline_s=5.0)
    told = told_of(forecaster(holder, waits, quotas={("owner", "ann"): 2}), waits)
    assert told["help"] == ["have fewer jobs of owner ann: cancel or pause some"]
    assert told["verdict"] == "may be missed"


def test_nobody_goes_before_a_plain_command_that_runs():
    waits = plain("j2", 1, deadline_s=5.0)
    told = told_of(forecaster(plain("j1", 4, (0, 1, 2, 3)), waits), waits)
    assert told["help"] == [FEWER]
    elastic = replace(job("j1", slots=(0, 1, 2, 3), work=10**7, max_slots=4), kind=JobKind.ELASTIC)
    told = told_of(forecaster(elastic, waits), waits)
    assert any("raise its priority" in text for text in told["help"])  # an elastic job may give way
    first = submitted(plain("j0", 1), -1.0)
    told = told_of(forecaster(plain("j1", 4, (0, 1, 2, 3)), first, waits), waits)
    assert [text.split(" (")[0] for text in told["help"]] == ["have an admin raise its priority", FEWER]
    blocked = replace(first, state=JobState.submitted(job_id="j0", spec=replace(first.spec, owner="bob"), at_s=-1.0))
    told = told_of(forecaster(plain("j1", 4, (0, 1, 2, 3)), blocked, waits, quotas={("owner", "bob"): 0}), waits)
    assert told["help"] == [FEWER], "who cannot start anyway is not before it"


def test_more_slots_are_suggested_to_a_job_alone_and_nothing_about_others():
    alone = job("j1", slots=(0,), work=6_000, max_slots=1, deadline_s=60.0)
    told = told_of(forecaster(alone), alone)
    assert told["verdict"] == "may be missed"
    assert told["help"] == ["let it have 2 slots (geminid set j1 --max-slots 2)"]
    beside = (alone, plain("j2", 3, (1, 2, 3)))
    assert told_of(forecaster(*beside), alone)["help"] == []  # the other slots are not to be had
    late = replace(alone, state=JobState.submitted(job_id="j1", spec=replace(alone.spec, deadline_s=54.0), at_s=0.0))
    why = told_of(forecaster(late), late)["why"]
    assert "the others" not in why


def test_what_is_assumed_of_others_is_no_reason_to_say_cannot():
    """A command of which nothing is known may end at once."""
    waits = plain("j2", 1, deadline_s=5.0)
    told = told_of(forecaster(plain("j1", 4, (0, 1, 2, 3)), waits), waits)
    assert told["verdict"] == "may be missed"
    assert told["why"] == "it waits for slots, and how long j1 will hold them is not known"
    assert told["earliest_finish_at_s"] is None
    trains = job("j2", work=6_000, deadline_s=70.0)
    told = told_of(forecaster(replace(plain("j1", 4, (0, 1, 2, 3)), executed_before_s=4e4), trains), trains)
    assert told["verdict"] == "may be missed"
    assert told["why"].startswith("by what is assumed of j1, of unknown length, it will be done in ")
    holder = plain("j1", 4, (0, 1, 2, 3))
    began = JobState.submitted(job_id="j0", spec=holder.spec, at_s=-99.0).move(
        JobPhase.STARTING, at_s=-99.0, placement=Placement.of({"cpu-0": [0, 1, 2, 3]})
    )
    done = began.move(JobPhase.RUNNING, at_s=-98.0).move(JobPhase.SUCCEEDED, at_s=-8.0)
    like = LiveJob(state=done, elastic=False, executed_before_s=90.0)  # the holder takes about as long
    told = told_of(forecaster(like, holder, waits), waits)
    assert told["verdict"] == "cannot be met"
    assert told["earliest_finish_at_s"] > 60.0
    assert "later deadline" in told["help"][-1]
    another = replace(like, state=replace(like.state, spec=replace(holder.spec, command=("sleep", "90"))))
    told = told_of(forecaster(another, holder, waits), waits)
    assert told["verdict"] == "may be missed", "another command of the same name says nothing of this one"


def test_one_that_takes_longer_than_it_has_cannot_be_in_time_whatever_the_others_do():
    first = plain("slow", 1)
    done = JobState.submitted(job_id="j0", spec=first.spec, at_s=-99.0).move(
        JobPhase.STARTING, at_s=-99.0, placement=Placement.of({"cpu-0": [0]})
    )
    done = done.move(JobPhase.RUNNING, at_s=-98.0).move(JobPhase.SUCCEEDED, at_s=-8.0)
    like = LiveJob(state=done, elastic=False, executed_before_s=90.0)
    again = replace(first.spec, deadline_s=5.0)
    waits = LiveJob(state=JobState.submitted(job_id="j2", spec=again, at_s=0.0), elastic=False)
    told = told_of(forecaster(like, plain("j1", 4, (0, 1, 2, 3)), waits), waits)
    assert (told["verdict"], told["why"]) == ("cannot be met", "it takes 1m 00s at least, and has 5.0s")
    other = replace(waits, state=replace(waits.state, spec=replace(again, command=("false",))))
    told = told_of(forecaster(like, other), other)
    assert told["verdict"] == "cannot be judged", "of this command nothing is known"
    assert "how long it takes is not known" in told["why"]


def test_a_forecast_that_is_missing_is_not_said_to_be_computed():
    waits = plain("j2", 2, deadline_s=5.0)
    drained = forecaster(waits, drained=frozenset({"cpu-0"}))
    told = told_of(drained, waits)
    assert (told["verdict"], told["why"]) == (
        "cannot be judged",
        "it needs 2 slots, and only 0 of 4 are in service",
    )
    assert told["help"] == ["bring slots back into service (geminid drain cpu-0 --undo)"]
    cordoned = forecaster(cordoned=frozenset({("cpu-0", slot) for slot in range(3)}))
    tried = cordoned.dry_run(waits.spec)
    assert tried["never"].startswith("it needs 2 slots, and only 1 of 4 are in service; bring slots back into service")
    assert "geminid cordon cpu-0/0 --undo" in tried["never"]
    assert tried["deadline"]["why"] == "it needs 2 slots, and only 1 of 4 are in service"
    assert forecaster().dry_run(waits.spec)["never"] is None


def test_a_job_of_unknown_kind_is_judged_by_the_elastic_one_before_it():
    runs = replace(job("j1", slots=(0,), work=60_000, max_slots=1, owner="ann"), kind=JobKind.ELASTIC)
    again = replace(runs.spec, deadline_s=30.0, max_slots=2)
    told = forecaster(runs).dry_run(again)
    assert (told["kind"], told["unlike"]) == ("unknown", False)
    assert told["deadline"]["verdict"] == "cannot be met"
    assert told["deadline"]["why"].startswith("even alone, on as many slots as it may have, it would take")
    hour = forecaster(runs).dry_run(replace(again, deadline_s=3600.0))["deadline"]
    assert hour["verdict"] == "can be met"
    fewer = forecaster(runs).dry_run(replace(again, command=("true", "--epochs=1")))["deadline"]
    assert fewer["verdict"] == "cannot be judged", "it may have less to do"
    limits = replace(runs.limits, work_samples=None, dataset_samples=None)  # as the service takes over from the first
    state = JobState.submitted(job_id="j2", spec=again, at_s=0.0)
    waits = replace(runs, state=state, elastic=False, kind=JobKind.UNKNOWN, target=None, limits=limits, samples=0)
    told = told_of(forecaster(runs, waits), waits)
    assert told["why"].startswith("even alone, on as many slots as it may have, it would take")


def test_the_commands_print_the_earliest_finish_of_a_job_that_misses_its_deadline():
    missed = {"verdict": "cannot be met", "why": "it takes too long", "help": ["ask for more time"]}
    lines = about_deadline({"deadline": missed | {"earliest_finish_at_s": 1_800_000_000.0}})
    assert lines[0].startswith("its deadline cannot be met: it takes too long (earliest finish: 2027-01-1")
    without = about_deadline({"deadline": missed | {"earliest_finish_at_s": None}})
    assert without == ["its deadline cannot be met: it takes too long", "→ ask for more time"]


def test_explain_says_when_a_job_finishes_at_the_earliest():
    late = {"verdict": "cannot be met", "why": "it takes 2h", "earliest_finish_at_s": 8200.0}
    said = "its deadline cannot be met: it takes 2h"
    assert deadline_explained(late, 1000.0) == f"{said} (earliest finish: 2h 00m from now)"
    assert deadline_explained({**late, "earliest_finish_at_s": None}, 1000.0) == said
