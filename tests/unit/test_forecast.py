"""Forecasts, what-ifs and explanations of a live state that is made up."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.engine.engine import Engine
from geminid.engine.events import Submitted
from geminid.engine.explain import Quota, explain
from geminid.engine.hints import Levers
from geminid.engine.models import ModelKeeper
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Observation, Profile
from geminid.job import GpuPreference, JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.policies.base import JobFacts
from geminid.policies.fifo import Fifo
from geminid.policies.geminid import Geminid
from geminid.serve.documents import market_document
from geminid.serve.forecast import forecast, waiting_order
from geminid.serve.forecaster import Forecaster, Made
from geminid.serve.livejob import LiveJob, ScriptFacts, Stretch
from geminid.serve.server import DEFAULT_POLICY
from geminid.serve.state import ServiceState
from geminid.serve.translation import view_of
from geminid.serve.whatif import LEAST_ERROR, uncertainty, what_if

CLUSTER = Cluster.parse("cpu:1x4")

#: A hundred samples a second on every slot, and nothing lost between slots.
PROFILE = Profile.of(
    Observation(
        nodes=1, slots=slots, per_slot_batch=batch, busiest_node_slots=slots, accumulation_s=batch / 100.0,
        step_s=batch / 100.0 + 1e-4,
    )
    for slots in (1, 2, 4)
    for batch in (8, 16, 32)
)  # fmt: skip


def job(name: str, *, work: int = 10_000, slots: tuple[int, ...] = (), elastic: bool = True, **spec: object) -> LiveJob:
    state = JobState.submitted(job_id=name, spec=JobSpec(name=name, command=("true",), **spec), at_s=0.0)  # type: ignore[arg-type]
    limits = ScriptFacts.of(
        initial_batch=32, largest_batch=128, smallest_per_slot=8, largest_per_slot=32, parameter_count=1,
        work_samples=work,
    )  # fmt: skip
    made = LiveJob(state=state, elastic=elastic)
    if elastic:
        made = replace(made, limits=limits, measured=(("cpu", PROFILE),), gradient=GradientStats(1e-3, 1.0), samples=1)
    return replace(made, target=Placement.of({"cpu-0": slots})) if slots else made


def submitted(one: LiveJob, at_s: float) -> LiveJob:
    return replace(one, state=JobState.submitted(job_id=one.id, spec=one.spec, at_s=at_s))


def test_one_job_on_one_slot_takes_what_its_speed_says():
    (found,) = forecast([job("j1", work=6_000, slots=(0,), max_slots=1)], CLUSTER, "fifo", 0.0).values()
    early, late = found["finish_s"]
    assert early < 60.0 < late
    assert late - early < 30.0
    assert not found["guessed"]
    assert found["start_s"] is None  # it runs already


def test_whoever_waits_starts_when_the_others_end():
    running = job("j1", work=6_000, slots=(0, 1, 2, 3), min_slots=4, max_slots=4)
    waiting = job("j2", work=6_000, min_slots=4, max_slots=4)
    told = forecast([waiting, running], CLUSTER, "fifo", 0.0)
    assert told["j2"]["start_s"] == pytest.approx(told["j1"]["finish_s"], abs=2.0)
    assert told["j2"]["finish_s"][0] > told["j2"]["start_s"][0]


def test_nobody_is_promised_a_cordoned_slot_when_the_command_on_it_ends():
    one = Cluster.parse("cpu:1x1")
    running, waiting = job("j1", slots=(0,), elastic=False), job("j2", elastic=False)
    assert set(forecast([running, waiting], one, "fifo", 0.0)) == {"j1", "j2"}
    assert set(forecast([running, waiting], one, "fifo", 0.0, cordoned={"j1": [1]})) == {"j1"}


def test_places_in_the_queue_are_those_of_the_policy():
    """Shortest first, whoever came first; jobs that the forecast left out come last."""
    running = job("j1", work=6_000, slots=(0, 1, 2, 3), min_slots=4, max_slots=4)
    long = job("j2", work=60_000, min_slots=4, max_slots=4)
    short = job("j3", work=600, min_slots=4, max_slots=4)
    unseen = [job("j5"), job("j4", priority=5)]
    jobs = [running, long, short]
    for policy, order in (("fifo", ["j2", "j3"]), ("srtf", ["j3", "j2"])):
        made = forecast(jobs, CLUSTER, policy, 0.0)
        assert waiting_order([*unseen, *jobs], made) == [*order, "j4", "j5"]


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, "fifo", "sia", "pollux", "srtf", "las"])
def test_equal_jobs_start_in_the_order_of_their_arrival(policy: str, *, elastic: bool):
    """Whether they came at once or one after the other, and whatever they are called."""
    holders = [job(f"j{i}", elastic=elastic, slots=(2 * i, 2 * i + 1), min_slots=2, max_slots=2) for i in range(2)]
    for apart_s in (0.0, 0.2, 5.0):
        waiting = []
        for i, name in enumerate(("z", "y", "x", "w", "v")):
            spec = JobSpec(name="j0", command=("true",), min_slots=2, max_slots=2)  # like the first that runs
            state = JobState.submitted(job_id=name, spec=spec, at_s=apart_s * i)
            waiting.append(LiveJob(state=state, elastic=elastic))
        made = forecast([*holders, *waiting], CLUSTER, policy, 30.0)
        assert waiting_order(waiting, made) == ["z", "y", "x", "w", "v"]
        starts = [made[one.id]["expected_start_s"] for one in waiting]
        assert starts == sorted(starts)
        assert starts[0] < starts[2] < starts[4]  # two at a time
        assert any(found["unlike"] for found in made.values()) != elastic


def test_priority_goes_before_arrival():
    holder = job("j1", elastic=False, slots=(0, 1, 2, 3), min_slots=4, max_slots=4)
    waiting = [job(f"j{i}", elastic=False, min_slots=4, max_slots=4, priority=50 * (i == 4)) for i in (2, 3, 4)]
    assert waiting_order(waiting, forecast([holder, *waiting], CLUSTER, DEFAULT_POLICY, 30.0)) == ["j4", "j2", "j3"]


def test_a_job_has_no_more_slots_than_it_may_and_others_have_the_rest():
    first = job("j1", work=12_000, slots=(0, 1), max_slots=2)
    told = forecast([first, job("j2", work=12_000, max_slots=2)], CLUSTER, DEFAULT_POLICY, 30.0)
    assert told["j1"]["finish_s"][0] > 45.0  # two slots make two hundred samples a second
    assert told["j2"]["start_s"][1] < 5.0
    view = what_if([first], CLUSTER, 30.0).standing["j1"]
    assert (view.facts.min_slots, view.facts.max_slots, view.slots) == (1, 2, 2)


def test_a_job_is_what_it_was_when_the_forecast_begins():
    two_types = Cluster.parse("cpu:1x4,t4:1x4")
    spec = {"min_slots": 2, "max_slots": 3, "gpu_types": GpuPreference(names=("cpu",)), "deadline_s": 500.0}
    one = submitted(job("j1", owner="ann", queue="night", priority=50, **spec), 100.0)
    facts = what_if([one], two_types, 130.0).standing["j1"].facts
    assert (facts.submitted_s, facts.deadline_s, facts.weight) == (-30.0, 470.0, 2.0)
    assert (facts.owner, facts.queue, facts.min_slots, facts.max_slots) == ("ann", "night", 2, 3)
    assert facts.gpu_types == frozenset({"cpu"})
    holder = job("j2", elastic=False, slots=(0, 1, 2, 3), min_slots=4, max_slots=4)
    told = forecast([holder, one], two_types, DEFAULT_POLICY, 130.0)
    assert told["j1"]["start_s"] == pytest.approx(told["j2"]["finish_s"], abs=2.0)  # whatever is free of the other type
    assert forecast([job("j1", min_slots=5)], CLUSTER, DEFAULT_POLICY, 0.0) == {}


def test_jobs_far_back_in_the_queue_are_told_roughly_when_it_is_their_turn(monkeypatch):
    """One at a time, each as long as the first took."""
    monkeypatch.setattr("geminid.serve.forecast.MAX_SIMULATED", 4)
    monkeypatch.setattr("geminid.serve.forecast.MAX_ESTIMATED", 5)
    spec = JobSpec(name="j0", command=("true",), min_slots=4, max_slots=4)
    states = [JobState.submitted(job_id=f"j{i}", spec=spec, at_s=0.0) for i in range(11)]
    started = states[0].move(JobPhase.STARTING, at_s=0.0, placement=Placement.of({"cpu-0": [0, 1, 2, 3]}))
    running = started.move(JobPhase.RUNNING, at_s=1.0)
    done = LiveJob(state=running.move(JobPhase.SUCCEEDED, at_s=12.0), elastic=False, executed_before_s=12.0)
    waiting = [LiveJob(state=state, elastic=False) for state in states[1:]]
    told = forecast([done, *waiting], CLUSTER, DEFAULT_POLICY, 20.0)
    assert list(told) == [f"j{i}" for i in range(1, 10)]  # of the last, nothing
    starts = [found["expected_start_s"] for found in told.values()]
    assert starts == pytest.approx([12.0 * i for i in range(9)], abs=2.0)
    assert told["j9"]["start_s"] == pytest.approx([64.0, 144.0], abs=3.0)
    assert told["j9"]["guessed"]
    assert waiting_order(waiting, told) == [one.id for one in waiting]


def test_a_job_grows_at_once_where_slots_are_free():
    told = forecast([job("j1", work=60_000, slots=(0,))], CLUSTER, DEFAULT_POLICY, 100.0)
    assert told["j1"]["finish_s"][1] < 250.0  # on one slot, 600


def test_a_forecast_keeps_to_quotas_and_leaves_running_commands_alone():
    plain = job("j1", elastic=False, slots=(0, 1, 2, 3), min_slots=4, max_slots=4)
    short = job("j2", work=100)
    told = forecast([short, plain], CLUSTER, "srtf", 100.0)
    assert told["j2"]["start_s"] == pytest.approx(told["j1"]["finish_s"], abs=2.0)  # however short it is
    first, second, never = job("j1", work=6_000, slots=(0,)), job("j2", work=6_000), job("j3", queue="none")
    quotas = {"j1": {"owner ann": 1}, "j2": {"owner ann": 1}, "j3": {"queue none": 0}}
    told = forecast([first, second, never], CLUSTER, "fifo", 0.0, quotas.__getitem__)
    assert told["j2"]["start_s"][0] >= told["j1"]["finish_s"][0]
    assert "j3" not in told


def test_a_forecast_knows_whose_turn_it_is():
    """One that has waited for long needs all slots, of which commands that run hold three."""
    holder = job("j1", elastic=False, slots=(0, 1, 2), min_slots=3, max_slots=3)
    wide = job("j2", elastic=False, min_slots=4, max_slots=4)
    later = [job(f"n{i}", elastic=False, min_slots=1, max_slots=1) for i in range(8)]
    later = [submitted(one, 100.0) for one in later]  # ten seconds ago
    holder = replace(holder, target_since_s=50.0)
    told = forecast([holder, wide, *later], CLUSTER, "geminid:gap=0", 110.0, patience_s=100.0)
    assert told["j2"]["expected_start_s"] == pytest.approx(60.0, abs=2.0)  # as long as the others have run
    assert told["j2"]["expected_start_s"] < max(told[one.id]["expected_start_s"] for one in later)
    assert waiting_order([wide, *later], told)[0] == "j2"


def test_a_plain_command_is_a_guess_and_makes_guesses_of_those_behind_it():
    plain = job("j1", elastic=False, slots=(0,), max_slots=1)
    told = forecast([plain, job("j2")], Cluster.parse("cpu:1x1"), "fifo", 100.0)
    assert told["j1"]["guessed"]
    assert told["j2"]["guessed"]
    assert told["j1"]["unlike"]
    assert not told["j2"]["unlike"]  # it was measured
    early, late = told["j1"]["finish_s"]
    assert late / early > 5


def test_a_command_ends_when_its_budget_does_at_the_latest():
    found = forecast([job("j1", elastic=False, min_slots=2, max_slots=2, budget_gpu_s=30.0)], CLUSTER, "fifo", 0.0)
    assert max(found["j1"]["finish_s"]) == pytest.approx(15.0, abs=1.0)


def test_a_what_if_leaves_out_what_is_done_and_what_must_not_run():
    halfway = job("j1", slots=(0,))
    started = halfway.state.move(JobPhase.STARTING, at_s=1.0, placement=Placement.of({"cpu-0": [0]}))
    halfway = replace(halfway, state=started.advance(at_s=2.0, progress_samples=3_000.0), samples=4_000)
    paused = replace(job("j2"), wish="pause")
    world = what_if([halfway, paused], CLUSTER, 2.0)
    assert [trace.name for trace in world.workload.jobs] == ["j1"]
    assert world.applications["j1"].total_steps == pytest.approx(6_000 / 32)
    assert halfway.limits is not None
    by_progress = replace(halfway, limits=replace(halfway.limits, by_progress=True))
    assert what_if([by_progress], CLUSTER, 2.0).applications["j1"].total_steps == pytest.approx(7_000 / 32)


def test_an_epoch_has_its_samples_at_any_batch_and_time_between_steps_counts():
    """A job that counts epochs ends after so many samples; a large batch makes less of them, but is no slower."""
    noisy = replace(job("j1", work=32_001, slots=(0,), max_slots=1), gradient=GradientStats(1.0, 1.0))
    running = replace(noisy, stretches=(Stretch("cpu", 1, 32, 0, 1.5 * 10 * 0.32, 10),))
    application = what_if([running], CLUSTER, 0.0).applications["j1"]
    assert application.total_steps == pytest.approx(1_000)
    assert application.speed_divisor == pytest.approx(1.5, rel=0.02)
    early, late = forecast([running], CLUSTER, DEFAULT_POLICY, 0.0)["j1"]["finish_s"]
    assert early < 1.5 * 320 < late  # at a hundred samples a second, whatever batch is chosen


def test_a_job_that_has_not_run_starts_and_trains_as_one_that_was_like_it():
    before = replace(job("j1"), stretches=(Stretch("cpu", 1, 32, 0, 1.5 * 10 * 0.32, 10),))
    before = before.with_story(1.0, "starting on 1 slot").with_story(8.0, "training on 1 slot")
    state = JobState.submitted(job_id="j2", spec=before.spec, at_s=10.0)
    new = replace(before, state=state, samples=0, stretches=(), story=())
    application = what_if([before, new], CLUSTER, 20.0).applications["j2"]
    assert application.speed_divisor == pytest.approx(1.5, rel=0.02)
    assert application.start_up_s == 7.0


def test_explanations_name_the_numbers():
    engine = Engine(CLUSTER, Fifo(), ModelKeeper())
    holder = job("j1", slots=(0, 1, 2), owner="ann", min_slots=3, max_slots=3)
    for one in (holder, job("j2", min_slots=2)):
        engine.models.add_profile(one.id, "cpu", PROFILE)
        engine.restore(view_of(one, CLUSTER, 5.0))
    engine.policy.needs_models = True
    waiting = explain(engine.view(), "j2", prices={"cpu": 0.5}, quotas=[Quota("owner bob", 9, 2)])
    assert waiting is not None
    assert waiting.reason == "all but 1 of 4 slots are held by 1 other job"
    assert "it needs 2 slots; 1 of 4 usable is free" in waiting.numbers
    assert any("j1 (ann) holds 3 slots" in number for number in waiting.numbers)
    assert "the quota of owner bob is 9 slots, of which 2 are used" in waiting.numbers
    for slots, used, told, hint in (
        (4, 3, "the quota of owner bob is 4 slots, of which 3 are used", ""),
        (
            4,
            6,
            "the quota of owner bob is 4 slots, and 6 are used: commands that run are left alone until they end",
            "",
        ),
        (1, 0, "it needs 2 slots, and the quota of owner bob is 1: it cannot start", "geminid quota owner bob 2"),
    ):
        limited = explain(engine.view(), "j2", quotas=[Quota("owner bob", slots, used)])
        assert limited is not None
        if hint:
            assert limited.reason == told
            assert any(hint in suggestion for suggestion in limited.suggestions)
        else:  # one slot is free, and it needs two: a higher quota alone brings it nothing
            assert limited.reason == f"{told}; besides, all but 1 of 4 slots are held by 1 other job"
            wait = "it can start when other jobs of owner bob end or shrink, and at least 1 more slot is free"
            assert limited.suggestions == (wait,)
    borrowed = Quota("owner bob", 1, 2, borrow=True).sentence()
    assert (
        borrowed
        == "the quota of owner bob is 1 slot, all used, and 1 more slot is borrowed while nobody else can use it"
    )
    wanting = (
        "it can start when at least 1 more slot is free; j1 (3 slots) is as small as can be and must end or give way"
    )
    assert waiting.suggestions[0] == wanting
    assert "let it run on fewer slots (geminid set j2 --min-slots 1)" in waiting.suggestions
    speeds = {size.slots: size.goodput for size in waiting.sizes}
    assert set(speeds) == {2, 3, 4}
    assert speeds[4] > 1.5 * speeds[2]
    never = explain(engine.view(), "j2", cordoned={"j1": 3})
    assert never is not None
    assert never.reason == "it needs 2 slots, and only 1 of 4 are in service"
    held = explain(engine.view(), "j1")
    assert held is not None
    assert held.reason == "its size is fixed"
    assert explain(engine.view(), "nobody") is None


def test_a_higher_quota_is_suggested_only_where_there_are_slots_for_it():
    engine = Engine(CLUSTER, Fifo(), ModelKeeper())
    for one in (job("j1", slots=(0, 1), min_slots=2, max_slots=2), job("j2", min_slots=2)):
        engine.restore(view_of(one, CLUSTER, 5.0))
    limited = explain(engine.view(), "j2", quotas=[Quota("owner bob", 3, 2)])
    assert limited is not None
    assert limited.reason == "the quota of owner bob is 3 slots, of which 2 are used"
    assert "have the quota raised (geminid quota owner bob 4)" in limited.suggestions
    wider = explain(engine.view(), "j2", quotas=[Quota("owner bob", 3, 2), Quota("queue default", 4, 3)])
    assert wider is not None
    assert "quota raised" not in " ".join(wider.suggestions)  # the second would have to be five, of four slots
    engine.restore(view_of(job("j3", slots=(2, 3), max_slots=4), CLUSTER, 5.0))
    full = explain(engine.view(), "j3", quotas=[Quota("owner bob", 4, 4)])
    assert full is not None
    assert full.reason.endswith("none are left to grow into; besides, no slot is free")
    assert full.suggestions == ()


def test_explanations_know_of_sizes_on_several_nodes():
    cluster = Cluster.parse("cpu:3x4")
    engine = Engine(cluster, Fifo(), ModelKeeper())
    one = replace(job("j1", max_slots=11), target=Placement.of({"cpu-0": (0, 1, 2), "cpu-1": (0, 1, 2)}))
    engine.models.add_profile("j1", "cpu", PROFILE)
    engine.restore(view_of(one, cluster, 5.0))
    engine.policy.needs_models = True
    told = explain(engine.view(), "j1")
    assert told is not None
    assert {size.slots: size.nodes for size in told.sizes} == {1: 1, 2: 1, 3: 1, 4: 1, 6: 2, 8: 2, 11: 3}
    assert [size.slots for size in told.sizes if size.current] == [6]
    assert any(number.startswith("on 6 slots its model predicts") for number in told.numbers)
    assert "more slots would not make it faster" not in told.reason


def test_a_policy_without_models_is_not_said_to_measure_speeds():
    engine = Engine(CLUSTER, Fifo(), ModelKeeper())
    engine.restore(view_of(job("j1", slots=(0,)), CLUSTER, 5.0))
    told = explain(engine.view(), "j1", levers=Levers(size_follows_speed=False))
    assert told is not None
    assert told.reason == "the policy gives jobs their sizes without regard to their speeds"
    assert told.suggestions == ()


def test_who_cannot_grow_because_nobody_can_shrink_is_told_so():
    engine = Engine(CLUSTER, Fifo(), ModelKeeper())
    engine.policy.needs_models = True
    for one in (job("j1", slots=(0,)), job("j2", slots=(1, 2, 3), min_slots=3, max_slots=3)):
        engine.models.add_profile(one.id, "cpu", PROFILE)
        engine.restore(view_of(one, CLUSTER, 5.0))
    told = explain(engine.view(), "j1")
    assert told is not None
    assert told.reason == "no slot is free, and j2 (3 slots) is as small as can be"
    assert told.suggestions == ("it can grow when one of them ends",)


def test_operators_see_prices_certificate_and_wishes() -> None:
    engine = Engine(Cluster.parse("cpu:2x2"), policy := Geminid(economy=0.5, gap_s=0.0), ModelKeeper("pollux"))
    assert market_document(policy, engine.cluster) == {"prices": {}, "gap": None, "wishes": []}
    for name in "abcdefgh":
        engine.handle(Submitted(0.0, JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=2)))
    told = market_document(policy, engine.cluster)
    assert told["prices"]["cpu"] > 0
    assert 0 <= told["gap"] < 0.1
    assert "of their best goodput per dollar" in told["wishes"][0]["reason"]
    assert market_document(policy, Cluster.parse("cpu:2x2,t4:1x4"))["prices"] == {}
    assert market_document(Fifo(), engine.cluster) == {"prices": {}, "gap": None, "wishes": []}


class Foretelling(Forecaster):
    """Of a service that has these jobs at ten o'clock; it foretells the same for j1 whatever it is, once it may."""

    def __init__(self, *jobs: LiveJob, start_s: tuple[float, float] | None = (1.0, 2.0)) -> None:
        self.published = SimpleNamespace(state=ServiceState(seq=1, jobs={one.id: one for one in jobs}))
        self.now_s, self.made_at, self.may, self.start_s = 10.0, list[float](), Event(), start_s
        self.may.set()
        clock = SimpleNamespace(now_s=lambda: self.now_s, monotonic_s=time.monotonic)
        super().__init__(SimpleNamespace(published=self.published, clock=clock))  # type: ignore[arg-type]

    def _forecast(self, state, now_s):
        self.may.wait(10.0)
        self.made_at.append(now_s)
        return {"j1": {"start_s": self.start_s, "finish_s": (3.0, 4.0), "guessed": False, "unlike": False}}

    def look(self) -> None:
        asyncio.run(self.freshen())
        while self._busy and self.may.is_set():  # it took longer than anybody waits for
            time.sleep(0.001)

    def change(self, one: LiveJob) -> None:
        state = self.published.state
        self.published.state = ServiceState(seq=state.seq + 1, jobs={**state.jobs, one.id: one})


