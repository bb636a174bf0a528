"""Facts that hold for the truth of every application, whatever the placement."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.sim.application import Application
from geminid.sim.profiles import built_in_applications, load_applications
from geminid.sim.profiles.measured import canonical
from requirements import PEERS

BUILT_IN = built_in_applications()

placements = st.lists(st.integers(1, 8), min_size=1, max_size=32).map(tuple)
applications = st.sampled_from(sorted(BUILT_IN))
types = st.sampled_from(sorted(BUILT_IN["gpt2-124m"].truth))


@given(placements)
def test_every_rotation_has_the_same_canonical_form(placement: tuple[int, ...]) -> None:
    rotations = [placement[i:] + placement[:i] for i in range(len(placement))]
    assert {canonical(rotation) for rotation in rotations} == {min(rotations)}


@given(applications, types, placements, st.floats(0, 1))
def test_synchronising_never_makes_a_step_shorter(
    name: str, gpu_type: str, placement: tuple[int, ...], share: float
) -> None:
    limits = BUILT_IN[name].limits[gpu_type]
    batch = limits.smallest_per_slot + int(share * (limits.largest_per_slot - limits.smallest_per_slot))
    accumulation_s, step_s = BUILT_IN[name].truth[gpu_type].step_times(placement, batch)
    assert 0 < accumulation_s <= step_s < 1e4


@given(applications, types, placements, st.integers(1, 64), st.integers(1, 64))
def test_larger_batches_take_longer_but_not_per_sample(
    name: str, gpu_type: str, placement: tuple[int, ...], batch: int, more: int
) -> None:
    truth = BUILT_IN[name].truth[gpu_type]
    _, smaller_s = truth.step_times(placement, batch)
    _, larger_s = truth.step_times(placement, batch + more)
    assert smaller_s <= larger_s * (1 + 1e-9)
    assert larger_s / (batch + more) <= smaller_s / batch * (1 + 1e-9)


@given(applications, types, st.integers(1, 7), st.integers(1, 64))
def test_another_slot_never_makes_a_step_shorter(name: str, gpu_type: str, slots: int, batch: int) -> None:
    truth = BUILT_IN[name].truth[gpu_type]
    assert truth.step_times((slots,), batch)[1] <= truth.step_times((slots + 1,), batch)[1] * (1 + 1e-9)


@given(applications, st.integers(0, 300))
def test_noise_never_shrinks_while_a_model_trains(name: str, epoch: int) -> None:
    application = BUILT_IN[name]
    now, later = (application.gradient.at(e, 1.0).noise_scale(application.initial_batch) for e in (epoch, epoch + 1))
    assert 0 < now <= later


FOLDERS = ("pollux/traces", "sia/sia-simulator/traces")


@pytest.fixture(
    scope="module", params=[pytest.param(folder, marks=pytest.mark.needs_peers(folder)) for folder in FOLDERS]
)
def peers(request: pytest.FixtureRequest) -> dict[str, Application]:
    return load_applications(PEERS / request.param)


@settings(max_examples=examples(200))
@given(data=st.data())
def test_the_peers_measurements_give_a_time_for_every_placement(
    peers: dict[str, Application], data: st.DataObject
) -> None:
    application = peers[data.draw(st.sampled_from(sorted(peers)))]
    gpu_type = data.draw(st.sampled_from(sorted(application.truth)))
    limits, placement = application.limits[gpu_type], data.draw(placements)
    batch = data.draw(st.integers(limits.smallest_per_slot, limits.largest_per_slot))
    accumulation_s, step_s = application.truth[gpu_type].step_times(placement, batch)
    assert 0 < accumulation_s <= step_s < 1e3
