"""Why a job waits, or has the size it has: one dominant reason with its numbers, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from geminid.goodput.batchplan import best_plan
from geminid.policies.base import ClusterView, JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a job would get out of a number of slots of one GPU type, as its model predicts."""

    gpu_type: str
    slots: int
    nodes: int
    goodput: float
    throughput: float
    efficiency: float
    batch: int
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One job's situation. ``prices`` are what a slot of each GPU type is worth to the others, if the policy says."""

    job_id: str
    slots: int
    reason: str
    numbers: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on the slots of several jobs together: whose it is (``owner ann``), the slots, and those in use.

    Those who may ``borrow`` have more where nobody else can use it.
    """

    of: str
    slots: int
    used: int
    borrow: bool = False

    @property
    def left(self) -> int:
        """The slots that are left."""
        return self.slots - self.used

    def told(self) -> str:
        """In words."""
        told = f"the quota of {self.of} is {_count(self.slots, 'slot')}"
        if self.used <= self.slots:
            told += f", of which {self.used} {'is' if self.used == 1 else 'are'} used"
            return told + ("; more may be borrowed where nobody else can use it" if self.borrow else "")
        beyond = self.used - self.slots
        if self.borrow:
            return f"{told}, all used, and {_are(beyond, 'more slot')} borrowed while nobody else can use it"
        return f"{told}, and {self.used} are used: commands that run are left alone until they end"


def explain(
    view: ClusterView,
    job_id: str,
    *,
    prices: Mapping[str, float] | None = None,
    quotas: Sequence[Quota] = (),
    decided: str | None = None,
    cordoned: Mapping[str, int] | None = None,
) -> Explanation | None:
    """Explain one active job; None if it is not among them.

    ``quotas`` are those that it is under, and ``decided`` the reason that the last decision gave for it, if any.
    ``cordoned`` are slots that jobs stay on, by job, and that nobody gets after them.
    """
    job = next((job for job in view.jobs if job.id == job_id), None)
    if job is None:
        return None
    sizes = sizes_of(job, view)
    told = (
        _running(job, view, sizes, quotas) if job.allocation else _waiting(job, view, quotas, decided, cordoned or {})
    )
    reason, numbers, suggestions = told
    return Explanation(
        job_id=job_id,
        slots=job.slots,
        reason=reason,
        numbers=(*numbers, *(quota.told() for quota in quotas)),
        suggestions=tuple(suggestions),
        sizes=sizes,
        prices=dict(prices or {}),
    )


def sizes_of(job: JobView, view: ClusterView) -> tuple[Size, ...]:
    """Predicted goodput of the sizes that a job could have; none before it has been measured.

    They are all that a node has room for, on several nodes whole ones, twice as many each time, and the one it has.
    """
    if job.model is None:
        return ()
    result = []
    for gpu_type, fitted in job.model.fits.items():
        limits = job.model.limits.get(gpu_type)
        if limits is None:
            continue
        for slots, nodes in sorted(_shapes(job, view, gpu_type).items()):
            plan = best_plan(fitted, job.model.gradient, limits, nodes=nodes, slots=slots)
            if plan.goodput > 0:
                result.append(
                    Size(
                        gpu_type=gpu_type,
                        slots=slots,
                        nodes=nodes,
                        goodput=plan.goodput,
                        throughput=plan.throughput,
                        efficiency=plan.efficiency,
                        batch=plan.total_batch,
                        current=slots == job.slots and gpu_type == job.gpu_type,
                    )
                )
    return tuple(result)


def _shapes(job: JobView, view: ClusterView, gpu_type: str) -> dict[int, int]:
    """On how many nodes a job would be with each of some numbers of slots of a type."""
    per_node = view.cluster.largest_node_slots.get(gpu_type, 0)
    least, most = job.facts.min_slots, min(job.facts.max_slots, view.cluster.slots_per_type.get(gpu_type, 0))
    shapes = dict.fromkeys(range(least, min(most, per_node) + 1), 1)
    if most > per_node > 0:
        whole = [per_node << doublings for doublings in range(1, (most // per_node).bit_length())]
        shapes |= {slots: -(-slots // per_node) for slots in (*whole, most) if slots >= least}
    if job.allocation and job.gpu_type == gpu_type:
        shapes[job.slots] = len(job.allocation)
    return shapes


def expected_speed(job: JobView, slots: int, nodes: int) -> float | None:
    """How many times as fast as it is a job should be with other slots of its type; None if that is not known."""
    if job.model is None or job.gpu_type is None or slots in (0, job.slots) or not job.slots:
        return None
    fitted, limits = job.model.fits.get(job.gpu_type), job.model.limits.get(job.gpu_type)
    if fitted is None or limits is None:
        return None
    before, after = (
        best_plan(fitted, job.model.gradient, limits, nodes=on, slots=count).goodput
        for count, on in ((job.slots, len(job.allocation)), (slots, nodes))
    )
    return after / before if before > 0 and after > 0 else None


def _waiting(
    job: JobView, view: ClusterView, quotas: Sequence[Quota], decided: str | None, cordoned: Mapping[str, int]
) -> tuple[str, list[str], list[str]]:
    need, types = job.facts.min_slots, job.facts.gpu_types
    nodes = [i for i, node in enumerate(view.cluster.nodes) if types is None or node.gpu_type in types]
    total = sum(view.cluster.nodes[i].slots for i in nodes)
    usable, free = sum(view.usable_slots[i] for i in nodes), sum(max(view.free_slots[i], 0) for i in nodes)
    holders = [other for other in view.jobs if any(node in nodes for node, _ in other.allocation)]
    usable -= sum(cordoned.get(other.id, 0) for other in holders)
    holders = [other for other in holders if other.slots > cordoned.get(other.id, 0)]
    numbers = [f"it needs {_count(need, 'slot')}; {free} of {usable} usable {'is' if free == 1 else 'are'} free"]
    if usable < total:
        numbers.append(
            f"{total - usable} of {total} slots are not in service (drained, cordoned, gone or used by others)"
        )
    if usable < need:
        reason = f"it needs {_count(need, 'slot')}, and only {usable} of {total} are in service"
        fewer = [f"ask for fewer slots (min_slots is {need})"] if need > 1 and usable else []
        return reason, numbers, ["bring a node back, undrain one, or uncordon slots", *fewer]
    numbers += [
        f"{other.id} ({other.facts.owner or 'nobody'}) holds {_count(other.slots, 'slot')}"
        f" for {other.executed_s(view.now_s):.0f} s{_priority(other, job)}"
        for other in sorted(holders, key=lambda other: -other.slots)[:8]
    ]
    ahead = [other for other in view.jobs if not other.allocation and other.facts.weight > job.facts.weight]
    before = [
        other
        for other in view.jobs
        if not other.allocation and other.id != job.id and other.facts.submitted_s < job.facts.submitted_s
    ]
    numbers.append(
        f"{_count(len(before), 'waiting job')} came before it, {len(ahead)} {'has' if len(ahead) == 1 else 'have'}"
        " a higher priority"
    )
    strict = [quota for quota in quotas if not quota.borrow]
    tightest = min(strict, key=lambda quota: quota.left, default=None)
    if tightest is not None and tightest.slots < need:
        reason = forbidden_by_quota(need, tightest.of, tightest.slots)
        return reason, numbers, [_raise(tightest, need), f"ask for fewer slots (min_slots is {need})"]
    if tightest is not None and tightest.left < need:
        hints = [f"it starts when other jobs of {tightest.of} end or shrink", _raise(tightest, tightest.used + need)]
        return tightest.told(), numbers, hints
    suggestions = ["raise its priority (geminid set --priority)"]
    if decided is not None:
        return decided, numbers, suggestions
    if free >= need:
        told = f"{_are(free, 'slot')} free, and the next decision will consider it"
        return told, numbers, ["wait for a moment"]
    if holders:
        suggestions.insert(0, _what_must_end(need - free, holders))
    if need > 1 and free:
        suggestions.append(f"had it asked for {_count(free, 'slot')}, it could start now")
    held = f"all but {free} of {usable} slots are" if free else f"all {usable} slots are"
    held = "the only slot in service is" if usable == 1 else held
    return f"{held} held by {_count(len(holders), 'other job')}", numbers, suggestions


def forbidden_by_quota(need: int, of: str, slots: int) -> str:
    """Why a job that needs more slots than a quota allows cannot start."""
    return f"it needs {_count(need, 'slot')}, and the quota of {of} is {slots}: it cannot start"


def _priority(other: JobView, job: JobView) -> str:
    """How another's priority compares, where it does not equal."""
    times = other.facts.weight / job.facts.weight
    return "" if times == 1.0 else f", by its priority counts {times:.3g} times as much"


