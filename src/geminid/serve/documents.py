"""Jobs, nodes and usage as plain data, for the HTTP interface, tables and metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from geminid.cluster import Cluster
from geminid.engine.hints import Levers, fewer_slots
from geminid.job import JobKind
from geminid.jobstate import JobPhase
from geminid.policies.base import Policy
from geminid.serve.limits import time_left_s
from geminid.serve.livejob import BEFORE_THE_END, LiveJob, total_batch
from geminid.serve.service import Published, Service
from geminid.serve.state import ServiceState
from geminid.serve.translation import fits

#: What of a job's file is for its owner and admins alone.
PRIVATE = ("command", "working_dir", "env")

#: How many jobs are named in a sentence.
MAX_LISTED = 10


def job_document(job: LiveJob, now_s: float, position: int | None = None) -> dict[str, Any]:
    """A job, without its secrets."""
    state, work = job.state, job.work_samples
    return {
        "now_s": now_s,
        "id": job.id,
        "name": job.spec.name,
        "owner": job.spec.owner,
        "queue": job.spec.queue,
        "priority": job.spec.priority,
        "phase": job.shown_phase.value,
        "wish": job.wish,
        "reason": state.reason or waits_after(job),
        "elastic": job.elastic,
        "kind": job.kind.value,
        "kind_reason": job.kind_reason,
        "slots": job.held_slots,
        "target_slots": job.target.num_slots if job.target else 0,
        "placement": state.placement.to_dict() if state.placement else None,
        "min_slots": job.spec.min_slots,
        "max_slots": job.spec.max_slots,
        "position": position,
        "submitted_at_s": state.submitted_at_s,
        "started_at_s": state.first_started_at_s,
        "finished_at_s": state.finished_at_s,
        "jct_s": state.jct_s,
        "age_s": state.age_s if state.phase.is_terminal else max(now_s - state.submitted_at_s, 0.0),
        "done": done_share(job),
        "progress_samples": state.progress_samples,
        "work_samples": work,
        "durable_samples": state.durable_samples,
        "samples": job.samples,
        "epoch": job.epoch,
        "step": job.step,
        "batch": total_batch(job, state.batch_plan, state.num_slots) if state.batch_plan and state.num_slots else None,
        "batch_plan": None if state.batch_plan is None else state.batch_plan.to_dict(),
        "learning_rate_factor": job.learning_rate_factor,
        "metrics": dict(job.metrics),
        "gpu_s": job.service_gpu_s(now_s),
        "budget_gpu_s": job.spec.budget_gpu_s,
        "over_budget": job.over_budget,
        "over_time": job.time.is_up,
        "time_limit_s": job.spec.time_limit_s,
        "time_left_s": time_left_s(job, now_s),
        "rescales": state.rescales,
        "failures": state.failures,
        "late_s": late_s(job, now_s),
        "pauses_s": list(job.pauses_s),
        "after": [str(one) for one in job.spec.after],
        "array": array_document(job),
    }


def waits_after(job: LiveJob) -> str:
    """Which jobs a blocked job waits for, in words."""
    return f"it waits for {', '.join(map(str, job.spec.after))}" if job.blocked and not job.phase.is_terminal else ""


def array_document(job: LiveJob) -> dict[str, Any] | None:
    """What has become of the elements of an array; None for other jobs."""
    array = job.array
    if array is None:
        return None
    return {
        "elements": str(job.spec.array),
        "total": array.total,
        "unqueued": array.unmade,
        "queued": array.active - array.running,
        "running": array.running,
        "succeeded": array.succeeded,
        "failed": array.failed,
        "cancelled": array.cancelled,
    }


def count_phases(jobs: Iterable[LiveJob]) -> Counter[str]:
    """How many jobs are in which phase; of an array, its elements are counted."""
    phases: Counter[str] = Counter()
    for job in jobs:
        if job.array is None:
            phases[job.phase.value] += 1
        elif job.array.unmade:
            phases[JobPhase.PENDING.value] += job.array.unmade
    return phases


def done_share(job: LiveJob) -> float | None:
    """Which part of its work a job has done; None if that is not known: also of one that never reported any.

    One that succeeded has done all, however much was forecast, unless its script ended before training was over.
    """
    work = job.work_samples
    if job.array is not None:
        return (job.array.succeeded + job.array.failed + job.array.cancelled) / job.array.total
    if job.phase is JobPhase.SUCCEEDED:
        if not job.samples:
            return None
        if job.state.reason.startswith(BEFORE_THE_END):
            return min(job.done_samples / work, 1.0) if work else None
        return 1.0
    return min(job.done_samples / work, 1.0) if work else None


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one GPU type: those in service, and those of them that no job has or is planned for."""

    in_service: int
    free: int


