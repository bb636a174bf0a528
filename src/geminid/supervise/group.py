"""Which workers form a job's group, and when they form the next one: decisions only, no process and no socket.

A worker belongs to one slot for its whole life. Events go in (slots are requested, a worker is ready, has joined, has
lost its peers, has ended), and actions come out. A *generation* is one formation of the group; every change of the
membership makes a new one. The rules:

- Newcomers are started at once but join only when all of them are ready, so training never waits for a start.
- Members whose slots are no longer requested leave at once, without waiting for newcomers; unless nobody who has the
  state would be left: then newcomers join first, and the others leave after that.
- If a member dies, the others form the next generation from what they have in memory, and newcomers join them after
  that: survivors may be anywhere in the script, newcomers begin between two steps. If none is left, new workers begin
  from the last checkpoint, all together.
- Survivors that are fewer than the job's minimum do not train: they keep their state in memory, and wait before their
  next step until newcomers have joined them, or the job is stopped. Such a generation is *held*.
- If all members live but cannot work together (before their first step they have lost each other), some are ended, and
  the others continue without them: those who were not in the last generation that worked, or if all were, those on
  other nodes than the first member; among these, only those that gave up, if any did. If no generation ever worked,
  those who gave up are ended, and all if fewer than the minimum would be left.
- Members on the same node have consecutive ranks, and so have those in the same rack and zone. A slot is named
  ``node/slot``, or by its own name alone where there is only one node.
- A generation meets in the store of its first member, if that has one, and otherwise in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from geminid.supervise.protocol import Form, Joined, Plan


class Standing(StrEnum):
    """A worker's relation to the group."""

    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a process for this worker on this slot."""

    worker: str
    slot: str


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End this worker's process: it has no state that anybody needs."""

    worker: str


@dataclass(frozen=True, slots=True)
class SendForm:
    """Send this worker the membership of a new generation, in which it may have no place."""

    worker: str
    form: Form


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """All members live but cannot work together: end these; if there are none, let all try again later."""

    leaving: tuple[str, ...]


Action = StartWorker | EndWorker | SendForm | SplitGroup


@dataclass(slots=True)
class GroupWorker:
    """A worker of the group, and the last ``form`` that was sent to it.

    It has ``lost_peers`` if it cannot reach the others of its generation. One that ``was_joining`` was to join a
    generation that broke, and may still be trying to. Workers of earlier versions of Geminid cannot be held
    (``can_hold``). Others can meet at ``meeting``, if this worker has a store.
    """

    slot: str
    standing: Standing = Standing.STARTING
    lost_peers: bool = False
    has_state: bool = False
    was_joining: bool = False
    can_hold: bool = True
    meeting: str | None = None
    form: Form | None = None

    @property
    def node(self) -> str:
        """The node of its slot."""
        return self.slot.rpartition("/")[0]


@dataclass(slots=True)
class Generation:
    """One formation of the group: its members by rank, and how far they are.

    It is ``held`` if its members wait for newcomers, and ``broken`` if it cannot continue. ``joined`` has what members
    said when they joined, ``first_steps`` when their first steps ended; None if an earlier supervisor received that.
    """

    number: int = 0
    members: tuple[str, ...] = ()
    held: bool = False
    broken: bool = False
    joined: dict[str, Joined | None] = field(default_factory=dict)
    first_steps: dict[str, float | None] = field(default_factory=dict)
    gave_up: set[str] = field(default_factory=set)

    @property
    def formed(self) -> bool:
        """Whether it is complete and trains."""
        return bool(self.members) and not self.broken and self.joined.keys() >= set(self.members)

    @property
    def has_all_joined(self) -> bool:
        """Whether it is formed, and all members have reported so to this supervisor."""
        return self.formed and None not in self.joined.values()

    @property
    def has_worked(self) -> bool:
        """Whether all members have completed their first step."""
        return self.first_steps.keys() >= set(self.members)


