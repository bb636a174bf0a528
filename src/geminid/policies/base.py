"""What a policy sees and what it answers.

A policy is asked "who should run on what, now?" with an immutable :class:`ClusterView` and answers with a
:class:`Decision`. It owns no clock and starts nothing; it cannot tell a simulation from a live cluster. The engine
checks every answer before anything happens, so a wrong one harms nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.profile import Observation
from geminid.goodput.table import JobModel
from geminid.job import Adaptivity

#: Slots that a job holds on each node: (index of the node in the cluster, slots), by ascending index.
Allocation = tuple[tuple[int, int], ...]


def slots_of(allocation: Allocation) -> int:
    """How many slots an allocation has."""
    return sum(slots for _, slots in allocation)


class PlanSpeeds(Protocol):
    """How fast a job of fixed batch size runs under the best of the execution plans that it may use."""

    @property
    def sizes(self) -> frozenset[int]:
        """Numbers of slots that are worth considering."""

    def steps_per_s(self, placement: Sequence[int]) -> float:
        """Steps per second on these slots of each node; 0 where no plan can be used."""

    def plan(self, placement: Sequence[int]) -> str:
        """The plan that is used there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known of a job from the moment it is submitted.

    ``requested_slots`` and ``requested_batch`` are what its user asked for; policies that do not adapt jobs give
    exactly that. ``limits`` (batch sizes by GPU type) are empty for opaque jobs, whose inside is not known: they run
    on exactly their requested slots. ``throughputs`` (steps per second on the requested slots, by GPU type) are filled
    for jobs whose speeds are known without a model, and ``steps`` is then the work of the whole job; ``kind`` names
    what jobs of equal speeds have in common; ``spread_throughputs`` are those on more nodes than needed, where they
    differ. ``deadline_s`` is a time, not a duration. ``work`` is all that the job has
    to do, as far as its specification tells (epochs × dataset; it may be wrong), in the unit of its goodput: useful
    samples, or seconds for opaque jobs. None where nobody knows. ``budget_gpu_s`` is the most
    slots × time that it may use. ``opportunistic`` jobs take what others leave and may be slowed down or stopped.
    ``plan_speeds`` is how fast it runs on other placements, where that is known, under the execution plans that it may
    use: all that fit, if the policy chooses plans, or its user's. Its ``throughputs`` are those of its user's choice.
    """

    id: str
    submitted_s: float
    requested_slots: int
    min_slots: int = 1
    max_slots: int = 1
    requested_batch: int | None = None
    adaptivity: Adaptivity = Adaptivity.ADAPTIVE
    gpu_types: frozenset[str] | None = None
    limits: Mapping[str, BatchLimits] = field(default_factory=dict)
    rescale_s: float = 0.0
    weight: float = 1.0
    owner: str = ""
    kind: str = ""
    throughputs: Mapping[str, float] = field(default_factory=dict)
    spread_throughputs: Mapping[str, float] = field(default_factory=dict)
    steps: float | None = None
    deadline_s: float | None = None
    work: float | None = None
    queue: str = "default"
    priority: int = 0
    budget_gpu_s: float | None = None
    preferred_types: frozenset[str] = frozenset()
    opportunistic: bool = False
    plan_speeds: PlanSpeeds | None = None

    @property
    def least_slots(self) -> int:
        """The fewest slots on which it runs."""
        return self.requested_slots if self.adaptivity is Adaptivity.RIGID else self.min_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One active job as a policy sees it. Quantities that grow with time are asked for at a time.

    ``most_slots_measured`` is the largest number of slots the job has been measured on (one slot measured beforehand
    does not count); ``model`` what has been fitted to its measurements, None before the first. ``slots`` are those of
    the allocation. ``restarts`` counts changes of the allocation after the first start. ``partner`` is the job that it
    shares its slots with, if any; ``cap`` the share of the time for which it may compute there, and ``memory_cap`` the
    share of the memory that it may use there, None if it needs to fit. ``progress`` is how much of its work was done at
    its last report, and ``loss`` its training loss there. ``relative_speed`` is its measured speed beside its partner,
    relative to having the slots alone, at its last report; None before there is one. ``observed`` are the last step
    times that it reported from where it stands.
    """

    facts: JobFacts
    allocation: Allocation = ()
    slots: int = 0
    gpu_type: str | None = None
    partner: str | None = None
    started_s: float | None = None
    restarts: int = 0
    since_s: float = 0.0
    executed_before_s: float = 0.0
    service_before_gpu_s: float = 0.0
    paused_until_s: float = 0.0
    most_slots_measured: int = 0
    progress: float = 0.0
    model: JobModel | None = None
    cap: float = 1.0
    memory_cap: float | None = None
    loss: float | None = None
    relative_speed: float | None = None
    observed: Observation | None = None

    @property
    def id(self) -> str:
        """The job's identifier."""
        return self.facts.id

    def has(self, configuration: Configuration) -> bool:
        """Whether its allocation realises a configuration."""
        return (
            self.gpu_type == configuration.gpu_type
            and self.slots == configuration.slots
            and len(self.allocation) == configuration.nodes
        )

    def stands(self, usable_slots: Sequence[int]) -> bool:
        """Whether the nodes of its allocation are still usable."""
        return all(usable_slots[node] >= slots for node, slots in self.allocation)

    def age_s(self, now_s: float) -> float:
        """Seconds since its submission."""
        return now_s - self.facts.submitted_s

    def executed_s(self, now_s: float) -> float:
        """Seconds for which it has held slots, pauses included."""
        return self.executed_before_s + (now_s - self.since_s if self.allocation else 0.0)

    def attained_service_gpu_s(self, now_s: float) -> float:
        """Slots × seconds that it has had; of slots that it shares, half."""
        share = self.slots if self.partner is None else 0.5 * self.slots
        return self.service_before_gpu_s + share * (now_s - self.since_s)