def test_a_forecast_is_made_anew_for_whoever_looks_also_where_nothing_has_happened(monkeypatch):
    """A job of which nothing is known is expected to run for as long again as it has: more with every look."""
    monkeypatch.setattr("geminid.serve.forecaster.EVERY_S", 0.0)
    monkeypatch.setattr("geminid.serve.forecaster.SHARE_OF_TIME", math.inf)  # however busy the machine is
    one = job("j1", slots=(0,))
    forecaster = Foretelling(one, start_s=None)
    for now_s in (10.0, 20.0):
        forecaster.now_s = now_s
        forecaster.look()
        assert forecaster.of(one, now_s)["eta"]["finish_at_s"] == [now_s + 3.0, now_s + 4.0]


def test_a_forecast_is_told_with_its_age_for_as_long_as_the_job_stands_as_it_did():
    waits = job("j1")
    forecaster = Foretelling(waits, job("j2"))
    assert forecaster.of(waits, 10.0) == {"eta": None, "eta_missing": "being computed"}
    forecaster.look()
    told = {"start_at_s": [11.0, 12.0], "finish_at_s": [13.0, 14.0], "guessed": False, "age_s": 0.0}
    assert forecaster.of(waits, 10.0) == {"eta": told, "eta_missing": None}
    assert forecaster.of(job("j2"), 10.0) == {"eta": None, "eta_missing": "unknown"}
    later = {**told, "start_at_s": [11.5, 12.0], "age_s": 1.5}  # nothing that is to come lies in the past
    assert forecaster.of(waits, 11.5)["eta"] == later
    assert forecaster.of(waits, 12.5)["eta"]["start_at_s"] == [12.5, 12.5]
    forecaster._last = replace(forecaster._last, ready_s=forecaster._last.ready_s - 600.0)  # nobody has looked for long
    assert forecaster.of(waits, 11.5)["eta"] == later
    assert forecaster.of(waits, 12.5) == {"eta": None, "eta_missing": "being computed"}  # it has turned out wrong
    paused = replace(waits, wish="pause")
    assert forecaster.of(paused, 10.0) == {"eta": None, "eta_missing": None}
    failed = replace(waits, state=replace(waits.state, failures=1))
    started = replace(job("j1", slots=(0,)), target_since_s=11.0)
    for other in (started, failed, job("j1", priority=1), job("j1", max_slots=2)):
        assert forecaster.of(other, 11.5) == {"eta": None, "eta_missing": "being computed"}


