"""The geminid policy: its objective by hand, what it knows of remaining work, and everybody's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import sub
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.plan import Plan, make_plan
from geminid.fields import InvalidInput
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.job import Adaptivity
from geminid.policies.autoscale import wishes
from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, JobView, slots_of
from geminid.policies.claims import FairShares, Queue, Used, deadline_factors, finish_time_factors, priority_factors
from geminid.policies.geminid import Geminid
from geminid.policies.geminid_objective import (
    JobArrays,
    Objective,
    Ranking,
    rank,
    ranking_by_pauses,
    restart_share,
    slowest,
    values_of_work,
)
from geminid.policies.registry import make_policy
from geminid.policies.remaining import RemainingWork, expected_left
from geminid.sim.profiles import built_in_applications
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workloads.generate import ApplicationShare, SizeCategory, generate_workload

LIMITS = BatchLimits(initial=128, largest=4096, smallest_per_slot=32, largest_per_slot=1024)


def model(*gpu_types: str, sync_s: float = 0.02) -> JobModel:
    """A job that takes 0.1 s + 1 ms a sample, and synchronises in this time, twice as long across nodes."""
    fitted = ThroughputFit("pollux", (0.1, 0.001, 2 * sync_s, 0.002, sync_s, 0.001, 2.0), "fitted", 0.0, 8)
    types = gpu_types or ("t4",)
    return JobModel(dict.fromkeys(types, fitted), dict.fromkeys(types, LIMITS), GradientStats(1.0, 8.0))


def job(name: str, *, allocation: Allocation = (), progress: float = 0.0, **changes: Any) -> JobView:
    known = changes.pop("model", model())
    view = {key: changes.pop(key) for key in ("restarts", "service_before_gpu_s", "gpu_type") if key in changes}
    facts: dict[str, Any] = {
        "submitted_s": 0.0,
        "requested_slots": 1,
        "max_slots": 64,
        "limits": known.limits,
        "work": 1e6,
    }
    return JobView(
        facts=JobFacts(id=name, **(facts | changes)),
        allocation=allocation,
        slots=slots_of(allocation),
        since_s=600.0,
        most_slots_measured=64,
        progress=progress,
        model=known,
        **({"gpu_type": "t4" if allocation else None} | view),
    )


def view(*jobs: JobView, cluster: str = "t4:4x4", now_s: float = 600.0, down: tuple[int, ...] = ()) -> ClusterView:
    parsed = Cluster.parse(cluster)
    usable = tuple(0 if n in down else int(slots) for n, slots in enumerate(parsed.node_slots))
    held = [sum(dict(job.allocation).get(n, 0) for job in jobs) for n in range(len(usable))]
    return ClusterView(now_s, parsed, jobs, usable, tuple(map(sub, usable, held)))


def slots(decision: Decision) -> dict[str, int]:
    return {j: c.slots if isinstance(c, Configuration) else slots_of(c) for j, c in decision.assignments.items()}


def opaque(name: str, size: int = 1, **changes: Any) -> JobView:
    facts = {"requested_slots": size, "min_slots": size, "max_slots": size, "adaptivity": Adaptivity.RIGID}
    return job(name, model=JobModel({}, {}), limits={}, work=None, **(facts | changes))


# --- The objective ---


def arrays(count: int, **changes: Any) -> JobArrays:
    zeros, nobody = np.zeros(count), np.zeros((count, 2), dtype=bool)
    values = {
        "weight": np.ones(count),
        "left_s": np.full(count, 1000.0),
        "age_s": np.full(count, 1e6),
        "restarts": zeros,
        "rescale_s": zeros,
        "pause_left_s": zeros,
        "current": nobody,
    }
    return JobArrays(**(values | changes))


def test_jobs_count_by_the_rank_of_what_they_have_left() -> None:
    assert rank(np.array([5.0, 50.0, 1.0, 50.0])).tolist() == [0.75, 0.25, 1.0, 0.5]
    found = Objective(ranking=Ranking(0.4, 0.4)).utilities(
        arrays(2, left_s=np.array([100.0, 9000.0])), np.array([[2.0, 8.0], [1.0, 0.0]])
    )
    assert found[0] == pytest.approx([1.0, 2.0])
    assert found[1] == pytest.approx([0.5**0.4, -np.inf])


def test_a_pause_is_weighed_against_the_time_for_which_it_pays() -> None:
    objective = Objective(ranking=Ranking(0.4, 0.4), pause_power=1.0, restart_power=0.0)
    goodput = np.array([[1.0, 4.0]])
    stays = np.array([[True, False]])
    changed = arrays(1, current=stays, rescale_s=np.array([30.0]), left_s=np.array([1000.0]))
    assert objective.utilities(changed, goodput)[0] == pytest.approx([1.0, 2.0 * (1 - 30 / 280)], rel=1e-5)
    long = replace(changed, left_s=np.array([1e6]))
    assert objective.utilities(long, goodput)[0] == pytest.approx([1.0, 2.0 * (1 - 30 / 600)], rel=1e-5)
    ending = replace(changed, left_s=np.array([1.0]))
    assert objective.utilities(ending, goodput)[0] == pytest.approx([1.0, 2.0 * (1 - 30 / 90)], rel=1e-5)
    ends_sooner = replace(changed, rescale_s=np.array([300.0]))
    stay, move = Objective(ranking=Ranking(0.4, 0.4)).utilities(ends_sooner, goodput**2)[0]
    assert move > stay, "a job that would be done sooner after a pause longer than what is left of it moves"
    pausing = replace(changed, pause_left_s=np.array([15.0]))
    assert objective.utilities(pausing, goodput)[0, 0] == pytest.approx(1 - 15 / 600, rel=1e-5)


def test_the_longer_nobody_came_the_further_it_looks_ahead() -> None:
    """A quarter more slots do not pay for this pause while jobs keep coming, and do when that seems to be over."""
    running = job("a", allocation=((0, 4), (1, 4), (2, 4)), rescale_s=600.0, work=1e12)
    assert slots(Geminid().decide(view(running, now_s=600.0))) == {"a": 12}
    assert slots(Geminid().decide(view(running, now_s=86400.0))) == {"a": 16}
    late = opaque("b", submitted_s=86300.0)
    assert slots(Geminid().decide(view(running, late, now_s=86400.0))) == {"a": 12, "b": 1}
    policy = Geminid()
    policy.decide(view(running, late, now_s=86400.0))
    assert slots(policy.decide(view(running, now_s=86500.0))) == {"a": 12}, "who has come and gone has come"


def test_jobs_that_were_changed_often_are_changed_less_gladly() -> None:
    many = arrays(1, age_s=np.array([1000.0]), restarts=np.array([10.0]), rescale_s=np.array([50.0]))
    ahead_s = np.array([600.0])
    assert restart_share(many, ahead_s)[0] == pytest.approx(1 - 500 / 1600)
    assert restart_share(replace(many, restarts=np.array([0.0]), age_s=np.array([10.0])), ahead_s)[0] == 1.0
    assert restart_share(replace(many, restarts=np.array([100.0])), ahead_s)[0] == 0.0
    young = replace(many, restarts=np.array([1.0]), age_s=np.array([60.0]))
    assert restart_share(young, ahead_s)[0] > 0.9, "a young job is not held where it happened to start"


def test_the_slowest_configuration_is_the_unit_and_nothing_is_one() -> None:
    assert slowest(np.array([[3.0, 0.0, 2.0], [0.0, 0.0, 0.0]])).tolist() == [2.0, 1.0]


# --- Remaining work ---


def test_what_is_left_is_what_was_told_less_what_is_done_and_never_nothing() -> None:
    told = np.full(4, 100.0)
    left = expected_left(told, np.array([0.0, 50.0, 99.0, 200.0]), 0.1)
    assert left[:2] == pytest.approx([100.0, 50.0], rel=0.02)
    assert 1.0 < left[2] < 20.0
    assert left[3] >= 25.0
    assert (np.diff(expected_left(np.full(50, 100.0), np.linspace(0, 90, 50), 0.3)) < 0).all()


def test_it_learns_how_wrong_estimates_are() -> None:
    known = RemainingWork()
    before = known.error
    known.learn([job("a", progress=1e6), job("b", progress=1e6)])
    assert known.error < before
    known.learn([job(f"j{i}", progress=1e6 * float(np.exp(z))) for i, z in enumerate([-1.0, 1.0] * 30)])
    assert known.error == pytest.approx(1.0, rel=0.15)


def test_who_told_nothing_has_as_much_left_as_is_done_in_steps() -> None:
    known = RemainingWork()
    done = (0.0, 5000.0, 19000.0, 35000.0, 37000.0, 400000.0)
    left = known.seconds([job(f"j{p:g}", work=None, progress=p) for p in done], np.full(len(done), 10.0), 0.0)
    assert left == pytest.approx([1800.0 * lengths for lengths in (1, 1, 2, 2, 3, 17)])
    assert (np.diff(left) > 0).all()  # of those that are as long for all that is known, whoever came first goes first
    for _ in range(200):
        known.learn([job("old", progress=200.0)])
        known.seconds([job("old", work=None)], np.array([10.0]), 0.0)
    assert known.seconds([job("new", work=None)], np.array([10.0]), 0.0)[0] < 300.0


# --- Decisions ---


def test_it_uses_the_cluster_and_favours_whom_little_is_left() -> None:
    found = slots(Geminid().decide(view(job("short", work=1e6, submitted_s=599.0), job("long", work=1e8))))
    assert sum(found.values()) == 16
    assert found["short"] >= found["long"]


@pytest.mark.parametrize(("limits", "expected"), [({"max_slots": 3}, 3), ({"max_slots": 5, "min_slots": 5}, 5)])
def test_a_job_may_have_what_its_owner_says_though_that_is_no_power_of_two(
    limits: dict[str, int], expected: int
) -> None:
    alone = view(job("a", work=1e7, **limits), cluster="t4:1x6")
    assert slots(Geminid().decide(alone)) == {"a": expected}


def test_a_running_job_moves_only_for_more_than_its_pause_costs() -> None:
    running = job("a", allocation=((0, 4),), rescale_s=500.0, work=1e5)
    assert slots(Geminid().decide(view(running)))["a"] == 4
    cheap = job("a", allocation=((0, 4),), rescale_s=0.0, work=1e7)
    assert slots(Geminid().decide(view(cheap)))["a"] > 4


def test_between_decisions_nothing_changes_but_who_has_to_move_does() -> None:
    policy = Geminid(gap_s=10.0)
    policy.decide(view(job("a", allocation=((0, 4),))))
    again = policy.decide(view(job("a", allocation=((0, 4),)), job("b"), now_s=603.0))
    assert again.assignments == {"a": ((0, 4),)}
    assert again.wake_at_s == 610.0
    assert slots(policy.decide(view(job("a", allocation=((0, 4),)), now_s=604.0, down=(0,))))["a"] >= 4


def test_free_slots_are_given_within_the_gap_to_whom_they_are_enough() -> None:
    policy = Geminid(gap_s=10.0, fill=True, queues=("few:1:4:4",))
    running = job("a", allocation=((0, 4), (1, 4)), rescale_s=1e4)
    policy.decide(view(running))
    jobs = [running, opaque("wide", 12), opaque("b", 2), *(opaque(f"c{i}", queue="few") for i in range(8))]
    filled = policy.decide(view(*jobs, now_s=603.0))
    assert filled.assignments["a"] == ((0, 4), (1, 4))
    assert slots(filled)["b"] == 2
    assert "wide" not in filled.assignments
    assert len(filled.assignments) == 2 + 4  # and four of the queue that may have four slots
    assert isinstance(make_plan(filled, view(*jobs, now_s=603.0), {job.id: job for job in jobs}), Plan)


def test_decisions_come_with_a_certificate_and_prices() -> None:
    policy = Geminid()
    policy.decide(view(*(job(f"j{i}") for i in range(20))))
    assert policy.solution is not None
    assert policy.solution.gap < 0.05
    assert policy.solution.prices.types[0] > 0


def test_all_decisions_can_be_carried_out() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        jobs = [job(f"j{i}", work=float(rng.uniform(1e4, 1e8))) for i in range(rng.integers(1, 40))]
        jobs += [opaque(f"o{i}", int(rng.integers(1, 4))) for i in range(rng.integers(0, 4))]
        now = view(*jobs)
        assert isinstance(make_plan(Geminid().decide(now), now, {j.id: j for j in jobs}), Plan)


# --- Claims ---


def test_of_jobs_of_which_nothing_is_known_those_go_first_that_came_first() -> None:
    decision = Geminid().decide(view(*(opaque(f"j{i}") for i in range(20))))
    assert sorted(decision.assignments) == sorted(f"j{i}" for i in range(16))


def test_priorities_go_first() -> None:
    jobs = [opaque(f"j{i}") for i in range(20)]
    important = opaque("vip", priority=1, submitted_s=599.0)
    assert "vip" in slots(Geminid().decide(view(*jobs, important)))
    assert len(Geminid().decide(view(*jobs, important)).assignments) == 16


def test_the_highest_priority_is_a_number() -> None:
    jobs = [job("first", priority=1000), job("last", priority=-1000)]
    factors = priority_factors(jobs)
    assert np.isfinite(factors).all()
    assert factors[0] > 1e6 * factors[1] > 0


def test_the_longest_of_many_jobs_are_not_worth_ever_less() -> None:
    many = arrays(100, left_s=np.arange(100.0, 0.0, -1.0))
    worth = Objective(ranking=Ranking(0.4, 0.2)).utilities(many, np.ones((100, 2)))[:, 0]
    assert worth[:11] == pytest.approx(np.full(11, 0.2**0.4), rel=1e-5)
    assert worth[99] == pytest.approx(1.0, rel=1e-5)
    assert (np.diff(worth) > 0).all(), "among equals, whoever has less left goes first"


def test_the_order_of_what_is_left_is_followed_more_closely_where_changes_are_cheap() -> None:
    dear, free = Ranking(0.4, 0.4), Ranking(0.8, 0.2)
    assert ranking_by_pauses(dear, free, np.array([30.0, 45.0, 250.0])) == dear
    assert ranking_by_pauses(dear, free, np.array([0.0, 0.0, 250.0])) == free, "what most of the jobs would pay counts"
    assert ranking_by_pauses(dear, free, np.array([15.0])) == pytest.approx((0.6, 0.3))
    counts = {}
    for pause_s in (1.0, 30.0):
        policy = Geminid()
        policy.decide(view(*(job(f"j{i}", work=1e6 * (i + 1), rescale_s=pause_s) for i in range(10))))
        counts[pause_s] = [policy.factors(f"j{i}")["little left"] for i in range(10)]
    assert counts[1.0][0] == pytest.approx(counts[30.0][0])
    assert all(cheap < dear for cheap, dear in zip(counts[1.0][1:], counts[30.0][1:], strict=True))


def test_nobody_waits_for_ever() -> None:
    waited = opaque("old", submitted_s=-1e5)
    fresh = [opaque(f"j{i}", submitted_s=599.0, weight=5.0) for i in range(20)]
    assert "old" not in slots(Geminid(ratio=0.0).decide(view(*fresh, waited)))
    assert "old" in slots(Geminid().decide(view(*fresh, waited)))
    ages, ones = np.array([0.0, 990.0, 30.0, 1e9]), np.ones(4)
    factors = finish_time_factors(ages, 0 * ones, 10 * ones, ones, np.array([1.0, 1.0, 8.0, 8.0]), 2.0)
    assert factors == pytest.approx([1.0, 2500.0, 4.0 * 8.0, 1e9])


@pytest.mark.parametrize("adaptivity", [Adaptivity.RIGID, Adaptivity.ADAPTIVE])
def test_a_job_that_needs_many_slots_gets_its_turn(adaptivity: Adaptivity) -> None:
    """Beside fresh jobs without end, each of which is worth as much on one slot as it on its eight."""
    fresh = [opaque(f"j{i}", submitted_s=599.0) for i in range(20)]
    served = {}
    for days in (0.0, 2.0):
        since = {"submitted_s": 600.0 - 86400.0 * days, "min_slots": 8}
        wide = opaque("wide", 8, **since) if adaptivity is Adaptivity.RIGID else job("wide", **since, work=2e4)
        served[days] = "wide" in slots(Geminid().decide(view(*fresh, wide)))
    assert served == {0.0: False, 2.0: True}


def test_jobs_of_unknown_size_do_not_take_turns() -> None:
    """They fall behind the others by what they have done, but not so soon that a pause for it would be lost."""
    policy, now_s, changes = Geminid(), 600.0, 0
    jobs = [opaque(f"j{i}", rescale_s=10.0) for i in range(20)]
    for _ in range(20):
        given = slots(policy.decide(view(*jobs, now_s=now_s)))
        changes += sum(bool(one.allocation) != (one.id in given) for one in jobs)
        free = iter([(node, 1) for node in range(4) for _ in range(4)])
        now_s += 60.0
        jobs = [
            replace(
                one,
                allocation=(next(free),) if one.id in given else (),
                slots=int(one.id in given),
                gpu_type="t4" if one.id in given else None,
                progress=one.progress + 60.0 * (one.id in given),
            )
            for one in jobs
        ]
    assert changes == 16  # the first sixteen have started


def test_queues_lend_what_they_do_not_need_and_get_it_back() -> None:
    policy = Geminid(queues=("a:1:8", "b:1:8"))
    of_a = [opaque(f"a{i}", queue="a") for i in range(20)]
    of_b = [opaque(f"b{i}", queue="b") for i in range(20)]
    assert len(slots(policy.decide(view(*of_a)))) == 16
    shared = slots(Geminid(queues=("a:1:8", "b:1:8")).decide(view(*of_a, *of_b)))
    assert sum(name.startswith("a") for name in shared) == 8
    some = slots(Geminid(queues=("a:1:8", "b:1:8")).decide(view(*of_a, *of_b[:3])))
    assert sum(name.startswith("b") for name in some) == 3
    assert len(some) == 16
    capped = slots(Geminid(queues=("a:1:8:10",)).decide(view(*of_a)))
    assert len(capped) == 10


def test_what_is_left_over_is_lent_once_and_quotas_hold_against_anybody() -> None:
    """Queues a and b weigh more and want everything; c is to have its eight slots, of which nobody may lend any."""
    queues = ("a:1:4", "b:1:4", "c:1:8", "d:1:8")
    jobs = [opaque(f"{queue}{i}", queue=queue, priority=int(queue in "abx")) for queue in "abcx" for i in range(24)]
    found = Counter(name[0] for name in slots(Geminid(queues=queues).decide(view(*jobs[:72], cluster="t4:6x4"))))
    assert found["c"] >= 8
    assert found["a"] >= 4
    assert found["b"] >= 4
    assert found.total() == 24
    unlimited = slots(Geminid(queues=("c:1:8",)).decide(view(*jobs[48:], cluster="t4:6x4")))
    assert Counter(name[0] for name in unlimited) == {"c": 8, "x": 16}


@pytest.mark.parametrize("weight", [1.0, 50.0, 1000.0])
def test_a_quota_holds_where_only_some_types_will_do(weight: float) -> None:
    prod = [opaque(f"p{i}", queue="prod", gpu_types=frozenset({"v100"})) for i in range(8)]
    prefers = {"queue": "dev", "preferred_types": frozenset({"v100"}), "weight": weight}
    dev = [opaque(f"d{i}", **prefers) for i in range(16)]
    policy = Geminid(queues=("prod:1:8", "dev:1:8"))
    found = Counter(name[0] for name in slots(policy.decide(view(*prod, *dev, cluster="t4:2x4,v100:2x4"))))
    assert found == {"p": 8, "d": 8}


@pytest.mark.parametrize("half_life_s", [None, 86400.0])
def test_weights_of_queues_count(half_life_s: float | None) -> None:
    jobs = [opaque(f"a{i}", queue="a") for i in range(16)] + [opaque(f"b{i}", queue="b") for i in range(16)]
    found = slots(Geminid(queues=("a:1", "b:50"), half_life_s=half_life_s).decide(view(*jobs)))
    assert all(name.startswith("b") for name in found)


def test_the_owners_of_a_queue_share_what_it_is_entitled_to() -> None:
    shares = FairShares(half_life_s=3600.0)
    one = job("one", queue="a", owner="x", service_before_gpu_s=1000.0)
    ten = [job(f"j{i}", queue="b", owner=f"y{i}", service_before_gpu_s=100.0) for i in range(10)]
    shares.update(view(one, *ten))
    assert shares.factors([one, *ten], {}) == pytest.approx(np.ones(11))


@pytest.mark.parametrize("text", ["", ":1", "a:x", "a:0", "a:1:-1", "a:1:2:3:4", "a:nan"])
def test_queues_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="NAME:WEIGHT:QUOTA:LIMIT"):
        Queue.parse(text)


def test_options_are_read() -> None:
    policy = make_policy("geminid:p=0.5,queues=prod:2:8;dev:1,half_life=86400")
    assert isinstance(policy, Geminid)
    assert policy.p == 0.5
    assert policy.queues == ("prod:2:8", "dev:1")


def test_who_has_used_much_lately_counts_less() -> None:
    shares = FairShares(half_life_s=3600.0)
    heavy = job("h", owner="x", allocation=((0, 4),), service_before_gpu_s=9000.0)
    light = job("l", owner="y", service_before_gpu_s=1000.0)
    shares.update(view(heavy, light))
    first = shares.factors([heavy, light], {})
    assert first[0] < 1.0 < first[1]
    assert shares.factors([heavy], {}).tolist() == [1.0]
    shares.update(view(light, now_s=600.0 + 20 * 3600.0))
    assert shares.factors([heavy, light], {})[0] > first[0]


def test_what_was_used_before_counts_and_jobs_say_what_they_count_with() -> None:
    past = [Used("old", "default", "greedy", 1e6, 0.0), Used("a", "default", "modest", 1e3, 600.0)]
    jobs = [opaque("a", owner="modest", weight=3.0), opaque("b", owner="greedy")]
    favours = []
    for half_life_s in (1e5, 100.0):
        policy = Geminid(half_life_s=half_life_s)
        policy.recall(past, 600.0)
        policy.decide(view(*jobs))
        assert policy.factors("a")["priority"] == 3.0
        favours.append(policy.factors("a")["fair share"] / policy.factors("b")["fair share"])
    assert favours[0] > favours[1] > 1.0  # the sooner it is forgotten, the less it counts
    assert policy.factors("nobody") == {}


def test_a_deadline_that_can_be_met_is_urgent() -> None:
    fits = job("d", work=1e6, deadline_s=600.0 + 400.0)
    others = [job(f"j{i}", work=1e6) for i in range(8)]
    urgent = slots(Geminid().decide(view(fits, *others)))
    calm = slots(Geminid().decide(view(replace(fits, facts=replace(fits.facts, deadline_s=None)), *others)))
    assert urgent["d"] > calm["d"]
    assert urgent["d"] >= max(urgent[f"j{i}"] for i in range(8))


def test_a_deadline_is_given_up_little_by_little() -> None:
    """What a job needs at best is an estimate, and more slots than it was measured on may make it after all."""
    late = [job("d", deadline_s=600.0 + left_s) for left_s in (1000.0, 100.0, 99.0, 50.0, 25.0, -1.0)]
    factors = deadline_factors(view(*late), np.full(6, 100.0))
    assert factors == pytest.approx([8**0.1, 8.0, 8 ** ((4 - 100 / 99) / 3), 8 ** (2 / 3), 1.0, 1.0])
    fresh = replace(job("d", deadline_s=600.0 + 400.0), most_slots_measured=1)
    policy = Geminid()
    policy.decide(view(fresh, *(job(f"j{i}") for i in range(30))))
    assert policy.factors("d")["deadline"] > 2.0


def test_a_budget_keeps_a_job_frugal() -> None:
    free = slots(Geminid().decide(view(job("a"))))["a"]
    tight = slots(Geminid().decide(view(job("a", budget_gpu_s=1.0))))["a"]
    assert tight < free


def test_preferred_types_are_taken_where_they_are_as_good() -> None:
    both = model("t4", "v100")
    for name in ("t4", "v100"):
        chosen = Geminid().decide(
            view(job("a", model=both, max_slots=4, preferred_types=frozenset({name})), cluster="t4:1x4,v100:1x4")
        )
        given = chosen.assignments["a"]
        assert isinstance(given, Configuration)
        assert given.gpu_type == name


# --- Autoscaling ---


def test_a_cluster_grows_as_long_as_it_pays() -> None:
    configurations = [Configuration(gpu_type=t, nodes=1, slots=k) for t in ("cheap", "dear") for k in (1, 2, 4)]
    goodput = np.array([[1.0, 1.8, 2.6, 2.0, 3.6, 5.2]] * 3)
    dollars = {"cheap": 1.0, "dear": 10.0}
    frugal = wishes(configurations, goodput, dollars, 0.95)
    assert [(w.gpu_type, w.slots, w.jobs) for w in frugal] == [("cheap", 3, 3)]
    assert frugal[0].goodput_per_dollar == pytest.approx(1.0)
    assert sum(w.slots for w in wishes(configurations, goodput, dollars, 0.3)) == 12
    assert [w.gpu_type for w in wishes(configurations, goodput, dollars, 0.0)] == ["dear"]
    assert "of their best goodput per dollar" in frugal[0].reason
    assert wishes(configurations, 0 * goodput, dollars, 0.5) == []


def test_what_is_scarcest_for_its_cost_is_rented_first() -> None:
    configurations = [Configuration(gpu_type=t, nodes=1, slots=1) for t in ("cheap", "dear", "idle")]
    goodput = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    dollars = {"cheap": 1.0, "dear": 10.0, "idle": 1.0}
    wished = wishes(configurations, goodput, dollars, 0.5, {"cheap": 0.3, "dear": 6.0, "idle": 0.0})
    assert [(w.gpu_type, w.worth_per_dollar) for w in wished] == [
        ("dear", 1.0),
        ("cheap", pytest.approx(0.5)),
        ("idle", 0.0),
    ]
    assert "rented first" in wished[0].reason
    assert "50 % of that" in wished[1].reason
    assert wished[2].reason.endswith("per dollar")


def test_a_small_cluster_may_grow() -> None:
    policy = Geminid(economy=0.0)
    decision = policy.decide(view(job("a"), cluster="t4:1x4"))
    assert decision.desired_nodes == {"t4": 2}
    assert slots(decision) == {"a": 4}


def test_the_policy_wishes() -> None:
    policy = Geminid(economy=0.5)
    decision = policy.decide(view(*(job(f"j{i}") for i in range(40))))
    assert policy.wishes[0].gpu_type == "t4"
    assert policy.wishes[0].worth_per_dollar == 1.0
    assert decision.desired_nodes is not None
    assert decision.desired_nodes["t4"] > 4
    too_soon = policy.decide(view(*(job(f"j{i}") for i in range(40)), now_s=601.0))
    assert too_soon.desired_nodes == decision.desired_nodes


# --- Sharing ---


class HalfBusy:
    """Any two jobs keep four fifths of their speed; those of kind "busy" take turns, and "huge" ones cannot share."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        kinds = {first.kind, second.kind}
        speed = 0.0 if "huge" in kinds else 0.4 if "busy" in kinds else 0.8
        return speed, speed

    def speeds_together(self, jobs: Sequence[JobFacts], gpu_type: str, batches: Sequence[int]) -> NDArray[np.float64]:
        return np.array([[self.relative_speeds(a, b, gpu_type)[0] for b in jobs] for a in jobs])