class Oracle(Protocol):
    """What nobody can know in a live cluster; in a simulation, policies that their papers gave oracles ask it."""

    def remaining_iterations(self, job_id: str, *, after_current_epoch: bool = False) -> float:
        """Optimiser steps to completion at the requested batch size, from the start or the end of the current epoch."""

    def remaining_s(self, job_id: str) -> float:
        """Seconds of work left on the requested slots and batch size, pauses aside."""

    def iteration_s(self, job_id: str, placement: Sequence[int]) -> float:
        """True seconds per optimiser step at the requested batch size, for these slots per node."""


class SharingModel(Protocol):
    """How fast two jobs run on the same slots."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        """Speeds of both on shared slots of a type, relative to having them alone; zeros if they cannot share.

        Not numbers where nobody has measured the two together: policies may estimate them, and try.
        """

    def speeds_together(self, jobs: Sequence[JobFacts], gpu_type: str, batches: Sequence[int]) -> NDArray[np.float64]:
        """The same for every job (rows) beside every other (columns), at these batches per slot.

        A batch of zero stands for the requested one.
        """


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything a policy may look at: the time, the cluster, and the active jobs in the order of their arrival.

    ``usable_slots`` are those of every node, none on nodes that are down or drained; ``free_slots`` what nobody holds
    of them (below zero where jobs still sit on a drained node). ``sharing`` is what is known of jobs on shared slots;
    without it, no two jobs should share any. ``ended`` are the jobs that were completed since the last decision, with
    their final progress, and ``charged`` all jobs whose use of slots counts although nothing is to be decided about
    them: those that have left since the last decision in any way, and those that keep their slots. ``behind`` are the
    times of submission of waiting jobs that are not shown, by the job that stands for them: they are equal to it, came
    after it, and could not start before it (see ``Policy``). The service shows no jobs that keep their slots, and does
    not count those as usable; ``slots_with_protected`` has them.
    ``next_arrival_s`` is when the next job will arrive (inf: never), None where nobody knows, as in a live cluster.
    """

    now_s: float
    cluster: Cluster
    jobs: tuple[JobView, ...]
    usable_slots: tuple[int, ...]
    free_slots: tuple[int, ...]
    oracle: Oracle | None = None
    sharing: SharingModel | None = None
    ended: tuple[JobView, ...] = ()
    behind: Mapping[str, Sequence[float]] = field(default_factory=dict)
    slots_with_protected: tuple[int, ...] | None = None
    next_arrival_s: float | None = None
    charged: tuple[JobView, ...] = ()

    @property
    def slots_in_service(self) -> tuple[int, ...]:
        """The slots of every node that is in service, those of protected jobs included."""
        return self.usable_slots if self.slots_with_protected is None else self.slots_with_protected

    def usable_slots_per_type(self) -> dict[str, int]:
        """Usable slots of every GPU type, zero included."""
        slots = dict.fromkeys(self.cluster.type_index, 0)
        for node, usable in zip(self.cluster.nodes, self.usable_slots, strict=True):
            slots[node.gpu_type] += usable
        return slots


