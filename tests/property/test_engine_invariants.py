"""Whatever happens, in whatever order, and whatever a policy answers: the invariants hold after every event."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.commands import Rescale, Share, Start, Stop
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, Event, Failed, NodeDown, NodeDrained, NodeUp, Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.goodput.profile import Observation
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, Policy

CLUSTER = Cluster.parse("v100:3x4,t4:2x2")


@dataclass
class Chaotic(Policy):
    """Sometimes sensible, sometimes over-allocating, sometimes raising."""

    name = "chaotic"
    paper = objective = ""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    given: list[list[list[int]]] = field(default_factory=list)

    def decide(self, view: ClusterView) -> Decision:
        if self.rng.random() < 0.05:
            raise RuntimeError("chaos")
        assignments: dict[str, Configuration | Allocation] = {}
        for job in view.jobs:
            kind = self.rng.integers(4)
            if kind == 0:
                assignments[job.id] = Configuration(gpu_type="v100", nodes=1, slots=int(self.rng.integers(1, 5)))
            elif kind == 1:
                nodes = self.rng.permutation(6)[: self.rng.integers(1, 3)]
                assignments[job.id] = tuple((int(node), int(self.rng.integers(0, 5))) for node in nodes)
            elif kind == 2 and job.allocation:
                assignments[job.id] = job.allocation
        pairs: list[tuple[str, str]] = []
        for first, second in pairwise(view.jobs):
            if self.rng.random() < 0.3:
                pairs.append((first.id, second.id))
                if first.id in assignments and self.rng.random() < 0.9:
                    assignments[second.id] = assignments[first.id]
        if self.rng.random() < 0.7:  # else some may be in two pairs, or share nothing
            taken: set[str] = set()
            valid = []
            for pair in pairs:
                if pair[0] in assignments and not taken & set(pair):
                    assignments[pair[1]] = assignments[pair[0]]
                    taken |= set(pair)
                    valid.append(pair)
            pairs = valid
        for lists in self.given:  # what it handed out before is not its own any more
            lists[0][1] = 99
        self.given = []
        for job_id, assignment in list(assignments.items()):
            if isinstance(assignment, tuple) and assignment and self.rng.random() < 0.3 and not pairs:
                self.given.append([list(pair) for pair in assignment])
                assignments[job_id] = self.given[-1]  # type: ignore[assignment]
        if self.rng.random() < 0.05:
            return Decision(assignments, reasons=None)  # type: ignore[arg-type]
        return Decision(assignments, pairs=pairs, others_stay=bool(self.rng.random() < 0.5))


class AnythingHappens(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(CLUSTER, Chaotic(), ModelKeeper("pollux"))
        self.held: dict[str, Allocation] = {}
        self.partners: dict[str, str] = {}
        self.count = 0

    def feed(self, event: Event) -> None:
        for command in self.engine.handle(event).commands:
            match command:
                case Start(job_id=job_id, allocation=allocation):
                    assert job_id not in self.held
                    self.held[job_id] = allocation
                case Rescale(job_id=job_id, before=before, allocation=allocation):
                    assert self.held[job_id] == before
                    self.held[job_id] = allocation
                    self.partners.pop(job_id, None)
                case Stop(job_id=job_id, before=before):
                    assert self.held.pop(job_id) == before
                    self.partners.pop(job_id, None)
                case Share(job_id=job_id, partner=None):
                    del self.partners[job_id]
                case Share(job_id=job_id, partner=str(partner)):
                    self.partners[job_id] = partner

    @rule(
        wait=st.floats(0, 100),
        slots=st.integers(1, 4),
        rigid=st.booleans(),
        gpu_types=st.sampled_from([None, frozenset({"v100"}), frozenset({"t4"})]),
    )
    def submit(self, wait: float, slots: int, rigid: bool, gpu_types: frozenset[str] | None) -> None:
        self.count += 1
        now = self.engine.now_s + wait
        facts = JobFacts(
            id=f"j{self.count}",
            submitted_s=now,
            requested_slots=slots,
            min_slots=slots if rigid else 1,
            max_slots=slots if rigid else 8,
            adaptivity=Adaptivity.RIGID if rigid else Adaptivity.ADAPTIVE,
            gpu_types=gpu_types,
        )
        self.feed(Submitted(now, facts))

    @rule(which=st.integers(0, 50), step_s=st.floats(allow_nan=True), slots=st.integers(1, 8))
    def report(self, which: int, step_s: float, slots: int) -> None:
        observation = Observation(
            nodes=1, slots=slots, busiest_node_slots=slots, per_slot_batch=8, accumulation_s=step_s, step_s=step_s
        )
        self.feed(Reported(self.engine.now_s, f"j{which}", observation, None))

    @rule(wait=st.floats(0, 100))
    def tick(self, wait: float) -> None:
        self.feed(Tick(self.engine.now_s + wait))

    @rule(which=st.integers(0, 50), how=st.sampled_from(["completed", "failed", "failed for good"]))
    def end(self, which: int, how: str) -> None:
        if self.held:
            job_id = list(self.held)[which % len(self.held)]
            del self.held[job_id]
            self.partners.pop(job_id, None)
            now = self.engine.now_s
            self.feed(Completed(now, job_id) if how == "completed" else Failed(now, job_id, "x", "good" in how))

    @rule(node=st.integers(0, 4), kind=st.sampled_from([NodeDown, NodeDrained, NodeUp]))
    def change_node(self, node: int, kind: type[NodeDown] | type[NodeDrained] | type[NodeUp]) -> None:
        self.feed(kind(self.engine.now_s, node))

    @invariant()
    def everything_is_consistent(self) -> None:
        self.engine.check()
        assert {j.id: j.allocation for j in self.engine.jobs.values() if j.allocation} == self.held
        assert {j.id: j.partner for j in self.engine.jobs.values() if j.partner} == self.partners


AnythingHappens.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestAnythingHappens = AnythingHappens.TestCase