def test_whoever_looks_when_a_job_has_changed_waits_for_the_forecast_of_what_it_is_now():
    waits = job("j1")
    forecaster = Foretelling(waits)
    forecaster.look()
    started = replace(job("j1", slots=(0,)), target_since_s=11.0)
    forecaster.change(started)
    forecaster._last = replace(forecaster._last, took_s=30.0)  # the machine was busy, or stood still
    forecaster.now_s, forecaster.start_s = 11.5, None
    forecaster.look()
    told = forecaster.of(started, 12.0)["eta"]
    assert told == {"start_at_s": None, "finish_at_s": [14.5, 15.5], "guessed": False, "age_s": 0.5}
    assert forecaster.of(waits, 12.0)["eta"] is None


def test_whoever_looks_while_jobs_come_all_the_time_waits_for_one_forecast():
    class Growing(Foretelling):
        def _forecast(self, state, now_s):
            self.change(job(f"j{2 + len(self.made_at)}"))
            return super()._forecast(state, now_s)

    forecaster = Growing(job("j1"))
    forecaster.look()
    forecaster.now_s = 12.0
    forecaster.look()
    assert forecaster.made_at == [10.0, 12.0]


def test_on_a_busy_machine_the_last_forecast_is_told_until_the_next_is_ready(monkeypatch):
    monkeypatch.setattr("geminid.serve.forecaster.LATE_WAIT_S", 0.05)
    runs = job("j1", slots=(0,))
    forecaster = Foretelling(runs, start_s=None)
    forecaster.look()
    forecaster._last = replace(forecaster._last, ready_s=forecaster._last.ready_s - 600.0)
    forecaster.now_s = 12.0
    forecaster.may.clear()
    forecaster.look()
    assert forecaster.of(runs, 12.0)["eta"]["age_s"] == 2.0
    forecaster.may.set()
    forecaster.look()
    assert forecaster.of(runs, 12.0)["eta"]["age_s"] == 0.0


