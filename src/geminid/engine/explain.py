"""Why a job waits, or has the size it has: one dominant reason with its numbers, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from geminid.engine.hints import Hint, Levers, fewer_slots, more_slots, raise_priority, raise_quotas, reopen
from geminid.goodput.batchplan import best_plan
from geminid.policies.base import ClusterView, JobView
from geminid.units import humanize_duration

#: A decision that is due before this is called one "within seconds".
SOON_S = 5.0


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
    hints: tuple[Hint, ...] = ()
    sizes: tuple[Size, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)

    @property
    def suggestions(self) -> tuple[str, ...]:
        """What would change it, in words."""
        return tuple(hint.text for hint in self.hints)


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on the slots of several jobs together: whose it is (``owner ann``), the slots, and those in use.

    With ``borrow`` it may be exceeded while no other job can use the slots.
    """

    of: str
    slots: int
    used: int
    borrow: bool = False

    @property
    def left(self) -> int:
        """The slots that are left."""
        return self.slots - self.used

    def sentence(self) -> str:
        """In words."""
        text = f"the quota of {self.of} is {_count(self.slots, 'slot')}"
        if self.used <= self.slots:
            text += f", of which {self.used} {'is' if self.used == 1 else 'are'} used"
            return text + ("; more may be borrowed where nobody else can use it" if self.borrow else "")
        beyond = self.used - self.slots
        if self.borrow:
            return f"{text}, all used, and {_are(beyond, 'more slot')} borrowed while nobody else can use it"
        return f"{text}, and {self.used} are used: commands that run are left alone until they end"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDecision:
    """What became of a policy's last decision, at the moment of asking.

    ``pending`` if something has changed since, which the next decision will consider; that one is due in ``due_in_s``
    (inf: when something happens). ``rejection`` says why the last one was rejected, if it was.
    """

    policy: str
    pending: bool = True
    due_in_s: float = 0.0
    rejection: str = ""