@dataclass(frozen=True, slots=True)
class Decision:
    """What should run: for each job a configuration (the engine places it) or an allocation (the policy has).

    Jobs that are not named get nothing, or keep what they have if ``others_stay`` (then a decision costs only what it
    changes). Two jobs may have the same slots if ``pairs`` names them together and both are
    given the same configuration or allocation; nobody is in two pairs. ``reasons`` may say, for single jobs,
    why. ``wake_at_s`` asks for another decision at that time even if nothing happens until then. ``desired_nodes`` is
    what an autoscaling policy wishes for: nodes by GPU type, none of types that are not named. ``caps`` limit the share
    of the time (0 to 1) for which jobs compute on the slots that they are given; 0 suspends a job where it is.
    ``memory_caps`` let guests, the second jobs of pairs, use at most this share (0 to 1) of the memory of their slots,
    and no more than the first job leaves; what they need beyond spills to the memory of the machine.
    """

    assignments: Mapping[str, Configuration | Allocation]
    reasons: Mapping[str, str] = field(default_factory=dict)
    wake_at_s: float | None = None
    desired_nodes: Mapping[str, int] | None = None
    pairs: Sequence[tuple[str, str]] = ()
    others_stay: bool = False
    caps: Mapping[str, float] = field(default_factory=dict)
    memory_caps: Mapping[str, float] = field(default_factory=dict)


class Policy(ABC):
    """A scheduling policy. Subclasses say in their docstring which paper they follow and where they deviate.

    ``interval_s`` is the length of its rounds; None means that it decides at every event. ``adapts_batch`` tells
    whether jobs re-tune their batch size under it or keep the requested one; ``needs_oracle`` whether its paper gives
    it one; ``needs_reports`` whether jobs report before its decisions although it needs no models. ``traced_defaults``
    and ``profiled_defaults`` are options that simulations set unless the user does: for workloads of which only
    durations or steps are known, and for others. ``not_live`` says in a sentence why it cannot run live, if it cannot;
    ``meanings`` what its options mean, by name, with their units.

    A service may leave waiting jobs out of the view if there are more equal ones than could start, unless the policy
    ``needs_every_job``: one may say that it does not if it starts equal jobs in the order of their arrival, and decides
    the same where it finds those that are left out in ``view.behind``.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    objective: ClassVar[str] = ""
    interval_s: float | None = None
    adapts_batch: bool = False
    needs_oracle: ClassVar[bool] = False
    needs_models: bool = False
    needs_reports: bool = False
    not_live: ClassVar[str] = ""
    meanings: ClassVar[Mapping[str, str]] = {}
    traced_defaults: ClassVar[Mapping[str, Any]] = {}
    profiled_defaults: ClassVar[Mapping[str, Any]] = {}
    brings_profiles: bool = False

    @classmethod
    def ignores(cls) -> frozenset[str]:
        """Public fields that make no difference to this policy: they are not among its options."""
        return frozenset()

    @property
    def chooses_plans(self) -> bool:
        """Whether it chooses execution plans; otherwise jobs run under the plans that their users chose."""
        return False

    @property
    def parts_left_out(self) -> frozenset[str]:
        """Options, by field, that would switch on what this policy leaves out as it is set up: asking is refused."""
        return frozenset()

    @property
    def regards_priority(self) -> bool:
        """Whether jobs of a higher priority (``JobFacts.weight``) go before others."""
        return False

    @property
    def regards_owners(self) -> bool:
        """Whether it matters to whom or to which queue jobs belong."""
        return True

    @property
    def needs_every_job(self) -> bool:
        """Whether the view must show every job, however many equal ones wait."""
        return True

    @abstractmethod
    def decide(self, view: ClusterView) -> Decision:
        """Answer what should run now."""


class NotADecision(TypeError):
    """A policy answered with something else than a :class:`Decision`; ``origin`` is where its ``decide`` stands."""

    def __init__(self, policy: Policy, answer: object) -> None:
        returned = "None" if answer is None else f"a value of type {type(answer).__name__}"
        super().__init__(f"{type(policy).__name__}.decide returned {returned} instead of a Decision")
        code = getattr(type(policy).decide, "__code__", None)
        self.origin = "unknown" if code is None else f"{code.co_filename}, line {code.co_firstlineno}, in decide"


def decision_of(policy: Policy, view: ClusterView) -> Decision:
    """Ask a policy, and check that it answers with a decision.

    Raises:
        NotADecision: it does not; the error names the policy's class and file.
    """
    decision: object = policy.decide(view)
    if not isinstance(decision, Decision):
        raise NotADecision(policy, decision)
    return decision