def test_how_often_forecasts_are_made_follows_from_what_they_compute_not_from_how_long_they_waited_for_a_processor():
    waited = Made(jobs={"j1": {}}, ready_s=100.0, took_s=3.0, computed_s=0.1)
    assert waited.may_follow(changed=False) == 102.0
    assert waited.may_follow(changed=True) == pytest.approx(100.25)
    assert replace(waited, computed_s=1.0).may_follow(changed=False) == 110.0
    assert not waited.is_late(112.0)
    assert waited.is_late(113.0)


def test_a_what_if_is_told_what_a_change_of_slots_costs():
    jobs = [job("j1", work=6_000, max_slots=1), job("j2", elastic=False)]
    ends = []
    for rescale_s in (1.0, 31.0):
        world = what_if(jobs, CLUSTER, 50.0, rescale_s=rescale_s)
        assert [one.submit_s for one in world.workload_from_now.jobs] == [0.0, 0.0]
        ends.append({one.facts.id: one.completed_s for one in world.simulator(CLUSTER, Fifo()).run().jobs})
    assert ends[1]["j1"] - ends[0]["j1"] == pytest.approx(30.0)
    assert ends[1]["j2"] == ends[0]["j2"]  # a plain command never changes


def test_intervals_shrink_while_a_job_trains_as_its_model_says_and_grow_where_it_does_not():
    def finish(*stretches: Stretch) -> tuple[float, float]:
        return forecast([replace(job("j1", slots=(0,)), stretches=stretches)], CLUSTER, DEFAULT_POLICY, 0.0)["j1"][
            "finish_s"
        ]

    def width(*stretches: Stretch) -> float:
        soon, late = finish(*stretches)
        return late / soon

    as_told = [Stretch("cpu", slots, 8, 0, seconds=800.0, steps=10_000) for slots in (1, 2)]
    twice_as_long = replace(as_told[1], seconds=1600.0)
    assert width(*as_told) < 1.2 < width() < width(as_told[0], twice_as_long)


def test_a_job_is_never_foretold_more_closely_than_its_machine_allows():
    assert uncertainty([(1e6, 1e6)]) == LEAST_ERROR
    assert uncertainty([]) > uncertainty([(30.0, 30.0)]) > LEAST_ERROR
    assert uncertainty([(30.0, 30.0), (30.0, 60.0)]) > uncertainty([])


def test_a_job_that_could_not_start_is_not_of_unknown_fate_when_it_may_again():
    """Its node was drained when the forecast was made, and takes work again: the next forecast will know."""
    waits = job("j9")
    forecaster = Foretelling(job("j1"), waits)  # which foretells nothing of j9
    forecaster.look()
    assert forecaster.of(waits, 10.0)["eta_missing"] == "unknown"
    forecaster.published.state = replace(forecaster.published.state, seq=2, drained=frozenset({"n1"}))
    assert forecaster.of(waits, 10.0)["eta_missing"] == "being computed"
    forecaster.look()
    assert forecaster.of(waits, 10.0)["eta_missing"] == "unknown"
