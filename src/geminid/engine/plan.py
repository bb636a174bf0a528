"""From a decision to a plan: placed, and checked. The engine never trusts a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from geminid.configuration import Configuration
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, slots_of
from geminid.policies.sharing import beside_host
from geminid.solve.placement import place


@dataclass(frozen=True, slots=True)
class Plan:
    """Which job has which slots, every job within its bounds. No slot twice, but for declared pairs.

    ``named`` are the jobs that may change: those that the decision names, or all. ``partners`` has both jobs of every
    pair, each with the other one; ``reasons`` says why jobs get nothing, or not quite the slots that were wanted;
    ``caps`` the share of the time for which jobs may compute, where it is not all of it; ``memory_caps`` the share of
    the memory of their slots that guests may use, where they need not fit.
    Nothing in it is the policy's own: what it changes afterwards changes no plan.
    """

    named: tuple[str, ...]
    allocations: Mapping[str, Allocation]
    partners: Mapping[str, str]
    reasons: Mapping[str, str]
    wake_at_s: float | None = None
    desired_nodes: Mapping[str, int] | None = None
    caps: Mapping[str, float] = field(default_factory=dict)
    memory_caps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a decision cannot be carried out; the last valid plan stays."""

    reasons: tuple[str, ...]


def make_plan(decision: object, view: ClusterView, jobs: Mapping[str, JobView]) -> Plan | Rejected:
    """Place the configurations of a decision around its explicit allocations, and check the whole.

    ``jobs`` are those of the view, by identifier.
    """
    if not isinstance(decision, Decision):
        return Rejected((f"the policy answered {type(decision).__name__}, not a Decision",))
    problems = _malformed(decision)
    if problems:
        return Rejected(tuple(problems))
    problems = [f"job {job_id} is not active" for job_id in decision.assignments if job_id not in jobs]
    partners, guests = _partners(decision, problems)
    free = list(view.usable_slots)
    if decision.others_stay:
        free = _free_for(decision, view, jobs, problems)
    allocations: dict[str, Allocation] = {}
    wanted: dict[str, Configuration] = {}
    for job_id, assignment in decision.assignments.items():
        if job_id in guests or job_id not in jobs:
            continue
        if isinstance(assignment, Configuration):
            if assignment.gpu_type not in view.cluster.type_index:
                problems.append(f"job {job_id} was given GPU type {assignment.gpu_type}, which the cluster lacks")
            elif assignment.slots > (most := view.cluster.slots_per_type[assignment.gpu_type]):
                given_slots = f"job {job_id} was given {assignment.slots} slots of type {assignment.gpu_type}"
                problems.append(f"{given_slots}, of which the cluster has {most}")
            else:
                wanted[job_id] = assignment
        elif assignment and assignment is jobs[job_id].allocation:  # checked when the job got it
            allocations[job_id] = assignment
            for node, slots in assignment:
                free[node] -= slots
        elif assignment:
            given = _whole(assignment)
            if given is None:
                problems.append(f"job {job_id} was given {assignment!r}, not pairs of a node's index and some slots")
                continue
            allocations[job_id] = given
            if len({node for node, _ in given}) < len(given):
                problems.append(f"job {job_id} was given slots of one node twice")
            for node, slots in given:
                if not 0 <= node < len(free) or slots < 1:
                    problems.append(f"job {job_id} was given {slots} slots on node {node}")
                else:
                    free[node] -= slots
    if min(free, default=0) < 0:
        problems += [
            f"node {node.name} was given out {-left} slots more than it has usable"
            for node, left in zip(view.cluster.nodes, free, strict=True)
            if left < 0
        ]
    if problems:
        return Rejected(tuple(problems))
    unplaced: dict[str, str] = {}
    scattered: Mapping[str, str] = {}
    if wanted:
        current = {job_id: jobs[job_id].allocation for job_id in wanted if jobs[job_id].allocation}
        placed = place(view.cluster, free, wanted, current)
        allocations |= placed.allocations
        unplaced |= placed.unplaced
        scattered = placed.scattered
        _drop_too_slow(allocations, wanted, unplaced, free, jobs)
    for guest, host in guests.items():
        if host in allocations:
            allocations[guest] = allocations[host]
        elif host in unplaced:
            unplaced[guest] = unplaced[host]
        if host in allocations and view.sharing is not None:
            gpu_type = view.cluster.nodes[allocations[host][0][0]].gpu_type
            both = jobs[host].facts, jobs[guest].facts
            if guest in decision.memory_caps:
                speeds = beside_host(view.sharing, *both, gpu_type, float(decision.memory_caps[guest]))[:2]
            else:
                speeds = view.sharing.relative_speeds(*both, gpu_type)
            if any(speed <= 0 for speed in speeds):  # a pair that was not measured may be tried
                problems.append(f"jobs {host} and {guest} cannot share slots of type {gpu_type}")
    for job_id, allocation in allocations.items():
        if allocation != jobs[job_id].allocation:
            problems += _out_of_bounds(jobs[job_id], allocation, view)
    if problems:
        return Rejected(tuple(problems))
    return Plan(
        named=tuple(decision.assignments if decision.others_stay else jobs),
        allocations=allocations,
        partners={job_id: other for job_id, other in partners.items() if job_id in allocations},
        reasons={
            **unplaced,
            **scattered,
            **{job_id: str(reason) for job_id, reason in decision.reasons.items() if reason},
        },
        wake_at_s=None if decision.wake_at_s is None else float(decision.wake_at_s),
        desired_nodes=decision.desired_nodes,
        caps={job_id: float(cap) for job_id, cap in decision.caps.items() if job_id in allocations},
        memory_caps={job_id: float(cap) for job_id, cap in decision.memory_caps.items() if job_id in allocations},
    )


