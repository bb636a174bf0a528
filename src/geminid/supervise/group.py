"""Who belongs to a job's group of workers, and when to form it anew: decisions only, no process and no socket.

A worker belongs to one slot for life. Things that happen go in (slots are wanted, a worker is ready, joined, lost its
peers, is gone), and what must be done comes out. A *generation* is one formation of the group; everything that changes
the membership makes a new one. The rules:

- Newcomers are started at once but join only when all of them are warm, so training never waits for a start.
- Whoever has to go, goes at once, without waiting for newcomers; unless nobody would be left who has the state: then
  newcomers first join, and the others leave after that.
- If a member dies, the others form the next generation from what they have in memory, and newcomers join them after
  that: survivors may be anywhere in the script, newcomers begin between two steps. If none is left, new workers begin
  from the last checkpoint, all together.
- Survivors that are fewer than the job needs do not train: they keep what they have in memory, and wait before their
  next step until newcomers have joined them, or the job is stopped. Such a group is *held*.
- If all members live and yet cannot work together (before their first step they have lost each other, or given each
  other up), some are ended, and the others go on without them: those who were no part of the last group that could, or
  if all were, those on other nodes than the first; only those of them, if any, who gave up while others waited for
  them. Where no group ever could, those who gave up go, and all if fewer would be left than the job needs.
- Members on the same node have ranks next to each other, and so have those in the same rack and zone. A slot is named
  ``node/slot``, or by its own name alone where there is only one node.
- A generation meets in the store of its first member, if that has one, and otherwise in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from geminid.supervise.protocol import Form, Plan


class Standing(StrEnum):
    """What a worker is to its group."""

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
    """End this worker's process: it has nothing that anybody needs."""

    worker: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this worker its place in a new generation (or that it has none)."""

    worker: str
    form: Form


@dataclass(frozen=True, slots=True)
class CannotWork:
    """All members live but cannot work together: end these; if there are none, have all try again, later."""

    leaving: tuple[str, ...]


Action = StartWorker | EndWorker | Tell | CannotWork


@dataclass(slots=True)
class _Worker:
    """A worker; one that is ``left_over`` was to join a generation that broke, and may still be trying to.

    One that was started by an earlier version of Geminid, which had no such thing, cannot be held (``can_hold``).
    """

    slot: str
    standing: Standing = Standing.STARTING
    lost: bool = False
    has_state: bool = False
    left_over: bool = False
    can_hold: bool = True
    meeting: str | None = None

    @property
    def node(self) -> str:
        return self.slot.rpartition("/")[0]


class ElasticGroup:
    """The membership of one job's workers. Every method returns what must now be done, in order.

    ``topology`` says of a node what it is inside of, the largest first; ``fewest`` is how many workers the job needs.
    """

    def __init__(
        self, rendezvous_prefix: str, topology: Callable[[str], Sequence[str]] = lambda node: (), *, fewest: int = 1
    ) -> None:
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self.plan: Plan | None = None
        self._prefix, self._topology, self._fewest = rendezvous_prefix, topology, fewest
        self._wanted: tuple[str, ...] = ()
        self._workers: dict[str, _Worker] = {}
        self._joined: set[str] = set()
        self._stepped: set[str] = set()
        self._gave_up: set[str] = set()
        self._proven: frozenset[str] = frozenset()
        self._broken = False
        #: Whether the newest generation is held.
        self.held = False
        self._started = 0

    @property
    def formed(self) -> bool:
        """Whether the newest generation is complete and training."""
        return bool(self.members) and not self._broken and self._joined >= set(self.members)

    @property
    def settled(self) -> bool:
        """Whether the group is formed, on exactly the slots that are wanted."""
        return self.formed and {self._workers[worker].slot for worker in self.members} == set(self._wanted)

    def standing(self, worker: str) -> Standing | None:
        """What a worker is to the group; None if it is none of its."""
        known = self._workers.get(worker)
        return known.standing if known is not None else None

    def can_hold(self, worker: str) -> bool:
        """Whether a worker understands that it is to wait for others before its next step."""
        known = self._workers.get(worker)
        return known is not None and known.can_hold

    def takes_part(self, worker: str) -> bool:
        """Whether a worker is in the group, or waits for a place in it."""
        return self.standing(worker) in (Standing.READY, Standing.MEMBER)

    def slot(self, worker: str) -> str:
        """The slot that a worker runs on."""
        return self._workers[worker].slot

    @property
    def workers(self) -> tuple[str, ...]:
        """All workers that are not gone."""
        return tuple(self._workers)

    @property
    def newest(self) -> str:
        """The worker that was named last."""
        return f"w{self._started}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The slots that the job is to run on."""
        return self._wanted

    def want(self, slots: Sequence[str], plan: Plan | None = None) -> list[Action]:
        """The job is to run on these slots (with this batch plan, if any is given)."""
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot is named twice in {', '.join(slots)}")
        self._wanted, self.plan = tuple(slots), plan
        return self._settle()

    def need(self, fewest: int) -> list[Action]:
        """From now on, the job needs so many workers."""
        if fewest == self._fewest:
            return []
        self._fewest = fewest
        return self._settle()

    def forsake(self, slots: Collection[str]) -> None:
        """These slots are gone: no worker is started there any more. Those that were there will be told of as gone."""
        self._wanted = tuple(slot for slot in self._wanted if slot not in slots)

    def ready(self, worker: str, meeting: str | None = None) -> list[Action]:
        """A worker is warm and waits to be told its place; others may meet at ``meeting``, if it has a place."""
        known = self._workers.get(worker)
        if known is not None:
            known.meeting = meeting
        if known is not None and known.standing is Standing.STARTING:
            known.standing = Standing.READY
        return self._settle()

    def joined(self, worker: str, generation: int) -> list[Action]:
        """A worker has joined a generation."""
        if generation != self.generation or worker not in self.members:
            return []
        self._joined.add(worker)
        self._workers[worker].lost, self._workers[worker].has_state = False, True
        return self._settle()

    def stepped(self, worker: str, generation: int) -> None:
        """A member has made the first step of a generation; when all have, they can work together."""
        if generation == self.generation and worker in self.members:
            self._stepped.add(worker)
            self._proven = frozenset(self.members) if self._stepped >= set(self.members) else self._proven

    def lost(self, worker: str, generation: int) -> list[Action]:
        """A member's peers stopped answering. When all who live say so, they form the next generation."""
        if generation != self.generation or worker not in self.members:
            return []
        self._gave_up.add(worker)
        return self._lose([worker])

    def in_vain(self, waiting: Collection[str]) -> list[Action]:
        """These workers wait for their peers; those of them who wait for one that has given up wait in vain."""
        return self._lose([worker for worker in self.silent() if worker in waiting])

    def _lose(self, workers: Sequence[str]) -> list[Action]:
        if not workers:
            return []
        for worker in workers:
            self._workers[worker].lost = True
        alive = self._alive()
        if all(self._workers[member].lost for member in alive):
            if len(alive) == len(self.members) and not self._stepped:
                return [self._part()]
            self._broken = True
        return self._settle()

    def _part(self) -> CannotWork:
        """Some are to go, with whatever state they have: the others have it, too."""
        home = self._workers[self.members[0]].node
        elsewhere = [member for member in self.members if self._workers[member].node != home]
        if self._proven.isdisjoint(self.members):
            leaving = self._suspects(elsewhere) or self._suspects(self.members)
            leaving = leaving if len(self.members) - len(leaving) >= self._fewest else list(self.members)
        else:
            strangers = [member for member in self.members if member not in self._proven]
            leaving = self._suspects(strangers) or strangers or self._suspects(elsewhere) or elsewhere
        for worker in leaving:
            self._workers[worker].has_state = False
        return CannotWork(tuple(leaving))

    def _suspects(self, members: Sequence[str]) -> list[str]:
        return [member for member in members if member in self._gave_up]

    def silent(self) -> list[str]:
        """Members that have not noticed what a peer of theirs has: that the group is broken."""
        alive = self._alive()
        if not any(self._workers[member].lost for member in alive):
            return []
        return [member for member in alive if not self._workers[member].lost]

    def gone(self, *workers: str) -> list[Action]:
        """These workers' processes have ended."""
        for worker in workers:
            known = self._workers.pop(worker, None)
            if known is not None and worker in self.members:
                self._broken = True
        return self._settle()

    def break_up(self) -> list[Action]:
        """The group does not get on although all of its members live: they form the next generation."""
        self._broken = True
        return self._settle()

    def adopt(self, worker: str, slot: str, *, member: bool, can_hold: bool = True) -> None:
        """Take over a worker that an earlier supervisor started."""
        standing = Standing.MEMBER if member else Standing.STARTING
        self._workers[worker] = _Worker(slot, standing, has_state=member, can_hold=can_hold)
        self._started = max(self._started, _number(worker))

    def resume(
        self,
        generation: int,
        members: Sequence[str],
        wanted: Sequence[str],
        known: Iterable[str] = (),
        *,
        held: bool = False,
    ) -> None:
        """Take over a group that an earlier supervisor formed; its members still train, or are held.

        No newcomer gets the name of a worker that was ``known``, living or dead: others would take it for that.
        """
        self._started = max([self._started, *map(_number, members), *map(_number, known)])
        self.generation, self.members, self._wanted = generation, tuple(members), tuple(wanted)
        self._joined, self._stepped, self._proven = set(members), set(members), frozenset(members)
        self.held = held
        self._broken = len(self._alive()) < len(self.members)

    def resumed(self) -> list[Action]:
        """What must be done first after taking over: some members may have died in between."""
        return self._settle() if self._alive() else []

    def _alive(self) -> list[str]:
        return [member for member in self.members if member in self._workers]

    def _settle(self) -> list[Action]:
        """Whatever has to be done now to come closer to what is wanted."""
        actions: list[Action] = []
        for worker, known in self._workers.items():
            if known.standing in (Standing.STARTING, Standing.READY) and known.slot not in self._wanted:
                known.standing = Standing.LEAVING
                actions.append(EndWorker(worker))
        taken = {known.slot for known in self._workers.values() if known.standing is not Standing.LEAVING}
        for slot in self._wanted:
            if slot not in taken:
                self._started += 1
                worker = f"w{self._started}"
                self._workers[worker] = _Worker(slot)
                actions.append(StartWorker(worker, slot))
        if self.formed or self._broken or not self.members:
            actions += self._form(self._next_members())
        return actions

    def _next_members(self) -> list[str]:
        """Who forms the next generation now; nobody if there is none to form."""
        alive = self._alive()
        staying = [member for member in alive if self._workers[member].slot in self._wanted]
        warm = [worker for worker, known in self._workers.items() if known.standing is Standing.READY]
        all_warm = len(staying) + len(warm) == len(self._wanted)
        if not alive:
            return warm if all_warm else []
        if self._broken:
            survivors = [member for member in alive if self._workers[member].has_state]
            return [member for member in staying if member in survivors] or survivors or (staying or alive) + warm
        if not staying:  # somebody has to hand the state over first
            return alive + warm if all_warm and warm else []
        if len(staying) < len(alive):
            return staying + warm
        if self.held and len(staying) + len(warm) >= self._fewest:  # as soon as there are enough
            return staying + warm
        return staying + warm if all_warm and warm else []

    def _form(self, members: Sequence[str]) -> list[Action]:
        """A new generation of these members; whoever was one and is not among them leaves."""
        if not members:
            return []
        others = [member for member in self._alive() if member not in members]
        leaving = [member for member in others if self._workers[member].has_state]
        members = self._by_topology(members)
        meeting = self._workers[members[0]].meeting
        broken = self._broken
        self.generation += 1
        self.members, self._broken = tuple(members), False
        self.held = broken and len(members) < self._fewest and all(self._workers[one].can_hold for one in members)
        self._joined, self._stepped, self._gave_up = set(), set(), set()
        for member in members:
            self._workers[member].standing, self._workers[member].lost = Standing.MEMBER, False
        for worker in others:
            known = self._workers[worker]
            known.standing = Standing.LEAVING if known.has_state else Standing.READY
            known.left_over = not known.has_state
        form = Form(
            generation=self.generation,
            members=self.members,
            rendezvous=f"{self._prefix if meeting is None else f'{meeting}/'}{self.generation}",
            plan=self.plan,
            broken=broken,
            hold=self.held,
        )
        told: list[Action] = []
        for worker in (*members, *leaving):
            own = replace(form, broken=True) if self._workers[worker].left_over else form
            told.append(Tell(worker, own))
            self._workers[worker].left_over = False
        return told

    def _by_topology(self, members: Sequence[str]) -> list[str]:
        """The same members, those in one zone, rack and node next to each other; the first stays the first."""
        places = {node: (*self._topology(node), node) for node in {self._workers[member].node for member in members}}
        rank: dict[tuple[str, ...], int] = {}
        keys = {}
        for member in members:
            place = places[self._workers[member].node]
            within = [place[: level + 1] for level in range(len(place))]
            keys[member] = [rank.setdefault(part, len(rank)) for part in within]
        return sorted(members, key=keys.__getitem__)


def _number(worker: str) -> int:
    digits = worker.removeprefix("w")
    return int(digits) if digits.isdigit() else 0