def explain(
    view: ClusterView,
    job_id: str,
    *,
    prices: Mapping[str, float] | None = None,
    quotas: Sequence[Quota] = (),
    decided: str | None = None,
    cordoned: Mapping[str, int] | None = None,
    levers: Levers | None = None,
    last: LastDecision | None = None,
) -> Explanation | None:
    """Explain one active job; None if it is not among them.

    ``quotas`` are those that it is under, and ``decided`` the reason that the last decision gave for it, if any.
    ``cordoned`` are slots that jobs stay on, by job, and that no job gets after them. ``levers`` are what can be
    changed, and ``last`` is the last decision; without it, one is taken to be pending.
    """
    job = next((job for job in view.jobs if job.id == job_id), None)
    if job is None:
        return None
    sizes, levers = sizes_of(job, view), levers or Levers()
    found = (
        _running(job, view, sizes, quotas, levers)
        if job.allocation
        else _waiting(job, view, quotas, decided, cordoned or {}, levers, last)
    )
    reason, numbers, hints = found
    return Explanation(
        job_id=job_id,
        slots=job.slots,
        reason=reason,
        numbers=(*numbers, *(quota.sentence() for quota in quotas)),
        hints=tuple(hints),
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
    if slots in (0, job.slots) or not job.slots:
        return None
    before, after = predicted_goodput(job, job.slots, len(job.allocation)), predicted_goodput(job, slots, nodes)
    return after / before if before and after else None


def predicted_goodput(job: JobView, slots: int, nodes: int) -> float | None:
    """Useful samples per second on slots of the GPU type that a job has; None if its model does not know that type."""
    if job.model is None or job.gpu_type is None or not slots:
        return None
    fitted, limits = job.model.fits.get(job.gpu_type), job.model.limits.get(job.gpu_type)
    if fitted is None or limits is None:
        return None
    return best_plan(fitted, job.model.gradient, limits, nodes=nodes, slots=slots).goodput


@dataclass(frozen=True, slots=True)
class Room:
    """Slots of the GPU type that has most to offer to a job: a job's slots are all of one type."""

    total: int
    usable: int
    free: int


def room_for(job: JobView, view: ClusterView, cordoned: Mapping[str, int]) -> Room:
    """The slots of the type that would have a job soonest."""
    rooms = []
    for gpu_type, nodes in view.cluster.nodes_of_type.items():
        if job.facts.gpu_types is None or gpu_type in job.facts.gpu_types:
            usable = sum(view.usable_slots[node] for node in nodes)
            usable -= sum(cordoned.get(other.id, 0) for other in view.jobs if other.gpu_type == gpu_type)
            total, free = view.cluster.slots_per_type[gpu_type], sum(max(view.free_slots[node], 0) for node in nodes)
            rooms.append(Room(total, usable, free))
    need = job.facts.least_slots
    return max(rooms, key=lambda room: (room.usable >= need, room.free, room.usable), default=Room(0, 0, 0))


def _waiting(
    job: JobView,
    view: ClusterView,
    quotas: Sequence[Quota],
    decided: str | None,
    cordoned: Mapping[str, int],
    levers: Levers,
    last: LastDecision | None,
) -> tuple[str, list[str], list[Hint]]:
    """Why a job has no slots: the reason, numbers, and what would help. The first of these that holds is the reason.

    Too few slots are in service; a quota is smaller than the job; a quota is used up; what the decision said; enough
    slots are free, but no decision has given it any; the slots are held by others.
    """
    need, types, room = job.facts.least_slots, job.facts.gpu_types, room_for(job, view, cordoned)
    total, usable, free = room.total, room.usable, room.free
    holders = [other for other in view.jobs if other.allocation and (types is None or other.gpu_type in types)]
    holders = [other for other in holders if other.slots > cordoned.get(other.id, 0)]
    several = "" if types is None or types >= set(view.cluster.type_index) else f" of {' or '.join(sorted(types))}"
    numbers = [
        f"it needs {_count(need, 'slot')}{several}; {free} of {usable} usable {'is' if free == 1 else 'are'} free"
    ]
    if usable < total:
        numbers.append(
            f"{total - usable} of {total} slots are not in service (drained, cordoned, gone or used by others)"
        )
    if usable < need:
        reason = too_few_in_service(need, usable, total)
        return reason, numbers, [*reopen(levers), *fewer_slots(job.id, need, usable, levers)]
    numbers += [
        f"{other.id} ({other.facts.owner or 'nobody'}) holds {_count(other.slots, 'slot')}"
        f" for {other.executed_s(view.now_s):.0f} s{_priority(other, job)}"
        for other in sorted(holders, key=lambda other: -other.slots)[:8]
    ]
    waiting = [
        (arrived_s, other.facts.weight)
        for other in view.jobs
        if not other.allocation and other.id != job.id
        for arrived_s in (other.facts.submitted_s, *view.behind.get(other.id, ()))
    ]
    before = sum(arrived_s < job.facts.submitted_s for arrived_s, _ in waiting)
    ahead = sum(weight > job.facts.weight for _, weight in waiting)
    numbers.append(
        f"{_count(before, 'waiting job')} came before it, {ahead} {'has' if ahead == 1 else 'have'} a higher priority"
    )
    strict, whole = [quota for quota in quotas if not quota.borrow], view.cluster.total_slots
    short = [(quota.of, max(quota.used + need, need)) for quota in strict if quota.left < need]
    tightest = min(strict, key=lambda quota: quota.left, default=None)
    held = f"all but {free} of {usable} slots are" if free else f"all {usable} slots are"
    held = "the only slot in service is" if usable == 1 else held
    held = f"{held} held by {_count(len(holders), 'other job')}"
    if tightest is not None and any(quota.slots < need for quota in strict):
        tightest = min(strict, key=lambda quota: quota.slots)
        reason = forbidden_by_quota(need, tightest.of, tightest.slots)
        if free < need:  # it waits for slots, too, but could start some day
            short = [(quota.of, need) for quota in strict if quota.slots < need]
        return reason, numbers, [*raise_quotas(short, whole), *fewer_slots(job.id, need, tightest.slots, levers)]
    if tightest is not None and short:
        wait = f"it can start when other jobs of {tightest.of} end or shrink"
        if free < need:
            hints = [Hint(f"{wait}, and at least {_are(need - free, 'more slot')} free")]
            return f"{tightest.sentence()}; besides, {held}", numbers, hints
        return tightest.sentence(), numbers, [Hint(wait), *raise_quotas(short, whole)]
    may_give_way = [other for other in holders if other.id not in levers.stays]
    prefer = raise_priority(job.id, levers) if before or ahead or may_give_way else []
    if decided is not None:
        by_quota = [quota for quota in strict if decided.startswith(f"the quota of {quota.of} ")]
        others = [Hint(f"it can start when other jobs of {quota.of} end or shrink") for quota in by_quota]
        return decided, numbers, others or prefer
    if free >= need:
        reason, hints = _passed_over(free, last)
        return reason, numbers, hints
    hints = [Hint(_what_must_end(need - free, holders, levers))] if holders else []
    # The free slots may be kept for another one that waits.
    hints += [*prefer, *(fewer_slots(job.id, need, free, levers) if not waiting else ())]
    return held, numbers, hints


def _passed_over(free: int, last: LastDecision | None) -> tuple[str, list[Hint]]:
    """Why a job waits though enough slots are free: no decision has considered it yet, or the policy gave it none."""
    text = f"{_are(free, 'slot')} free"
    due_in_s = 0.0 if last is None else last.due_in_s
    if last is None or last.pending:
        when = "within seconds" if due_in_s < SOON_S else _when(due_in_s)
        hint = Hint(f"nothing needs to be done: the next decision is made {when}")
        return f"{text}, and the next decision will consider it", [hint]
    if last.rejection:
        return f"{text}, but {last.rejection}", [
            Hint("the policy has to be corrected: see the alerts (geminid status)")
        ]
    hint = Hint(f"the policy is asked again {_when(due_in_s)}")
    return f"{text}, but the policy ({last.policy}) gave it none", [hint]


def _when(due_in_s: float) -> str:
    """When the next decision is made."""
    if due_in_s == inf:
        return "when another job comes, changes or ends"
    return f"in {humanize_duration(max(round(due_in_s), 1))}"


def forbidden_by_quota(need: int, of: str, slots: int) -> str:
    """Why a job that needs more slots than a quota allows cannot start."""
    return f"it needs {_count(need, 'slot')}, and the quota of {of} is {slots}: it cannot start"


def too_few_in_service(need: int, usable: int, total: int) -> str:
    """Why a job cannot start before slots come (back) into service."""
    return f"it needs {_count(need, 'slot')}, and only {usable} of {total} are in service"


def _priority(other: JobView, job: JobView) -> str:
    """How another's priority compares, where it does not equal."""
    times = other.facts.weight / job.facts.weight
    return "" if times == 1.0 else f", by its priority counts {times:.3g} times as much"


def _what_must_end(missing: int, holders: Sequence[JobView], levers: Levers) -> str:
    """Who can give a waiting job the slots that it lacks: elastic jobs may shrink or stop, plain commands must end."""
    stay = [other for other in holders if other.id in levers.stays]
    small = [other for other in holders if other not in stay and other.slots <= other.facts.min_slots]
    elastic = [other for other in holders if other not in stay and other.slots > other.facts.min_slots]
    text = f"it can start when at least {_are(missing, 'more slot')} free"
    if elastic:
        text += f"; {_names(elastic)} may shrink or end"
    if small:
        text += f"; {_names(small)} {'is' if len(small) == 1 else 'are'} as small as can be and must end or give way"
    if stay:
        text += f"; {_names(stay)} {'runs' if len(stay) == 1 else 'run'} to the end"
    return text


def _names(jobs: Sequence[JobView]) -> str:
    named = ", ".join(f"{job.id} ({_count(job.slots, 'slot')})" for job in jobs[:5])
    return named if len(jobs) <= 5 else f"{named} and {len(jobs) - 5} more"


def _running(
    job: JobView, view: ClusterView, sizes: Sequence[Size], quotas: Sequence[Quota], levers: Levers
) -> tuple[str, list[str], list[Hint]]:
    """Why a job has the slots that it has: the reason, numbers, and what would help. The first that holds is given.

    Its size is fixed; fewer would do as well; it has all, or the most that it may have; a quota is used up; its speed
    does not matter to the policy, or is unknown; more would not help, or not yet; the others need the rest.
    """
    facts = job.facts
    of_type = view.cluster.nodes_of_type.get(job.gpu_type or "", ())
    usable = sum(view.usable_slots[node] for node in of_type)
    free = sum(max(slots, 0) for slots in view.free_slots)
    others = [other for other in view.jobs if other.id != job.id]
    behind = sum(map(len, view.behind.values()))
    waiting = behind + sum(not other.allocation for other in others)
    numbers = [
        f"it may have {facts.min_slots} to {facts.max_slots} slots"
        if facts.max_slots > facts.min_slots
        else f"it asked for exactly {_count(facts.min_slots, 'slot')}",
        f"{_are(free, 'slot')} free; {_are(len(others) + behind, 'other job')} active, {waiting} of them waiting",
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
        text = f"{_count(smaller.slots, 'slot')} would do as well or better, says its model since it was measured"
        return text, numbers, [Hint("it is looked at again shortly")]
    if job.slots >= usable:
        return "it has all slots that are in service", numbers, []
    if job.slots >= facts.max_slots:
        text = "it has the most slots that it may have"
        return text, numbers, more_slots(job.id, job.slots, usable, levers)
    strict = [quota for quota in quotas if not quota.borrow]
    tightest = min(strict, key=lambda quota: quota.left, default=None)
    if tightest is not None and tightest.left <= 0:
        short = [(quota.of, quota.used + 1) for quota in strict if quota.left <= 0]
        free_of_type = sum(max(view.free_slots[node], 0) for node in of_type)
        reason = f"{tightest.sentence()}: none are left to grow into"
        if not free_of_type:
            return f"{reason}; besides, no slot is free", numbers, []
        return reason, numbers, raise_quotas(short, view.cluster.total_slots)
    if not levers.size_follows_speed:
        return "the policy gives jobs their sizes without regard to their speeds", numbers, []
    if job.model is None:
        return (
            "nothing is known of its speed yet: it starts small and is measured first",
            numbers,
            [Hint("nothing needs to be done: its speed is measured as it trains")],
        )
    if best is None or (current is not None and best.goodput <= current.goodput):
        return "more slots would not make it faster, says its model", numbers, []
    if free:
        text = "slots are free, but growing is not worth its pause yet"
        return text, numbers, [Hint("it is looked at again shortly")]
    holders = [other for other in others if other.allocation]
    if holders and all(other.slots <= other.facts.min_slots for other in holders):
        text = f"no slot is free, and {_names(holders)} {'is' if len(holders) == 1 else 'are'} as small as can be"
        return text, numbers, [Hint("it can grow when one of them ends")]
    may_give = any(other.id not in levers.stays for other in holders) or waiting > 0
    text = "the other jobs gain more from the remaining slots"
    return text, numbers, raise_priority(job.id, levers) if may_give else []


def _are(number: int, noun: str) -> str:
    return f"{_count(number, noun)} {'is' if number == 1 else 'are'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