def slots_by_type(state: ServiceState, cluster: Cluster) -> dict[str, Slots]:
    """What the cluster has to offer, by GPU type."""
    taken = {
        slot
        for job in state.jobs.values()
        for place in (job.target, job.state.placement)
        if place is not None
        for slot in place.slots()
    }
    closed, gone = state.out_of_service, state.emptied | state.down
    found = {name: Slots(0, 0) for name in cluster.type_index}
    for node in cluster.nodes:
        if node.name not in gone:
            usable = [(node.name, slot) for slot in range(node.slots) if (node.name, slot) not in closed]
            known = found[node.gpu_type]
            free = sum(slot not in taken for slot in usable)
            found[node.gpu_type] = Slots(known.in_service + len(usable), known.free + free)
    return found


def needs_of(job: LiveJob, slots: Mapping[str, Slots]) -> dict[str, Any] | None:
    """What a job that waits for slots needs, beside what there is of the type that has most for it; else None."""
    if not job.wants_slots or job.target is not None or job.phase.holds_slots:
        return None
    names = [name for name in job.spec.gpu_types.names or slots if name in slots]
    most = max((slots[name] for name in names), key=lambda one: (one.free, one.in_service), default=Slots(0, 0))
    return {
        "slots": job.spec.min_slots,
        "gpu_types": list(job.spec.gpu_types.names),
        "free": most.free,
        "in_service": most.in_service,
    }


def late_s(job: LiveJob, now_s: float) -> float | None:
    """For how long a job has missed its deadline, or by how much it has; None if it has not, or has none."""
    if job.spec.deadline_s is None:
        return None
    ended_s = now_s if job.state.finished_at_s is None else job.state.finished_at_s
    late = ended_s - job.state.submitted_at_s - job.spec.deadline_s
    return late if late > 0 else None