def sharing_view(*jobs: JobView, now_s: float = 600.0) -> ClusterView:
    return replace(view(*jobs, cluster="t4:1x4", now_s=now_s), sharing=HalfBusy())


def test_jobs_share_where_it_pays() -> None:
    jobs = [opaque(f"j{i}") for i in range(6)]
    decision = Geminid().decide(sharing_view(*jobs))
    assert len(decision.assignments) == 6
    assert len(decision.pairs) == 2
    now = sharing_view(*jobs)
    assert isinstance(make_plan(decision, now, {j.id: j for j in jobs}), Plan)
    assert not Geminid(share=False).decide(sharing_view(*jobs)).pairs
    for kind in ("busy", "huge"):
        assert not Geminid().decide(sharing_view(*(opaque(f"j{i}", kind=kind) for i in range(6)))).pairs
    adaptive = sharing_view(*(job(f"j{i}") for i in range(6)))
    assert not Geminid().decide(adaptive).pairs
    assert Geminid(share_adaptive=True).decide(adaptive).pairs


def test_who_shares_is_told_why_and_the_certificate_covers_it() -> None:
    jobs = [opaque(f"j{i}") for i in range(6)]
    alone, policy = Geminid(share=False), Geminid()
    decision = policy.decide(sharing_view(*jobs))
    alone.decide(sharing_view(*jobs))
    host, guest = decision.pairs[0]
    assert decision.reasons[guest] == (
        f"shares its slots with {host}: both together get 1.60 jobs' work done, this one 80 % of what it would alone"
    )
    assert policy.solution is not None
    assert alone.solution is not None
    assert alone.solution.value < policy.solution.value <= policy.solution.bound