class ElasticGroup:
    """The membership of one job's workers. Every event returns the actions that follow from it, in order.

    ``topology`` gives the zone and rack of a node, the largest first; ``min_slots`` is how many workers the job needs.
    """

    def __init__(
        self, rendezvous_prefix: str, topology: Callable[[str], Sequence[str]] = lambda node: (), *, min_slots: int = 1
    ) -> None:
        self.current = Generation()
        self.workers: dict[str, GroupWorker] = {}
        self.requested: tuple[str, ...] = ()
        self.plan: Plan | None = None
        self._prefix, self._topology, self._min_slots = rendezvous_prefix, topology, min_slots
        self._proven: frozenset[str] = frozenset()  # the members of the last generation that worked
        self._started = 0

    @property
    def formed(self) -> bool:
        """Whether the newest generation is complete and trains."""
        return self.current.formed

    @property
    def settled(self) -> bool:
        """Whether the group is formed, on exactly the requested slots."""
        return self.formed and {self.workers[worker].slot for worker in self.current.members} == set(self.requested)

    def standing(self, worker: str) -> Standing | None:
        """A worker's relation to the group; None if it has none."""
        known = self.workers.get(worker)
        return known.standing if known is not None else None

    @property
    def newest(self) -> str:
        """The worker that was named last."""
        return f"w{self._started}"

    def resize(self, slots: Sequence[str], plan: Plan | None = None) -> list[Action]:
        """Run on these slots (with this batch plan, if one is given)."""
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot is named twice in {', '.join(slots)}")
        self.requested, self.plan = tuple(slots), plan
        return self._settle()

    def set_min_slots(self, min_slots: int) -> list[Action]:
        """From now on, the job needs this many workers."""
        if min_slots == self._min_slots:
            return []
        self._min_slots = min_slots
        return self._settle()

    def remove_slots(self, slots: Collection[str]) -> None:
        """These slots are gone: start no worker there. The workers that were there are reported by :meth:`ended`."""
        self.requested = tuple(slot for slot in self.requested if slot not in slots)

    def ready(self, worker: str, meeting: str | None = None) -> list[Action]:
        """A worker waits for its place in the group; others can meet at ``meeting``, if it has a store."""
        known = self.workers.get(worker)
        if known is not None:
            known.meeting = meeting
        if known is not None and known.standing is Standing.STARTING:
            known.standing = Standing.READY
        return self._settle()

    def joined(self, worker: str, message: Joined) -> list[Action]:
        """A worker has joined a generation."""
        if message.generation != self.current.number or worker not in self.current.members:
            return []
        self.current.joined[worker] = message
        self.workers[worker].lost_peers, self.workers[worker].has_state = False, True
        return self._settle()

    def stepped(self, worker: str, generation: int, ended_at_s: float = 0.0) -> bool:
        """A member has completed the first step of a generation; whether it was the last member to do so."""
        current = self.current
        if generation != current.number or worker not in current.members or current.first_steps.get(worker) is not None:
            return False
        current.first_steps[worker] = ended_at_s
        self._proven = frozenset(current.members) if current.has_worked else self._proven
        return current.has_worked and None not in current.first_steps.values()

    def lost(self, worker: str, generation: int) -> list[Action]:
        """A member has lost its peers. When all living members have, they form the next generation."""
        if generation != self.current.number or worker not in self.current.members:
            return []
        self.current.gave_up.add(worker)
        return self._lose([worker])

    def stop_waiting(self, waiting: Collection[str]) -> list[Action]:
        """These workers wait for their peers; if one of those has given up, they have lost their peers as well."""
        return self._lose([worker for worker in self.unaware() if worker in waiting])

    def unaware(self) -> list[str]:
        """Members that have not noticed that the group is broken, though a peer has."""
        alive = self._alive()
        if not any(self.workers[member].lost_peers for member in alive):
            return []
        return [member for member in alive if not self.workers[member].lost_peers]

    def ended(self, *workers: str) -> list[Action]:
        """The processes of these workers have ended."""
        for worker in workers:
            if self.workers.pop(worker, None) is not None and worker in self.current.members:
                self.current.broken = True
        return self._settle()

    def reform(self) -> list[Action]:
        """Form the next generation from the same members: this one makes no progress although all of them live."""
        self.current.broken = True
        return self._settle()

    def adopt(self, worker: str, slot: str, *, member: bool, can_hold: bool = True) -> None:
        """Take over a worker that an earlier supervisor started."""
        standing = Standing.MEMBER if member else Standing.STARTING
        self.workers[worker] = GroupWorker(slot, standing, has_state=member, can_hold=can_hold)
        self._started = max(self._started, _number(worker))

    def resume(
        self,
        generation: int,
        members: Sequence[str],
        requested: Sequence[str],
        known: Iterable[str] = (),
        *,
        held: bool = False,
    ) -> None:
        """Take over a generation that an earlier supervisor formed; its members still train, or are held.

        No new worker gets the name of a ``known`` one, living or dead: its peers would take it for that worker.
        """
        self._started = max([self._started, *map(_number, members), *map(_number, known)])
        self.requested = tuple(requested)
        self.current = Generation(generation, tuple(members), held)
        self.current.joined, self.current.first_steps = dict.fromkeys(members), dict.fromkeys(members)
        self.current.broken = len(self._alive()) < len(members)
        self._proven = frozenset(members)

    def resumed(self) -> list[Action]:
        """The first actions after taking over: members may have died in between."""
        return self._settle() if self._alive() else []

    def _alive(self) -> list[str]:
        return [member for member in self.current.members if member in self.workers]

    def _lose(self, workers: Sequence[str]) -> list[Action]:
        """These members have lost their peers."""
        if not workers:
            return []
        for worker in workers:
            self.workers[worker].lost_peers = True
        alive = self._alive()
        if all(self.workers[member].lost_peers for member in alive):
            if len(alive) == len(self.current.members) and not self.current.first_steps:
                return [self._split()]
            self.current.broken = True
        return self._settle()

    def _split(self) -> SplitGroup:
        """Choose who leaves a group that cannot work together. The state of those is not needed: the others have it."""
        members, gave_up = self.current.members, self.current.gave_up
        home = self.workers[members[0]].node
        elsewhere = [member for member in members if self.workers[member].node != home]
        if self._proven.isdisjoint(members):
            leaving = _among(elsewhere, gave_up) or _among(members, gave_up)
            leaving = leaving if len(members) - len(leaving) >= self._min_slots else list(members)
        else:
            new = [member for member in members if member not in self._proven]
            leaving = _among(new, gave_up) or new or _among(elsewhere, gave_up) or elsewhere
        for worker in leaving:
            self.workers[worker].has_state = False
        return SplitGroup(tuple(leaving))

    def _settle(self) -> list[Action]:
        """The actions that bring the group closer to what is requested."""
        actions: list[Action] = []
        for worker, known in self.workers.items():
            if known.standing in (Standing.STARTING, Standing.READY) and known.slot not in self.requested:
                known.standing = Standing.LEAVING
                actions.append(EndWorker(worker))
        taken = {known.slot for known in self.workers.values() if known.standing is not Standing.LEAVING}
        for slot in self.requested:
            if slot not in taken:
                self._started += 1
                self.workers[self.newest] = GroupWorker(slot)
                actions.append(StartWorker(self.newest, slot))
        if self.formed or self.current.broken or not self.current.members:
            actions += self._form(self._next_members())
        return actions

    def _next_members(self) -> list[str]:
        """Who forms the next generation now; nobody if there is none to form."""
        alive = self._alive()
        staying = [member for member in alive if self.workers[member].slot in self.requested]
        ready = [worker for worker, known in self.workers.items() if known.standing is Standing.READY]
        all_ready = len(staying) + len(ready) == len(self.requested)
        if not alive:
            return ready if all_ready else []
        if self.current.broken:
            survivors = [member for member in alive if self.workers[member].has_state]
            return [member for member in staying if member in survivors] or survivors or (staying or alive) + ready
        if not staying:  # those who leave pass the state on first
            return alive + ready if all_ready and ready else []
        if len(staying) < len(alive):
            return staying + ready
        if self.current.held and len(staying) + len(ready) >= self._min_slots:  # as soon as there are enough
            return staying + ready
        return staying + ready if all_ready and ready else []

    def _form(self, members: Sequence[str]) -> list[Action]:
        """A new generation of these members; members of the last one that are not among them leave."""
        if not members:
            return []
        others = [member for member in self._alive() if member not in members]
        members = ranked({member: self.workers[member].node for member in members}, self._topology)
        meeting, broken = self.workers[members[0]].meeting, self.current.broken
        is_incomplete = broken or (self.current.held and len(members) < len(self.requested))
        too_few = is_incomplete and len(members) < self._min_slots
        held = too_few and all(self.workers[one].can_hold for one in members)
        self.current = Generation(self.current.number + 1, tuple(members), held)
        for member in members:
            self.workers[member].standing, self.workers[member].lost_peers = Standing.MEMBER, False
        for worker in others:
            known = self.workers[worker]
            known.standing = Standing.LEAVING if known.has_state else Standing.READY
            known.was_joining = not known.has_state
        form = Form(
            generation=self.current.number,
            members=self.current.members,
            rendezvous=f"{self._prefix if meeting is None else f'{meeting}/'}{self.current.number}",
            plan=self.plan,
            broken=broken,
            hold=held,
        )
        actions: list[Action] = []
        for worker in (*members, *(member for member in others if self.workers[member].has_state)):
            known = self.workers[worker]
            known.form = replace(form, broken=True) if known.was_joining else form
            known.was_joining = False
            actions.append(SendForm(worker, known.form))
        return actions


def ranked(nodes: Mapping[str, str], topology: Callable[[str], Sequence[str]]) -> list[str]:
    """Workers, given with their nodes, by rank: neighbours in a zone, rack or node are consecutive, the first stays."""
    places = {node: (*topology(node), node) for node in set(nodes.values())}
    order: dict[tuple[str, ...], int] = {}
    keys = {}
    for worker, node in nodes.items():
        enclosing = [places[node][: level + 1] for level in range(len(places[node]))]
        keys[worker] = [order.setdefault(part, len(order)) for part in enclosing]
    return sorted(nodes, key=keys.__getitem__)


def _among(members: Iterable[str], chosen: Collection[str]) -> list[str]:
    return [member for member in members if member in chosen]


def _number(worker: str) -> int:
    digits = worker.removeprefix("w")
    return int(digits) if digits.isdigit() else 0