def without_private(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What all users may see of a job's file: all but its command, folder and environment."""
    return {name: value for name, value in spec.items() if name not in PRIVATE}


def job_details(job: LiveJob, now_s: float, position: int | None = None) -> dict[str, Any]:
    """A job with its specification, its story and what it has measured."""
    return {
        **job_document(job, now_s, position),
        "spec": job.spec.redacted().to_dict(),
        "limits": None if job.limits is None else job.limits.to_dict(),
        "measured": {name: [asdict(seen) for seen in known.observations] for name, known in job.measured},
        "story": [asdict(line) for line in job.story],
    }


def changing(job: LiveJob, state: ServiceState, delay: str = "") -> str:
    """What a job is on its way to, if it is: the plan and what its processes hold differ.

    ``delay`` is what it waits for although its slots are free.
    """
    if job.target is None:
        if not job.phase.holds_slots:
            return ""
        after = "saves what it has done, stops, and goes on" if job.elastic else "is stopped, and begins again"
        return f"it has to leave its slots ({job.why or 'others go first'}); it {after} when it has others"
    wanted, slots = set(job.target.slots()), job.target.num_slots
    held = job.state.placement
    before = [
        other.id
        for other in state.jobs.values()
        if other.id != job.id and other.state.placement and wanted & set(other.state.placement.slots())
    ]
    until = f" as soon as {', '.join(before[:3])} {'has' if len(before) == 1 else 'have'} left" if before else ""
    count = f"{slots} slot{'s' if slots > 1 else ''}"
    if job.phase is JobPhase.STOPPING:
        return f"it stops, and starts again on {count}{until}"
    if held is None:
        return f"it is to start on {count}{until or (f': {delay}' if delay else ' now')}"
    if job.phase is JobPhase.STARTING:
        return f"it is being started on {held.num_slots} of {count}" + (f", and has all{until}" if until else "")
    if wanted != set(held.slots()):
        return f"it is on its way from {held.num_slots} to {count}{until or (f': {delay}' if delay else '')}"
    return ""


def drain_document(state: ServiceState, node: str) -> dict[str, list[str]]:
    """The jobs that a drain of a node affects: those that stop, and those that move."""
    there = [job for job in state.jobs.values() if job.state.placement and node in job.state.placement.node_names]
    return {
        "stops": [job.id for job in there if not job.elastic],
        "moves": [job.id for job in there if job.elastic],
    }


def drain_warning(state: ServiceState, cluster: Cluster, node: str, stops: Sequence[str]) -> str:
    """What draining a node does to the plain commands on it: they begin again where there are slots for them.

    Those that need more than the other nodes have in service wait until the node is back.
    """
    there = in_service_by_type(state, cluster, without=node)
    waits = [job_id for job_id in stops if not _has_room(state.jobs[job_id], there)]
    names = [f"{job_id} ({state.jobs[job_id].spec.name})" for job_id in stops]
    listed = ", ".join(names[:MAX_LISTED])
    listed += f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    begin = "it starts again from its beginning" if len(stops) == 1 else "they start again from their beginning"
    if len(waits) == len(stops):
        return f"draining {node} stops {listed}; {begin} when {node} is back: there are too few slots elsewhere"
    sentence = f"draining {node} stops {listed}; {begin} on other slots"
    return sentence if not waits else f"{sentence}, {', '.join(waits[:MAX_LISTED])} only when {node} is back"


def _has_room(job: LiveJob, in_service: Mapping[str, int]) -> bool:
    """Whether there are as many slots of a type that a job may use as it needs."""
    names = job.spec.gpu_types.names
    return any(slots >= job.spec.min_slots for name, slots in in_service.items() if not names or name in names)


def in_service_by_type(state: ServiceState, cluster: Cluster, *, without: str = "") -> dict[str, int]:
    """The slots in service of each GPU type, on all nodes but one."""
    rest = [node for node in cluster.nodes if node.name != without]
    if not rest:
        return {}
    return {name: slots.in_service for name, slots in slots_by_type(state, replace(cluster, nodes=tuple(rest))).items()}


def queue_documents(state: ServiceState) -> list[dict[str, Any]]:
    """The queues that have rules."""
    return [{"queue": name, **rules.to_dict(), "open": rules.is_open} for name, rules in sorted(state.queues.items())]


def too_large(job: LiveJob, cluster: Cluster) -> tuple[str, list[str], list[str]] | None:
    """Of a job that needs more slots than there are: why it waits, the numbers, and what would change it."""
    if not job.wants_slots or job.target is not None or fits(job, cluster):
        return None
    need, names = job.spec.min_slots, job.spec.gpu_types.names
    here = {name: cluster.slots_per_type.get(name, 0) for name in names or cluster.type_index}
    most, total = max(here.values(), default=0), cluster.total_slots
    of_type = " of a type that it may use" if names else " of one type" if len(here) > 1 else ""
    reason = f"it needs {need} slots, and there {'is' if most == 1 else 'are'} {most}{of_type}: it cannot start"
    numbers = [
        f"{slots} of the {total} slots {'is' if slots == 1 else 'are'} of type {name}" for name, slots in here.items()
    ]
    hints = [f"offer {need - most} more (`geminid up` with more slots or devices; on a Ray cluster, more nodes)"]
    fewer = fewer_slots(job.id, need, most, Levers(elastic=job.kind is not JobKind.PLAIN))
    return reason, numbers, [*hints, *(hint.text for hint in fewer)]


def circumstances(job: LiveJob, state: ServiceState, now_s: float) -> list[str]:
    """Why a running job has the slots that it has, and that some of them are cordoned."""
    if job.target is None:
        return []
    lines = []
    if job.why:
        lines.append(f"its slots last changed {max(now_s - job.target_since_s, 0.0):.0f} s ago: {job.why}")
    cordoned = sorted(set(job.target.slots()) & state.cordoned)
    if cordoned:
        names = ", ".join(f"{node}/{slot}" for node, slot in cordoned[:3]) + (" and more" if len(cordoned) > 3 else "")
        until = "until there is room elsewhere" if job.elastic else "until it ends"
        lines.append(f"{names} {'is' if len(cordoned) == 1 else 'are'} cordoned: it stays there {until}")
    return lines


def node_documents(
    state: ServiceState, cluster: Cluster, agent_versions: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Every node with its slots and the jobs on them."""
    holders = {
        slot: job.id for job in state.jobs.values() if job.state.placement for slot in job.state.placement.slots()
    }
    planned = {slot: job.id for job in state.jobs.values() if job.target for slot in job.target.slots()}
    return [
        {
            "name": node.name,
            "gpu_type": node.gpu_type,
            "slots": node.slots,
            "rack": node.rack,
            "zone": node.zone,
            "drained": node.name in state.drained,
            "leaving": node.name in state.leaving,
            "down": node.name in state.down,
            "taken": sorted(slot for owner, slot in state.taken if owner == node.name),
            "unfit": state.unfit.get(node.name, ""),
            "agent_version": agent_versions.get(node.name, ""),
            "cordoned": sorted(slot for owner, slot in state.cordoned if owner == node.name),
            "jobs": [holders.get((node.name, slot)) for slot in range(node.slots)],
            "planned": [planned.get((node.name, slot)) for slot in range(node.slots)],
        }
        for node in cluster.nodes
    ]


def usage_documents(state: ServiceState, now_s: float) -> list[dict[str, Any]]:
    """What each owner has used and is using."""
    active: dict[str, Counter[str]] = defaultdict(Counter)
    for job in state.jobs.values():
        count = active[job.spec.owner or ""]
        count["running"] += job.phase.holds_slots
        count["waiting"] += job.wants_slots and job.target is None
        count["slots"] += job.state.num_slots
    return [
        {
            "owner": owner,
            "jobs": totals.jobs,
            **{name: active[owner][name] for name in ("running", "waiting", "slots")},
            "gpu_hours": totals.gpu_s / 3600.0,
            "quota": state.quotas.get(("owner", owner)),
        }
        for owner, totals in sorted(state.totals(now_s).items())
    ]


def quota_documents(state: ServiceState) -> list[dict[str, Any]]:
    """The quotas, with what is used of them."""
    used: Counter[tuple[str, str]] = Counter()
    for job in state.jobs.values():
        slots = job.target.num_slots if job.target else 0
        used["queue", job.spec.queue] += slots
        used["owner", job.spec.owner or ""] += slots
    return [
        {
            "of": of,
            "name": name,
            "slots": slots,
            "used": used[of, name],
            "beyond": max(used[of, name] - slots, 0),
            "borrow": (of, name) in state.borrowers,
        }
        for (of, name), slots in sorted(state.quotas.items())
    ]


def status_document(published: Published, cluster: Cluster, policy: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The service at a glance."""
    state = published.state
    phases = count_phases(state.jobs.values())
    return {
        **extra,
        "policy": policy,
        "epoch": state.epoch,
        "seq": state.seq,
        "slots": cluster.total_slots,
        "slots_held": sum(job.state.num_slots for job in state.jobs.values()),
        "gpu_types": dict(cluster.slots_per_type),
        "drained": sorted(state.drained & set(cluster.node_index)),
        "leaving": sorted(state.leaving & set(cluster.node_index)),
        "down": sorted(state.down & set(cluster.node_index)),
        "taken": [f"{node}/{slot}" for node, slot in sorted(state.taken & state.out_of_service)],
        "cordoned": [f"{node}/{slot}" for node, slot in sorted(state.cordoned & state.out_of_service)],
        "jobs": {phase.value: phases[phase.value] for phase in JobPhase if phases[phase.value]},
        "decisions": published.counts.made,
        "rejected_decisions": published.counts.rejected,
        "last_decision_ms": published.last_decision_ms,
        "trouble": published.trouble,
        "notes": [{"at_s": at_s, "level": level, "text": text} for at_s, level, text in state.notes[-10:]],
    }


def market_document(policy: Policy, cluster: Cluster) -> dict[str, Any]:
    """What a policy's last decision says of the cluster's worth, where it does.

    The price of a slot of each GPU type (what the jobs that want one more would gain), at most which share of the best
    decision was lost, and what an autoscaled cluster should have, with reasons.
    """
    solution, suggested = getattr(policy, "solution", None), getattr(policy, "wishes", ())
    prices = [] if solution is None else solution.prices.types.tolist()
    if len(prices) != len(cluster.type_index):  # nothing was decided yet, or not since the cluster has other GPU types
        prices = []
    return {
        "prices": dict(zip(cluster.type_index, prices, strict=False)),
        "gap": None if solution is None else solution.gap,
        "wishes": [{**asdict(one), "reason": one.reason} for one in suggested],
    }


def glance_document(published: Published, service: Service) -> dict[str, Any]:
    """What everybody who watches is shown of the service as a whole, whenever it changes."""
    state, market = published.state, market_document(service.market, service.cluster)
    return {
        "slots": service.cluster.total_slots,
        "slots_held": sum(job.state.num_slots for job in state.jobs.values()),
        "policy": service.policy_text,
        "prices": {name: float(f"{price:.3g}") for name, price in market["prices"].items()},
        "gap": market["gap"],
        "decisions": published.counts.made,
        "trouble": published.trouble,
        "ending": service.ending,
        "jobs": dict(count_phases(state.jobs.values())),
        "nodes_out": sorted(state.drained | state.down | state.leaving),
        "notes": [{"at_s": at_s, "level": level, "text": text} for at_s, level, text in state.notes[-5:]],
    }


def factors_of(policy: Policy, job_id: str) -> dict[str, float]:
    """What a job counted with in the policy's last decision, by claim, where it says so."""
    factors = getattr(policy, "factors", None)
    return {} if factors is None else dict(factors(job_id))