def test_jobs_of_different_quotas_do_not_share() -> None:
    queues = [opaque(f"j{i}", queue=("prod", "dev")[i % 2], kind="") for i in range(8)]
    decision = Geminid(queues=("prod:1:2", "dev:1:2")).decide(sharing_view(*queues))
    assert len(decision.pairs) == 4
    assert all((int(a[1:]) - int(b[1:])) % 2 == 0 for a, b in decision.pairs)


def test_a_pair_lasts_between_decisions() -> None:
    policy = Geminid()
    pair = [
        replace(opaque("a", allocation=((0, 1),)), partner="b"),
        replace(opaque("b", allocation=((0, 1),)), partner="a"),
    ]
    policy.decide(sharing_view(*pair))
    again = policy.decide(sharing_view(*pair, opaque("c"), now_s=601.0))
    assert again.pairs == (("a", "b"),)
    assert set(again.assignments) == {"a", "b"}


# --- Wrong estimates ---


def test_wrong_estimates_and_none_cost_little() -> None:
    """Jobs that err by a log-normal factor, or tell nothing, wait not much longer than where everybody knows."""
    apps = {name: app for name, app in built_in_applications().items() if name in ("neumf-ml20m", "dlrm-small")}
    shares = {name: ApplicationShare(SizeCategory.SMALL) for name in apps}
    workload = generate_workload(
        jobs=12, hours=0.2, seed=3, sizes={SizeCategory.SMALL: 1.0}, slots={1: 1.0}, applications=shares
    )

    def mean_jct_s(error: float | None) -> float:
        settings = Settings(rescale_s=1.0, estimate_error=error, seed=1)
        result = Simulator(workload, apps, Cluster.parse("v100:1x2"), Geminid(), settings).run()
        return sum((job.completed_s or np.inf) - job.facts.submitted_s for job in result.jobs) / len(result.jobs)

    known = mean_jct_s(0.0)
    assert mean_jct_s(0.5) < 1.1 * known
    assert mean_jct_s(1.0) < 1.15 * known
    assert mean_jct_s(None) < 1.4 * known