def _what_must_end(missing: int, holders: Sequence[JobView]) -> str:
    """Who can give a waiting job the slots that it lacks: elastic jobs may shrink, all others have to end."""
    fixed = [other for other in holders if other.slots <= other.facts.min_slots]
    elastic = [other for other in holders if other.slots > other.facts.min_slots]
    told = f"it can start when at least {_are(missing, 'more slot')} free"
    if elastic:
        told += f"; {_names(elastic)} may shrink or end"
    if fixed:
        told += f"; {_names(fixed)} {'is' if len(fixed) == 1 else 'are'} as small as can be and must end or give way"
    return told


def _names(jobs: Sequence[JobView]) -> str:
    named = ", ".join(f"{job.id} ({_count(job.slots, 'slot')})" for job in jobs[:5])
    return named if len(jobs) <= 5 else f"{named} and {len(jobs) - 5} more"


def _raise(quota: Quota, slots: int) -> str:
    return f"have the quota raised (geminid quota {quota.of} {slots})"


def _running(
    job: JobView, view: ClusterView, sizes: Sequence[Size], quotas: Sequence[Quota]
) -> tuple[str, list[str], list[str]]:
    facts = job.facts
    free = sum(max(slots, 0) for slots in view.free_slots)
    others = [other for other in view.jobs if other.id != job.id]
    waiting = sum(not other.allocation for other in others)
    numbers = [
        f"it may have {facts.min_slots} to {facts.max_slots} slots"
        if facts.max_slots > facts.min_slots
        else f"it asked for exactly {_count(facts.min_slots, 'slot')}",
        f"{_are(free, 'slot')} free; {_are(len(others), 'other job')} active, {waiting} of them waiting",
    ]
    current = next((size for size in sizes if size.current), None)
    bigger = [size for size in sizes if size.slots > job.slots and size.gpu_type == job.gpu_type]
    if current is not None:
        numbers.append(
            f"on {_count(job.slots, 'slot')} its model predicts {current.goodput:.4g} useful samples/s"
            f" ({current.throughput:.4g} samples/s × efficiency {current.efficiency:.2f})"
        )
    best = max(bigger, key=lambda size: size.goodput, default=None)
    if best is not None and current is not None:
        gain = best.goodput / current.goodput - 1.0
        numbers.append(f"{best.slots} slots would change that by {100 * gain:+.0f} %")
    if facts.max_slots == facts.min_slots:
        return "its size is fixed", numbers, []
    smaller = max((size for size in sizes if size.slots < job.slots), key=lambda size: size.goodput, default=None)
    if smaller is not None and current is not None and smaller.goodput > current.goodput:
        told = f"{_count(smaller.slots, 'slot')} would do as well or better, says its model since it was measured"
        return told, numbers, ["it is looked at again shortly"]
    if job.slots >= sum(view.usable_slots):
        return "it has all slots that are in service", numbers, []
    if job.slots >= facts.max_slots:
        return "it has the most slots that it may have", numbers, ["raise max_slots (geminid set --max-slots)"]
    strict = [quota for quota in quotas if not quota.borrow]
    tightest = min(strict, key=lambda quota: quota.left, default=None)
    if tightest is not None and tightest.left <= 0:
        return f"{tightest.told()}: none are left to grow into", numbers, [_raise(tightest, tightest.used + 1)]
    if job.model is None:
        return (
            "nothing is known of its speed yet: it starts small and is measured first",
            numbers,
            ["wait for a moment"],
        )
    if best is None or (current is not None and best.goodput <= current.goodput):
        return "more slots would not make it faster, says its model", numbers, []
    if free:
        return "slots are free, but growing is not worth its pause yet", numbers, ["it is looked at again shortly"]
    holders = [other for other in others if other.allocation]
    if holders and all(other.slots <= other.facts.min_slots for other in holders):
        told = f"no slot is free, and {_names(holders)} {'is' if len(holders) == 1 else 'are'} as small as can be"
        return told, numbers, ["it can grow when one of them ends"]
    return "the others make more of the remaining slots", numbers, ["raise its priority (geminid set --priority)"]


def _are(number: int, noun: str) -> str:
    return f"{_count(number, noun)} {'is' if number == 1 else 'are'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
