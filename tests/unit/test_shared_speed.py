"""Two jobs on one accelerator: the formula beside what was measured, and what it says of profiles."""

from __future__ import annotations

import pytest

from geminid.goodput.sharing import shared_speed, utilisation
from geminid.policies.base import JobFacts
from geminid.sim.profiles import built_in_applications
from geminid.sim.sharing import ApplicationSharing

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
