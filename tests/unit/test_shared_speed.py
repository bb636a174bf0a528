"""Two jobs on one accelerator: the formula beside what was measured, and what it says of profiles."""

from __future__ import annotations

import pytest

from geminid.cluster import Cluster
from geminid.goodput.sharing import shared_speed, utilisation
from geminid.job import Adaptivity
from geminid.policies.base import JobFacts
from geminid.policies.geminid import Geminid
from geminid.sim.profiles import built_in_applications
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workloads.generate import SizeCategory, generate_workload

# Milliseconds per step on one H200, and steps per second alone and together of two processes on it.
STEP_MS = {
    "resnet18": {256: 9.1, 4096: 12.1},
    "resnet50": {64: 21.9, 512: 104.2},
    "gpt2": {8: 56.5, 32: 205.3},
}
BATCH = {"resnet18": 256, "resnet50": 64, "gpt2": 8}
TOGETHER = [
    ("resnet18", "resnet18", 103.8 / 105.0, 100.5 / 105.0),
    ("resnet18", "resnet50", 87.3 / 105.0, 34.7 / 39.3),
    ("resnet18", "gpt2", 97.6 / 105.0, 14.7 / 16.3),
    ("resnet50", "gpt2", 31.8 / 39.3, 12.4 / 16.3),
]


def test_it_is_near_what_was_measured() -> None:
    use = {name: utilisation(STEP_MS[name].__getitem__, BATCH[name], max(STEP_MS[name])) for name in STEP_MS}
    errors = []
    for first, second, one, other in TOGETHER:
        errors += [abs(shared_speed(use[first], use[second]) - one), abs(shared_speed(use[second], use[first]) - other)]
    assert sum(errors) / len(errors) < 0.05
    assert max(errors) < 0.10


def test_saturating_jobs_take_turns_and_idle_ones_hardly_notice() -> None:
    assert shared_speed(1.0, 1.0) == 0.5
    assert shared_speed(0.0, 1.0) > 0.9
    assert utilisation(lambda batch: 2.0 * batch, 64, 512) == pytest.approx(1.0)
    assert utilisation(lambda batch: 20.0, 64, 512) == pytest.approx(1 / 8)


def test_profiles_tell_who_can_share() -> None:
    sharing = ApplicationSharing(built_in_applications())

    def facts(kind: str, batch: int | None = None) -> JobFacts:
        return JobFacts(id=kind, submitted_s=0.0, requested_slots=1, kind=kind, requested_batch=batch)

    small, large = facts("resnet18-cifar10", 128), facts("resnet50-imagenet", 256)
    assert min(sharing.relative_speeds(small, small, "h200")) > 0.9
    assert sharing.relative_speeds(small, large, "h200") == sharing.relative_speeds(large, small, "h200")[::-1]
    assert sharing.relative_speeds(large, large, "t4") == (0.0, 0.0)
    assert sharing.relative_speeds(facts("unknown"), small, "h200") == (0.0, 0.0)


def test_it_follows_the_batches_that_jobs_really_have() -> None:
    sharing = ApplicationSharing(built_in_applications())
    fixed, chooses = Adaptivity.FIXED_BATCH, Adaptivity.ADAPTIVE

    def facts(kind: str, batch: int, adaptivity: Adaptivity) -> JobFacts:
        return JobFacts(
            id=kind, submitted_s=0.0, requested_slots=1, kind=kind, requested_batch=batch, adaptivity=adaptivity
        )

    small, tuned = facts("resnet18-cifar10", 128, fixed), facts("resnet18-cifar10", 128, chooses)
    large = facts("resnet50-imagenet", 2400, fixed)
    as_asked = sharing.speeds_together([small, large], "h200", [0, 0])
    assert as_asked[0, 1] == sharing.relative_speeds(small, large, "h200")[0]
    assert as_asked[1, 0] == sharing.relative_speeds(small, large, "h200")[1]
    # A larger batch keeps the slot busier; one that chooses its batch needs half of the memory to itself.
    speeds = [sharing.speeds_together([tuned, tuned], "h200", [b, b])[0, 1] for b in (128, 2048, 4096, 4097)]
    assert speeds[0] > speeds[1] > speeds[2] > speeds[3] == 0.0
    assert sharing.speeds_together([small, large], "h200", [128, 2400])[0, 1] > 0
    assert sharing.speeds_together([tuned, large], "h200", [128, 2400])[0, 1] == 0


def test_jobs_that_choose_their_batch_share_in_half_of_the_memory() -> None:
    apps = built_in_applications()
    workload = generate_workload(
        jobs=10, hours=0.1, seed=1, sizes={SizeCategory.SMALL: 1.0}, slots={1: 1.0}, name="crowded"
    )
    policy, cluster = Geminid(share_adaptive=True), Cluster.parse("h200:1x2")
    result = Simulator(workload, apps, cluster, policy, Settings(rescale_s=1.0, debug=True)).run()
    assert not result.rejected
    sharing, shared = ApplicationSharing(apps), 0
    for job in result.jobs:
        for stint in (s for s in job.stints if s.partner is not None and s.start_s < (s.end_s or 0.0)):
            shared += 1
            assert stint.batch is not None
            assert 2 * stint.batch.per_slot <= apps[job.facts.kind].limits["h200"].largest_per_slot
            most = shared_speed(sharing.busy(job.facts.kind, "h200", stint.batch.per_slot), 0.0)
            assert 0.5 <= stint.speed <= most
    assert shared > 0
    assert all(job.completed_s is not None for job in result.jobs)


def test_what_a_guest_cannot_keep_on_the_accelerator_is_copied_in_every_pass() -> None:
    apps = built_in_applications()
    sharing = ApplicationSharing(apps)

    def facts(kind: str) -> JobFacts:
        return JobFacts(id=kind, submitted_s=0.0, requested_slots=1, kind=kind)

    host, light, heavy = facts("deepspeech2"), facts("resnet18-cifar10"), facts("gpt2-124m")
    assert sharing.spilled_speeds(host, light, "v100", 1.0) == (*sharing.relative_speeds(host, light, "v100"), 0.0)
    assert sharing.relative_speeds(host, heavy, "v100") == (0.0, 0.0)
    left = 1.0 - 20 / 161  # deepspeech2 uses 20 of 161 samples' memory, gpt2 all of it
    hosts, guests, spills = sharing.spilled_speeds(host, heavy, "v100", 1.0)
    assert spills == pytest.approx(1.0 - left)
    pass_s = apps["gpt2-124m"].truth["v100"].step_times((1,), 8)[0]
    copied_s = (1.0 - left) * 0.9 * 15 * 2**30 / 12e9
    assert guests == pytest.approx(hosts * pass_s / (pass_s + copied_s))
    capped = [sharing.spilled_speeds(host, heavy, "v100", cap) for cap in (left, 0.5, 0.26, 0.24, 0.0)]
    assert capped[0] == (hosts, guests, spills)
    assert guests > capped[1][1] > capped[2][1] > 0.0
    assert all(speeds[:2] == (0.0, 0.0) for speeds in capped[3:])  # less than it needs at a time
    assert all(speeds[0] == hosts for speeds in capped[:3])
    assert sharing.spilled_speeds(facts("unknown"), light, "v100", 1.0)[:2] == (0.0, 0.0)