def _drop_too_slow(
    allocations: dict[str, Allocation],
    wanted: Mapping[str, Configuration],
    unplaced: dict[str, str],
    free: Sequence[int],
    jobs: Mapping[str, JobView],
) -> None:
    """Take back places on which no execution plan of a job runs, or a guaranteed job is slower than it asked for.

    ``free`` are the slots for the jobs that are ``wanted`` somewhere. A job that runs keeps the slots that it has, if
    nobody was given them.
    """
    for job_id in wanted:
        facts, given = jobs[job_id].facts, allocations.get(job_id)
        if facts.plan_speeds is None or given is None:
            continue
        speed = facts.plan_speeds.steps_per_s([slots for _, slots in given])
        if speed > 0 and (facts.opportunistic or speed >= max(facts.throughputs.values(), default=0.0) * (1.0 - 1e-9)):
            continue
        del allocations[job_id]
        unplaced[job_id] = "the free slots are too scattered for the speed that it needs"
        current, left = jobs[job_id].allocation, list(free)
        for node, slots in (pair for other in wanted if other in allocations for pair in allocations[other]):
            left[node] -= slots
        if current and all(left[node] >= slots for node, slots in current):
            allocations[job_id] = current


def _malformed(decision: Decision) -> list[str]:
    """What is wrong with the parts of a decision, whatever its jobs are."""
    problems = [
        f"{name} is {type(value).__name__}, not a mapping by job"
        for name, value in (
            ("assignments", decision.assignments),
            ("reasons", decision.reasons),
            ("caps", decision.caps),
            ("memory_caps", decision.memory_caps),
        )
        if not isinstance(value, Mapping)
    ]
    pairs: object = decision.pairs
    if not isinstance(pairs, Sequence):
        problems.append(f"pairs is {type(pairs).__name__}, not a sequence")
    at_s: object = decision.wake_at_s
    if at_s is not None and not (isinstance(at_s, Real) and float(at_s) == float(at_s)):
        problems.append(f"wake_at_s is {at_s!r}, not a time")
    caps: object = decision.caps
    for job_id, cap in caps.items() if isinstance(caps, Mapping) else ():
        if not (isinstance(cap, Real) and 0.0 <= float(cap) <= 1.0):
            problems.append(f"job {job_id} may compute for {cap!r} of the time, not for a share from 0 to 1")
    memory: object = decision.memory_caps
    for job_id, cap in memory.items() if isinstance(memory, Mapping) else ():
        if not (isinstance(cap, Real) and 0.0 <= float(cap) <= 1.0):
            problems.append(f"job {job_id} may use {cap!r} of the memory, not a share from 0 to 1")
    nodes: object = decision.desired_nodes
    if nodes is not None and not (isinstance(nodes, Mapping) and all(map(_is_count, nodes.values()))):
        problems.append(f"desired_nodes is {nodes!r}, not a number of nodes by GPU type")
    return problems


def _is_count(number: object) -> bool:
    return isinstance(number, Integral) and int(number) >= 0


def _whole(assignment: object) -> Allocation | None:
    """An allocation as plain tuples of plain integers, sorted by node; None if it is none."""
    try:
        pairs = [(node, slots) for node, slots in assignment]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
    if not all(isinstance(number, Integral) for pair in pairs for number in pair):
        return None
    return tuple(sorted((int(node), int(slots)) for node, slots in pairs))


def _free_for(decision: Decision, view: ClusterView, jobs: Mapping[str, JobView], problems: list[str]) -> list[int]:
    """Slots that a decision may hand out around the jobs it does not name: the free ones and those of whom it names."""
    free = list(view.free_slots)
    for job_id in decision.assignments:
        job = jobs.get(job_id)
        if job is None or not job.allocation:
            continue
        if job.partner is not None and job.partner not in decision.assignments:
            problems.append(f"job {job_id} shares its slots with {job.partner}, which has to be named too")
        if job.partner is None or job_id < job.partner:
            for node, slots in job.allocation:
                free[node] += slots
    return free


def _partners(decision: Decision, problems: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Everybody's partner, and for the second job of every pair (the guest) the first; what is wrong is reported."""
    partners: dict[str, str] = {}
    guests: dict[str, str] = {}
    for pair in decision.pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            problems.append(f"a pair is of two different jobs, not of {pair}")
            continue
        first, second = pair
        given = [decision.assignments.get(job_id) for job_id in pair]
        if not all(given) or given[0] != given[1]:
            problems.append(f"jobs {first} and {second} share slots but were not given the same ones")
        twice = next((job_id for job_id in pair if job_id in partners), None)
        if twice is not None:
            problems.append(f"job {twice} is in more than one pair")
        partners[first], partners[second] = second, first
        guests[second] = first
    return partners, guests


def _out_of_bounds(job: JobView, allocation: Allocation, view: ClusterView) -> list[str]:
    facts, slots = job.facts, slots_of(allocation)
    problems = []
    if facts.adaptivity is Adaptivity.RIGID and slots != facts.requested_slots:
        problems.append(f"job {job.id} is rigid and needs {facts.requested_slots} slots, not {slots}")
    elif not facts.min_slots <= slots <= facts.max_slots:
        problems.append(f"job {job.id} was given {slots} slots, outside {facts.min_slots} to {facts.max_slots}")
    types = {view.cluster.nodes[node].gpu_type for node, _ in allocation}
    if len(types) > 1:
        problems.append(f"job {job.id} was given slots of several GPU types: {', '.join(sorted(types))}")
    elif facts.gpu_types is not None and not types <= facts.gpu_types:
        problems.append(f"job {job.id} was given GPU type {types.pop()}, which it does not allow")
    return problems