# --- Weights from prices ---


def test_work_is_worth_its_slots_and_the_delay_that_it_ends() -> None:
    """On one and four slots, at a quarter of a job's delay per slot: (1 + 0.25)/1 or (1 + 1)/2, whichever is less."""
    speedup = np.array([[1.0, 2.0], [1.0, 1.0], [0.0, 0.0]])
    rents = np.array([0.25, 1.0])
    assert values_of_work(speedup, rents, np.ones(3)).tolist() == [1.0, 1.25, 1.0]
    assert values_of_work(speedup, rents, np.zeros(3)).tolist() == [0.5, 1.0, 1.0]


def test_free_slots_of_a_job_that_scales_are_worth_least() -> None:
    """The more a job gains from slots, the cheaper its work is to have later, when slots are cheap."""
    speedup = np.array([[1.0, 4.0], [1.0, 1.5]])
    worth = values_of_work(speedup, np.array([0.1, 0.4]), np.array([0.2, 0.2]))
    assert worth[0] < worth[1]


@pytest.mark.parametrize("weights", ["rank", "prices"])
def test_certificate_and_claims_hold_with_any_weights(weights: str) -> None:
    policy = make_policy(f"geminid:weights={weights}")
    assert isinstance(policy, Geminid)
    jobs = [job("urgent", priority=1), *(job(f"j{i}") for i in range(8))]
    for now_s in (600.0, 700.0, 800.0):
        sizes = slots(policy.decide(view(*jobs, now_s=now_s)))
    assert policy.solution is not None
    assert policy.solution.gap <= 0.01
    assert sizes["urgent"] == max(sizes.values())
    assert sum(sizes.values()) <= 16
    assert policy.factors("urgent")["priority"] == pytest.approx(4.0)
