"""What holds for all values of the domain: nothing is lost in writing, and nothing hostile gets through."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from geminid.cluster import Cluster
from geminid.configuration import BatchPlan, Configuration, Placement
from geminid.documents import Document, dump_json, dump_yaml, load_json, load_yaml
from geminid.executionplan import BUILT_IN_PLANS, ExecutionPlan
from geminid.fields import InvalidInput
from geminid.gputypes import GpuPreference, GpuType, Interconnect, Link, named_gpu_type
from geminid.job import JobSpec, ScalingRule
from geminid.jobstate import TRANSITIONS, IllegalTransition, JobPhase, JobState
from geminid.nodes import Node
from geminid.units import (
    MAX_SAMPLES,
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
amounts = st.floats(min_value=1e-6, max_value=1e15)
lines = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=40)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)

links = st.builds(Link, bandwidth_bytes_per_s=amounts, latency_s=st.floats(0, 10))
gpu_types = st.builds(
    GpuType,
    name=names,
    memory_bytes=st.integers(1, 2**50),
    relative_cost=st.floats(0, 1e6),
    interconnect=st.builds(Interconnect, node=links, rack=links, zone=links, cluster=links),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    types = draw(st.lists(gpu_types, min_size=1, max_size=3, unique_by=lambda gpu_type: gpu_type.name))
    zone_of_rack = draw(st.dictionaries(names, names, min_size=1, max_size=3))
    numbered = st.builds("{}-{}".format, st.sampled_from(["a", "b", types[0].name[:40]]), st.integers(0, 12))
    node_names = draw(st.lists(numbered | names, min_size=1, max_size=12, unique=True))
    nodes = []
    for name in node_names:
        rack = draw(st.sampled_from(sorted(zone_of_rack)))
        gpu_type = draw(st.sampled_from(types)).name
        slots = draw(st.sampled_from([1, 4, 8]))
        nodes.append(Node(name=name, gpu_type=gpu_type, slots=slots, rack=rack, zone=zone_of_rack[rack]))
    return Cluster(gpu_types=tuple(types), nodes=tuple(nodes))


plans = st.sampled_from(sorted(BUILT_IN_PLANS)).map(BUILT_IN_PLANS.__getitem__) | st.builds(
    ExecutionPlan,
    name=names.map(lambda name: f"own-{name[:40]}"),
    tensor_parallel=st.integers(1, 8),
    gradient_checkpointing=st.booleans(),
    zero=st.just(True),
    offload=st.booleans(),
)
variable_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    min_slots = draw(st.integers(1, 8))
    batch = draw(st.none() | st.integers(64, 10_000))
    samples = draw(st.none() | st.integers(1, 10**12))
    chosen = draw(st.lists(plans, min_size=1, max_size=3, unique_by=lambda plan: plan.name))
    return JobSpec(
        name=draw(names),
        command=("python", *draw(st.lists(lines, max_size=3))),
        owner=draw(st.none() | names),
        queue=draw(names),
        priority=draw(st.integers(-1000, 1000)),
        working_dir=draw(st.none() | names),
        env=tuple(draw(st.dictionaries(variable_names, lines, max_size=3)).items()),
        min_slots=min_slots,
        max_slots=draw(st.none() | st.just(min_slots) | st.integers(max(min_slots, 8), 100)),
        slots_per_replica=1,
        gpu_types=draw(
            st.builds(
                GpuPreference,
                names=st.lists(names, min_size=1, unique=True).map(tuple),
                ordered=st.booleans(),
            )
            | st.just(GpuPreference())
        ),
        initial_batch_size=batch,
        max_batch_size=None if batch is None else draw(st.none() | st.integers(batch, 100_000)),
        min_per_slot_batch=draw(st.integers(1, 8)),
        max_per_slot_batch=draw(st.none() | st.integers(8, 10_000)),
        dataset_samples=samples,
        epochs=None if samples is None else draw(st.floats(1e-6, MAX_SAMPLES // samples)),
        scaling_rule=draw(st.sampled_from(ScalingRule)),
        execution_plans=tuple(plan for plan in chosen if plan.slots_per_replica <= min_slots)
        or (BUILT_IN_PLANS["dp"],),
        deadline_s=draw(st.none() | amounts),
        budget_gpu_s=draw(st.none() | amounts),
        max_retries=draw(st.integers(0, 10)),
        min_runtime_s=draw(st.floats(0, 1e9)),
        checkpoint_interval_s=draw(amounts),
    )


configurations = st.builds(Configuration, gpu_type=names, nodes=st.integers(1, 8), slots=st.integers(8, 64), plan=names)
placements = st.dictionaries(
    names, st.lists(st.integers(0, 63), min_size=1, max_size=8, unique=True), min_size=1, max_size=4
).map(Placement.of)
batch_plans = st.builds(BatchPlan, per_slot_batch_samples=st.integers(1, 10_000), accumulation_steps=st.integers(0, 16))


# --- Nothing is lost ---


@given(clusters() | specs() | configurations | placements | batch_plans)
def test_every_value_is_written_and_read_back_without_loss(value: Document) -> None:
    kind = type(value)
    assert kind.from_dict(value.to_dict()) == value
    assert kind.from_yaml(value.to_yaml()) == value
    assert kind.from_json(value.to_json()) == value


@given(st.lists(st.tuples(names.map(lambda name: name[:40]), st.integers(1, 20), st.integers(1, 16)), min_size=1))
def test_a_short_form_is_read_and_written_back(groups: list[tuple[str, int, int]]) -> None:
    merged = {(name, slots): (name, nodes, slots) for name, nodes, slots in groups}
    text = ",".join(f"{name}:{nodes}x{slots}" for name, nodes, slots in merged.values())
    error = refusal(Cluster.parse, text)
    if error is not None:  # two types may number their nodes alike: "a" has a node "a-0-0", and so has "a-0"
        assert "must have a name of its own" in str(error)
        return
    cluster = Cluster.parse(text)
    assert cluster.total_slots == sum(nodes * slots for _, nodes, slots in merged.values())
    assert cluster.short_form() == text


@given(clusters())
def test_totals_agree_with_the_nodes(cluster: Cluster) -> None:
    assert cluster.total_slots == sum(node.slots for node in cluster.nodes) == sum(cluster.slots_per_type.values())
    assert sum(cluster.nodes_per_type.values()) == len(cluster.nodes)
    assert all(cluster.node(node.name) is node for node in cluster.nodes)


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_durations_are_written_exactly(duration_s: float) -> None:
    assert parse_duration(format_duration(duration_s)) == duration_s


@given(st.integers(0, 2**62))
def test_sizes_are_written_exactly(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False))
def test_bandwidths_are_written_exactly(bandwidth: float) -> None:
    assert parse_bandwidth(format_bandwidth(bandwidth)) == bandwidth


@given(plain)
def test_plain_data_goes_through_yaml_and_json_unchanged(data: object) -> None:
    assert load_json(dump_json(data)) == data
    assert load_yaml(dump_yaml(data)) == data


# --- Nothing hostile gets through ---

FIELDS = sorted(
    {
        *JobSpec(name="j", command=("x",)).to_dict(),
        *named_gpu_type("t4").to_dict(),
        "nodes",
        "gpu_types",
        "slots",
    }
    | {
        "type",
        "count",
        "plan",
        "env",
        "max_slots",
        "deadline",
        "initial_batch_size",
        "spec",
        "phase",
        "placement",
    }
    | {
        "job_id",
        "submitted_at_s",
        "updated_at_s",
        "phase_since_s",
        "any_of",
        "ordered",
        "bandwidth",
        "node",
        "rack",
    }
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | names
oddities = st.sampled_from([10**400, -(10**400), "1h", "1GiB", "\x00", "\ud800", "dp", b"bytes", (), object()])
hostile = st.recursive(
    scalars | oddities,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | scalars, inner, max_size=6),
    max_leaves=25,
)


def refusal(read: Callable[[Any], object], data: object) -> InvalidInput | None:
    """What the reader says against the data, if anything; any other exception fails the test."""
    try:
        read(data)
    except InvalidInput as error:
        return error
    return None


@given(st.sampled_from([Cluster, JobSpec, JobState, Configuration, Placement, BatchPlan, ExecutionPlan]), hostile)
def test_hostile_data_is_refused_as_invalid_input_and_nothing_else(kind: type[Document], data: object) -> None:
    error = refusal(kind.from_dict, data)
    if error is None:
        value = kind.from_dict(data)
        assert kind.from_dict(value.to_dict()) == value
    else:
        sentences = str(error).splitlines()
        assert len(sentences) == len(error.problems) > 0
        assert all(sentence.endswith(".") and len(sentence) < 2000 for sentence in sentences)


@given(specs(), st.dictionaries(st.sampled_from(FIELDS), hostile, min_size=1, max_size=3))
def test_a_good_job_with_some_hostile_fields_is_read_or_refused(spec: JobSpec, changes: dict[str, Any]) -> None:
    data = {**spec.to_dict(), **changes}
    if refusal(JobSpec.from_dict, data) is None:
        value = JobSpec.from_dict(data)
        assert JobSpec.from_json(value.to_json()) == value


@given(st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(JobSpec)]), hostile))
def test_a_job_made_of_hostile_values_is_refused_as_invalid_input(changes: dict[str, Any]) -> None:
    error = refusal(lambda fields: JobSpec(**fields), {"name": "j", "command": ("x",), **changes})
    assert error is None or error.problems


@given(st.text() | hostile.map(repr))
def test_hostile_text_is_read_or_refused_as_invalid_input(text: str) -> None:
    for read in (
        load_yaml,
        load_json,
        Cluster.parse,
        Cluster.from_yaml,
        JobSpec.from_yaml,
        JobSpec.from_json,
    ):
        error = refusal(read, text)
        assert error is None or error.problems


# --- The life of a job ---


class JobLife(RuleBasedStateMachine):
    """Drives a job at random, legally or not, and checks after every step what must always hold."""

    def __init__(self) -> None:
        super().__init__()
        spec = JobSpec(name="j", command=("x",), min_slots=2, max_slots=16, max_retries=2)
        self.state = JobState.submitted(job_id="j", spec=spec, at_s=0.0)
        self.previous = self.state
        self.crashed = False

    def _become(self, state: JobState, *, crashed: bool = False) -> None:
        self.previous, self.state, self.crashed = self.state, state, crashed

    def _slots_with(self, placement: Placement | None) -> int:
        return placement.num_slots if placement else self.state.num_slots

    @rule(to=st.sampled_from(JobPhase), dt=st.floats(-1, 100), placement=st.none() | placements)
    def move(self, to: JobPhase, dt: float, placement: Placement | None) -> None:
        at_s = self.state.updated_at_s + dt
        legal = (
            to in TRANSITIONS[self.state.phase]
            and at_s >= self.state.updated_at_s
            and not (to is JobPhase.STARTING and placement is None)
            and not (placement is not None and not to.holds_slots)
            and (to not in (JobPhase.STARTING, JobPhase.RUNNING) or 2 <= self._slots_with(placement) <= 16)
        )
        if legal:
            self._become(self.state.move(to, at_s=at_s, placement=placement, reason="test"))
        else:
            with pytest.raises(IllegalTransition):
                self.state.move(to, at_s=at_s, placement=placement)

    @precondition(lambda self: not self.state.phase.is_terminal)
    @rule(dt=st.floats(0, 1000), samples=st.floats(0, 1e6), durable=st.floats(0, 1))
    def advance(self, dt: float, samples: float, durable: float) -> None:
        progress = self.state.progress_samples + (samples if self.state.phase.holds_slots else 0.0)
        safe = max(self.state.durable_samples, durable * progress)
        at_s = self.state.updated_at_s + dt
        self._become(self.state.advance(at_s=at_s, progress_samples=progress, durable_samples=min(safe, progress)))

    @precondition(lambda self: self.state.phase.holds_slots)
    @rule(dt=st.floats(0, 10))
    def crash(self, dt: float) -> None:
        self._become(self.state.crash(at_s=self.state.updated_at_s + dt, reason="test"), crashed=True)

    @invariant()
    def time_and_counts_never_go_back(self) -> None:
        before, now = self.previous, self.state
        for name in ("updated_at_s", "phase_since_s", "attained_service_gpu_s", "rescales", "failures"):
            assert getattr(now, name) >= getattr(before, name)
        assert now.max_slots_used >= before.max_slots_used
        assert now.durable_samples >= before.durable_samples

    @invariant()
    def progress_shrinks_only_in_a_crash_and_to_the_last_checkpoint(self) -> None:
        if self.crashed:
            assert self.state.progress_samples == self.previous.durable_samples
        else:
            assert self.state.progress_samples >= self.previous.progress_samples

    @invariant()
    def slots_are_held_exactly_in_the_phases_that_hold_them(self) -> None:
        assert (self.state.num_slots > 0) == self.state.phase.holds_slots

    @invariant()
    def terminal_phases_absorb(self) -> None:
        if self.previous.phase.is_terminal:
            assert self.state is self.previous
        assert self.state.phase.is_terminal == (self.state.jct_s is not None)
        assert self.state.failures <= self.state.spec.max_retries + 1

    @invariant()
    def service_is_finite_and_written_back_with_all_the_rest(self) -> None:
        assert math.isfinite(self.state.attained_service_gpu_s)
        assert JobState.from_json(self.state.to_json()) == self.state


TestJobLife = JobLife.TestCase
