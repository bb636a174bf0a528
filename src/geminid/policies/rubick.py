"""Rubick: slots and execution plans together, for guaranteed and best-effort jobs.

Zhang et al., "Rubick: Exploiting Job Reconfigurability for Deep Learning Cluster Scheduling", MLSys '25.

Every job has a curve: its speed on k slots under the best execution plan there, relative to that on the slots that its
user asked for. A guaranteed job needs the fewest slots that reach the speed of what its user asked for (these slots,
under the user's plan) and is never given fewer; best-effort jobs need none. In rounds, waiting jobs start in the order
of their arrival, guaranteed ones first. Where there is no room, the running job that loses the least speed per slot is
shrunk, as long as the job to start gains more per slot than that one loses (a guaranteed job, until it has what it
needs). Slots that are left go, step by step, to the job that gains the most per slot. A running job is changed only if
it has run long enough to pay for it: (T − N·δ)/T ≥ 0.97 after N changes of δ seconds each in T seconds of running.

Deviations. The paper's policy as we understand it, not the published code, in which shrinking never happens. Speeds are
those of the profiles; GPUs are the only resource (the paper also divides CPUs and bandwidth). A job shrinks to another
size of its curve, and a best-effort job down to nothing only if it has no smaller one. It places jobs itself, on the
fullest node that has room or else on few nodes: a guaranteed job only where it is as fast as it asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from geminid.policies.base import Allocation, ClusterView, Decision, JobView, PlanSpeeds, Policy
from geminid.policies.goodputs import spread_evenly
from geminid.policies.options import AtLeast, AtMost, Positive


@dataclass(slots=True)
class Rubick(Policy):
    """Slopes of speed over slots, with the best execution plan at every size; see the module's docstring."""

    name = "rubick"
    paper = "Zhang et al., MLSys '25"
    objective = "guaranteed jobs at the speed they asked for; other slots where they add the most relative speed"
    not_live = "it needs speeds under execution plans, which only profiles in simulations have"
    meanings: ClassVar[Mapping[str, str]] = {
        "worth": "a job is changed only if at least this share of its running time is not spent in changes",
    }

    interval_s: Positive | None = 60.0
    worth: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.97
    _curves: dict[tuple[int, int, int], tuple[PlanSpeeds, Curve]] = field(default_factory=dict)

    @property
    def chooses_plans(self) -> bool:
        """It does: the best plan at every size."""
        return True

    def decide(self, view: ClusterView) -> Decision:
        """Start, shrink and expand."""
        per_node = int(view.cluster.node_slots.max())
        shares = [
            Share(
                job,
                self._curve(job, per_node, sum(view.usable_slots)),
                dict(job.allocation) if job.stands(view.usable_slots) else {},
            )
            for job in view.jobs
        ]
        changeable = [share for share in shares if self._may_change(share.job, view.now_s)]
        room = Room(view, shares)
        for share in sorted(shares, key=lambda share: share.job.facts.opportunistic):
            if not share.slots:
                _start(share, changeable, room)
        _expand(changeable, room)
        return Decision({share.job.id: _assignment(share) for share in shares if share.slots})

    def _may_change(self, job: JobView, now_s: float) -> bool:
        if not job.allocation:
            return True
        executed_s = job.executed_s(now_s)
        return executed_s - (job.restarts + 1) * job.facts.rescale_s >= self.worth * executed_s

    def _curve(self, job: JobView, per_node: int, most: int) -> Curve:
        speeds, slots = job.facts.plan_speeds, job.facts.requested_slots
        if speeds is None:
            return Curve.through([(slots, 1.0)])
        known = self._curves.get((id(speeds), slots, most))
        if known is None or known[0] is not speeds:

            def speed(slots: int) -> float:
                return speeds.steps_per_s(spread_evenly(slots, -(-slots // per_node)))

            points = [(k, speed(k)) for k in range(1, most + 1) if k <= per_node or k % per_node == 0]
            known = self._curves[id(speeds), slots, most] = (speeds, Curve.through(points, speed(slots) or 1.0))
        return known[1]


@dataclass(frozen=True, slots=True)
class Curve:
    """Sizes at which a job is faster than at any smaller one, with its speed there in multiples of ``unit``."""

    sizes: tuple[int, ...]
    speeds: tuple[float, ...]
    unit: float

    @classmethod
    def through(cls, points: Iterable[tuple[int, float]], unit: float = 1.0) -> Curve:
        """The curve of these sizes and speeds, without those that bring nothing."""
        kept: list[tuple[int, float]] = []
        for slots, speed in sorted(points):
            if speed > (kept[-1][1] if kept else 0.0):
                kept.append((slots, speed))
        return cls(tuple(slots for slots, _ in kept), tuple(speed / unit for _, speed in kept), unit)

    def speed(self, slots: int) -> float:
        """The speed on at most this many slots."""
        at = bisect_right(self.sizes, slots)
        return self.speeds[at - 1] if at else 0.0

    def reaching(self, speed: float) -> int:
        """The fewest slots with this speed, or with the highest."""
        rounded = speed * (1.0 - 1e-9)
        return next((k for k, s in zip(self.sizes, self.speeds, strict=True) if s >= rounded), self.sizes[-1])

    def steps_up(self, slots: int, room: int) -> Iterator[tuple[float, int]]:
        """Larger sizes that need at most ``room`` more slots, each with the speed that it gains per slot."""
        here = self.speed(slots)
        for size, speed in zip(self.sizes, self.speeds, strict=True):
            if slots < size <= slots + room and speed > here:
                yield (speed - here) / (size - slots), size

    def flattest(self, slots: int, at_least: int) -> tuple[float, int]:
        """The step down that loses the least speed per slot: the loss, and the size there."""
        here = self.speed(slots)
        down = [k for k in (0, *self.sizes) if at_least <= k < slots]
        smaller = [k for k in down if k] or down
        return min((((here - self.speed(k)) / (slots - k), k) for k in smaller), default=(float("inf"), slots))


@dataclass(slots=True)
class Share:
    """What one job has in the decision to be: slots by node."""

    job: JobView
    curve: Curve
    nodes: dict[int, int]

    @property
    def slots(self) -> int:
        """How many slots it has."""
        return sum(self.nodes.values())

    @property
    def needed(self) -> int:
        """Slots below which it is not shrunk: what its guaranteed speed takes."""
        facts = self.job.facts
        if facts.opportunistic or not self.curve.sizes:
            return 0
        requested = max(facts.throughputs.values(), default=0.0) if facts.plan_speeds is not None else 1.0
        return self.curve.reaching(requested / self.curve.unit)

    def runs_on(self, nodes: Mapping[int, int]) -> bool:
        """Whether it runs there, if guaranteed at the speed that it asked for."""
        facts = self.job.facts
        if facts.plan_speeds is None:
            return True
        speed = facts.plan_speeds.steps_per_s(tuple(nodes.values()))
        requested = 0.0 if facts.opportunistic else max(facts.throughputs.values(), default=0.0)
        return speed > 0.0 and speed >= requested * (1.0 - 1e-9)


class Room:
    """The slots that nobody has, node by node."""

    def __init__(self, view: ClusterView, shares: Iterable[Share]) -> None:
        self.free = list(view.usable_slots)
        self.node_type = view.cluster.node_type.tolist()
        self.names = list(view.cluster.type_index)
        self.types = range(len(self.names))
        for share in shares:
            self.take(share, share.nodes)

    def take(self, share: Share, nodes: Mapping[int, int]) -> None:
        """Give a job these slots, which are free."""
        for node, slots in nodes.items():
            self.free[node] -= slots
        share.nodes = dict(nodes)

    def release(self, share: Share) -> dict[int, int]:
        """Take all slots of a job back; which they were."""
        for node, slots in share.nodes.items():
            self.free[node] += slots
        before, share.nodes = share.nodes, {}
        return before

    def find(self, share: Share, slots: int) -> dict[int, int] | None:
        """Free slots of one GPU type: of the fullest node that has them, or of as few nodes as possible; None if none.

        A job finds nothing where it does not run, or not as fast as it is guaranteed.
        """
        for index in self.types:
            allowed = share.job.facts.gpu_types
            if allowed is not None and self.names[index] not in allowed:
                continue
            nodes = self._find(
                [(left, node) for node, left in enumerate(self.free) if self.node_type[node] == index], slots
            )
            if nodes and share.runs_on(nodes):
                return nodes
        return None

    @staticmethod
    def _find(free: Sequence[tuple[int, int]], slots: int) -> dict[int, int] | None:
        fitting = [(left, node) for left, node in free if left >= slots]
        if fitting:
            return {min(fitting)[1]: slots}
        nodes: dict[int, int] = {}
        for left, node in sorted(free, key=lambda one: (-one[0], one[1])):
            if slots and left > 0:
                nodes[node] = min(left, slots)
                slots -= nodes[node]
        return None if slots else nodes


def _start(share: Share, changeable: Sequence[Share], room: Room) -> None:
    """Start a job on what it needs, shrinking others if that is worth it."""
    if not share.curve.sizes:
        return
    size = share.needed or share.curve.sizes[0]
    gain = share.curve.speed(size) / size
    shrunk: list[tuple[Share, dict[int, int]]] = []
    found = room.find(share, size)
    while found is None:
        steps = [
            (*other.curve.flattest(other.slots, other.needed), index)
            for index, other in enumerate(changeable)
            if other is not share and other.slots > other.needed
        ]
        loss, smaller, index = min(steps, default=(float("inf"), 0, -1))
        if loss == float("inf") or (not share.needed and loss >= gain):
            for other, before in reversed(shrunk):
                room.release(other)
                room.take(other, before)
            return
        shrunk.append((changeable[index], _shrink(changeable[index], smaller, room)))
        found = room.find(share, size)
    room.take(share, found)


def _shrink(share: Share, slots: int, room: Room) -> dict[int, int]:
    """Leave a job this many of its slots, on the nodes where it has most; what it had before."""
    before = room.release(share)
    kept: dict[int, int] = {}
    for node, here in sorted(before.items(), key=lambda item: -item[1]):
        if slots:
            kept[node] = min(here, slots)
            slots -= kept[node]
    if kept and share.runs_on(kept):
        room.take(share, kept)
    return before


def _expand(changeable: Sequence[Share], room: Room) -> None:
    """Give the slots that are left to those that gain the most speed per slot, where they have room."""
    while True:
        steps = [
            (gain, -index, size)
            for index, share in enumerate(changeable)
            if share.slots
            for gain, size in share.curve.steps_up(share.slots, sum(room.free))
        ]
        for _, index, size in sorted(steps, reverse=True):
            share = changeable[-index]
            before = room.release(share)
            found = room.find(share, size)
            room.take(share, before if found is None else found)
            if found is not None:
                break
        else:
            return


def _assignment(share: Share) -> Allocation:
    allocation = tuple(sorted(share.nodes.items()))
    return share.job.allocation if allocation == share.job.allocation else allocation
