"""Jobs on a Ray cluster: the slots of all its nodes, held through Ray and used through an agent on each.

Which nodes there are comes from the *bridge*, a process of its own that is the only one to talk with Ray
(``bridge_process.py``). Each node's agent (``node/agent.py``) starts, watches and signals processes there. A slot is
used only while an actor of ours sits in it (``slot.py``), in a placement group on that node, so that Ray gives it to
nobody else; when that actor ends, whatever Ray's reasons, so do the processes on the slot. What Ray has given to others
is not offered to our jobs.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, ClassVar

from geminid import __version__
from geminid.cluster import Cluster
from geminid.fields import InvalidInput, Problem
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.node.machine import is_of_this_machine, slot_environment
from geminid.node.messages import Identity
from geminid.nodes import NodeGroup
from geminid.process.launch import SLOT_GONE, Launch
from geminid.serve import records as r
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.fences import BEFORE, Fences
from geminid.serve.executors.folders import JOBS, JobFolders
from geminid.serve.executors.foreign_slots import UNFIT_S, OthersSlots
from geminid.serve.executors.plain import PlainExit
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.address import own_address, trouble_at
from geminid.serve.executors.ray.bridge import Bridge
from geminid.serve.executors.ray.capacity import Wishes
from geminid.serve.executors.ray.code import CannotPack, CodeStore
from geminid.serve.executors.ray.codeplaces import CodePlaces
from geminid.serve.executors.ray.unanswered import Unanswered
from geminid.serve.executors.remote import (
    SILENT_S,
    CodeGone,
    NodeEnded,
    NodeEvent,
    NodeGone,
    NodeHere,
    NodeRefused,
    Nodes,
    NodeSilent,
)
from geminid.serve.executors.remotecommands import RemoteCommands
from geminid.serve.executors.rendezvous import meeting_place, place_among
from geminid.serve.executors.supervised import (
    ORPHANS_S,
    Command,
    SupervisedExecutor,
    _Elastic,
    held,
    worker_options,
)
from geminid.serve.executors.topology import Topology
from geminid.serve.livejob import LiveJob
from geminid.supervise.channel import Address
from geminid.supervise.handover import Handover, end_of, exit_file_of, report_beside
from geminid.supervise.spec import Patience, WorkerSpec

#: A slot that no job needs is given back to Ray after so long.
LINGER_S = 3.0

#: On a cluster that is scaled, an agent whose node nobody has needed for so long is ended: Ray may take the node away.
REST_S = 5.0

#: How long to wait for the first node, then for the agents of the others, and for those of nodes that jobs were on.
FIRST_NODE_S, AGENTS_S, JOBS_AGENTS_S = 60.0, 10.0, 60.0

#: A cluster that says why it cannot be used, and nothing else, is tried for so long.
TROUBLE_S = 15.0

#: A node that has been gone for so long is not counted among those that there are any more.
FORGET_S = 600.0

#: So many workers are heard a second, until they would be silent for too long; a hang is noticed after 10 s.
HEARD_PER_S, LONGEST_HEARTBEAT_S = 2000.0, 2.5

#: For so long, agents keep what they run without any service.
FORSAKEN_S = ORPHANS_S + 120.0

SERVICE_ID, CODE, PLACES = "ray.id", "code", "places"


class NoCluster(Exception):
    """There is no Ray cluster to be had; one sentence says why."""


@dataclass(frozen=True, slots=True)
class _Bridged:
    """The bridge told something."""

    answer: b.Answer


class RayExecutor(SupervisedExecutor):
    """The executor of a Ray cluster. A slot is named ``node/index``."""

    #: What it talks through; measurements put something else in their place.
    _lines: ClassVar[Callable[..., Nodes]] = Nodes
    _talker: ClassVar[Callable[..., Bridge]] = Bridge

    def __init__(
        self,
        folder: Path,
        address: str,
        *,
        patience: Patience | None = None,
        slot_memory_bytes: int | None = None,
        storage: str | None = None,
        moved_from: str = "",
        ship: bool = True,
        autoscale: bool = False,
        silent_s: float = SILENT_S,
        topology: Topology | None = None,
    ) -> None:
        if (trouble := trouble_at(address)) is not None:
            raise NoCluster(f"the Ray cluster cannot be used: {trouble}")
        self._heard: SimpleQueue[ExecutorEvent] = SimpleQueue()
        self._early: Callable[[ExecutorEvent], None] = self._heard.put
        self._forward: Callable[[ExecutorEvent], None] = self._early
        self._seen: dict[str, b.SeenNode] = {}
        self._known: dict[str, NodeGroup] = {}
        self._described = topology or Topology()
        self._up: set[str] = set()
        self._gone_since_s: dict[str, float] = {}
        self._others = OthersSlots()
        self._draining: frozenset[str] = frozenset()
        self._is_outdated = False  # the cluster: nodes have come or gone since it was made
        self._held: dict[str, b.Seat] = {}
        self._pending = Unanswered()  # slots that are to be held
        self._trouble, self._has_looked = "", False
        self._noted_early: list[r.Record] = []
        if moved_from:
            told = f"checkpoints are kept in {storage}, and those of jobs that have run before are looked for there"
            self._noted_early.append(r.Noted(level="warning", text=f"{told}; they were kept in {moved_from}"))
        self._others_versions: dict[str, str] = {}
        self._agentless: dict[str, str] = {}
        self._idle_since_s: dict[str, float] = {}
        self._wishes = Wishes(lambda request: self._bridge.send(request), scales=autoscale)
        self._resting: dict[str, str] = {}  # and the token of the agent that was ended
        self._unneeded_since_s: dict[str, float] = {}
        self._fences = Fences()
        self._slot_memory_bytes, self._storage, self._ship = slot_memory_bytes, storage, ship
        self._code = CodeStore(folder / CODE)
        self._places = CodePlaces(
            folder / PLACES, self._code, lambda request: self._bridge.send(request), self._token_of
        )
        self._unshipped: dict[str, int] = {}  # how often a job's code could not be brought somewhere
        self._silent_s = silent_s
        self._nodes = self._lines(
            lambda event: self._forward(event),
            self._folder_on,
            self._holders_on,
            silent_s=silent_s,
            on_end=partial(_leave_word, folder / JOBS),
        )
        self._commands = RemoteCommands(self._nodes, self.folder_of)
        self._service, module = _service_id(folder), "geminid.serve.executors.ray.bridge_process"
        command = [sys.executable, "-m", module, address, self._service, str(FORSAKEN_S), str(silent_s)]
        self._bridge = self._talker(command, lambda answer: self._forward(_Bridged(answer)))
        try:
            self._await_nodes()
        except BaseException:
            self._bridge.close()
            self._nodes.close()
            raise
        self._host = own_address(next(iter(self._seen.values())).address, address)
        folders = JobFolders(folder, storage and f"{storage.rstrip('/')}/{self._service}")
        super().__init__(folders, self._make_cluster(), self._nodes, patience or Patience(orphan=ORPHANS_S))

    def _await_nodes(self) -> None:
        """Wait until all nodes that Ray has are here, or some are and time is up."""
        troubled_since_s = monotonic()
        deadline_s = troubled_since_s + FIRST_NODE_S
        while monotonic() < deadline_s:
            with contextlib.suppress(Empty):
                told = self._digest(self._heard.get(timeout=0.2))
                self._noted_early += [record for record in told if isinstance(record, r.Noted)]
            if self._seen and len(self._up) == len(self._seen):
                return
            if self._up:
                deadline_s = min(deadline_s, monotonic() + AGENTS_S)
            if not self._bridge.trouble or self._seen:
                troubled_since_s = monotonic()
            elif monotonic() - troubled_since_s > TROUBLE_S:
                break
        if not self._up:
            silent = f"Ray has not answered within {FIRST_NODE_S:g} s: is this a machine of the cluster, with a raylet?"
            nothing = "no node of it has a GPU, a geminid_slot or a CPU"
            whys = {f": {why}" for why in self._agentless.values()}
            why = whys.pop() if len(whys) == 1 else ""
            agents = f"no agent of {_several(sorted(self._seen))} has started{why}" if self._seen else nothing
            why = self._bridge.trouble or (agents if self._has_looked else silent)
            raise NoCluster(f"the Ray cluster cannot be used: {why}")

    def _await_agents(self, jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Wait for nodes that Ray has and that jobs were on: the jobs are to be taken over, not to be started again."""
        places = [job.state.placement for job in jobs if job.phase.holds_slots and job.state.placement is not None]
        needed = {name for place in places for name in place.node_names}
        told, self._noted_early = self._noted_early, []
        elsewhere = sorted(name for name, node in self._seen.items() if not is_of_this_machine(node.address))
        if self._storage is None and elsewhere:
            seen = f"{_several(elsewhere)} must see that folder" if len(elsewhere) < 4 else "all nodes must see it"
            told.append(
                r.Noted(
                    level="warning",
                    text=f"checkpoints are kept in {self._folder / JOBS}: {seen}; 'geminid up --storage' names another",
                )
            )
        deadline_s = monotonic() + JOBS_AGENTS_S
        while (needed & self._seen.keys()) - self._up and monotonic() < deadline_s:
            with contextlib.suppress(Empty):
                told += self._digest(self._heard.get(timeout=0.2))
        self._is_outdated = True
        return told

    # --- What the service asks ---

    def check(self, spec: JobSpec) -> list[Problem]:
        """What keeps this job from ever being run here. Nodes may still come: there is no limit to sizes."""
        if spec.working_dir is not None and not Path(spec.working_dir).is_absolute():
            return [Problem("working_dir", spec.working_dir, "must be an absolute path")]
        if self._ship and spec.working_dir is not None and not Path(spec.working_dir).is_dir():
            return [Problem("working_dir", spec.working_dir, "must be a folder of the service's machine")]
        return []

    def interpreter(self, submitters: str) -> str | None:
        """The command ``python`` stands for that of the job's environment on each node, or of the node's agent."""
        return None

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """The folders of the submitter's machine are not those of the nodes: a job has its language, no more."""
        return {name: value for name, value in submitters.items() if name == "LANG"}

    def store_code(self, spec: JobSpec) -> str:
        """Keep a job's folder as it is now, unless all nodes see it."""
        if not self._ship or spec.working_dir is None:
            return ""
        try:
            return self._code.put_by(Path(spec.working_dir))
        except (CannotPack, OSError) as problem:
            told = problem if isinstance(problem, CannotPack) else f"cannot be packed: {problem}"
            raise InvalidInput([Problem("working_dir", spec.working_dir, f"it {told}")]) from problem

    def keep_code(self, needed: Collection[str]) -> None:
        """Remove code that was put by for jobs that are over."""
        self._code.keep_only(needed)

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Take over what lives on the nodes, end what nobody wants, tell what is gone."""
        came = self._await_agents(jobs)
        for job in jobs:
            self._fence_before(job)
        self._places.recall({job.id for job in jobs if job.code and job.phase.holds_slots})
        told = came + super().open(post, jobs)
        self._doubt_missing()
        self._forward = post
        with contextlib.suppress(Empty):
            while True:
                post(self._heard.get_nowait())
        for node, slots in self._others.taken.items():
            told.append(r.SlotsTaken(node=node, slots=list(slots)))
        told += [r.NodeLeaving(node=node, leaving=True) for node in sorted(self._draining)]
        return told

    def handle(self, happening: ExecutorEvent) -> list[r.Record]:
        """What a node, the bridge, a supervisor or a watcher told means this."""
        if not isinstance(happening, NodeEvent | _Bridged):
            return super().handle(happening)
        about = self._slots_about(happening)
        told = self._digest(happening)
        self._is_outdated |= any(isinstance(record, r.NodeJoined | r.NodeLeft) for record in told)
        if about is None:
            return told + self._lead_missing(self._wanted)
        self._stirred |= about
        return told + self._lead_suitors()

    def _slots_about(self, happening: ExecutorEvent) -> Set[str] | None:
        """The slots that an answer of the bridge is about, which concerns only those who want them; None of others."""
        match happening:
            case _Bridged(answer=b.Leased(id=number) | b.Refused(id=number) as answer):
                asked = self._pending.get(number)
                held = answer.held if isinstance(answer, b.Leased) else ()
                return {*(() if asked is None else asked.things), *held}
            case _Bridged(answer=b.Seated(held=seated)):
                return set(seated)
            case _Bridged(answer=b.Shipped(id=number)):
                brought = self._places.asked(number)
                wanted = None if brought is None else self._wanted.get(brought.job_id)
                return set() if wanted is None else set(wanted[1])
            case _Bridged(answer=b.Unshippable() | b.Unfit() | b.Unshipped()):
                return set()  # it is asked for again at the next tick, if at all
        return None

    def tick(self, capacity: Callable[[], Mapping[str, int]]) -> list[r.Record]:
        """Slots and nodes that nobody needs go back to Ray; slots that could not be had are asked for again."""
        told = super().tick(capacity)
        needed = {slot for _, slots in self._wanted.values() for slot in slots}
        needed |= {slot for running in self._running.values() for slot in running.holds}
        now_s = monotonic()
        self._idle_since_s = {slot: self._idle_since_s.get(slot, now_s) for slot in self._held if slot not in needed}
        self._release([slot for slot, since_s in self._idle_since_s.items() if now_s - since_s > LINGER_S])
        told += self._forget_nodes(now_s)
        if self._wishes.scales:
            self._rest(now_s)
        if self._others.forget_waits():
            told += self._count_others()
        if self._wishes.scales:
            self._wishes.make(capacity())
        if self._has_looked:
            self._wishes.tell()
        self._places.keep_only(lambda job_id: job_id in self._wanted or job_id in self._running)
        asking = self._pending.jobs  # they are led when that is answered
        return told + self._lead_missing(job_id for job_id in self._wanted if job_id not in asking)

    def _lead_missing(self, jobs: Iterable[str]) -> list[r.Record]:
        """Lead those of some jobs that are not where they are wanted, or whose slots Ray has not given us."""
        missing = [job_id for job_id in jobs if not self._is_there(job_id)]
        return [record for job_id in missing for record in self._lead(job_id)]

    @property
    def cluster(self) -> Cluster:
        """The slots of all nodes that there are, made anew when it is asked for after nodes have come or gone."""
        if self._is_outdated:
            self._cluster, self._is_outdated = self._make_cluster(), False
        return self._cluster

    def delay_of(self, job_id: str) -> str:
        """What a job that is to start or to grow waits for: Ray, its code, an agent, or its end elsewhere."""
        wanted = self._wanted.get(job_id)
        if wanted is None:
            return ""
        if self._trouble:
            return f"Ray is out of reach ({self._trouble})"
        if fenced := self._fences.around(job_id):
            return f"some of it may still run on {_several(fenced)}, out of reach; it starts when that is over"
        slots = wanted[1]
        if asked := self._pending.among(slots):
            return f"Ray is asked for {_several(asked)}"
        if bringing := sorted(self._places.bringing(job_id)):
            what = (
                "its code, with the environment that it asks for,"
                if self._code.environment(wanted[0].code)
                else "its code"
            )
            return f"{what} is brought to {_several(bringing)}"
        nodes = {self._where(slot)[0] for slot in slots}
        if agentless := sorted((nodes - self._up) | (nodes & self._resting.keys())):
            return f"the agent of {_several(agentless)} is being started"
        return ""

    def close(self, *, detach: bool) -> None:
        """End with all processes and agents, or leave them to the next service."""
        super().close(detach=detach)
        if not detach:
            self._bridge.send(b.End())
            self._bridge.wait(20.0)
        self._bridge.close()

    # --- Nodes ---

    def _make_cluster(self) -> Cluster:
        return self._described.cluster_of(self._known.values())

    def _digest(self, happening: ExecutorEvent) -> list[r.Record]:
        match happening:
            case NodeEnded(node=name):
                self._fences.lift(name)
            case NodeSilent(node=name):  # what follows is as if somebody had killed it
                self._bridge.send(b.Replace(node=name))
                return [self._note_hanging(name)]
            case NodeRefused(node=name, reason=reason):
                if self._agentless.get(name) != reason:
                    self._agentless[name] = reason
                    return [r.Noted(level="warning", text=f"the agent of node {name} refuses this service: {reason}")]
            case CodeGone(job_id=job_id, node=name, slots=slots):
                self._places.gone(job_id, name)
                running = self._running.get(job_id)
                if isinstance(running, _Elastic):
                    running.do_without(slots, f"its code is not on {name} any more")
                    self._account(job_id)
            case NodeHere(node=name) if name in self._resting:
                del self._resting[name]
                self._nodes.end_strangers(name)
            case NodeHere(node=name) if name in self._seen:
                if self._forward is not self._early:
                    self._nodes.end_strangers(name)  # those of jobs that have gone on without them
                self._fences.lift(name)
                return [*self._join(name), *self._count_others([name])]
            case NodeGone(node=name) if name in self._up:
                return self._lose_node(name)
            case _Bridged(answer=answer):
                return self._hear_bridge(answer)
        return []

    def _hear_bridge(self, answer: b.Answer) -> list[r.Record]:
        match answer:
            case b.Nodes():
                return self._look_at(answer)
            case b.Leased():
                self._pending.answered(answer.id)
                self._take_seats(answer.held)
            case b.Shipped() | b.Unshippable() | b.Unfit():
                brought = self._places.answered(answer.id)
                return [] if brought is None else self._brought(brought.job_id, answer)
            case b.Unshipped():
                self._places.removed(answer.id)
            case b.Away(bridge=bridge, trouble=trouble):
                # Whatever it was asked for is asked for again, of the next one as soon as that is there.
                self._pending.drop_bridge(bridge)
                self._places.lose_bridge(bridge)
                self._wishes.forget_telling()
                if trouble and trouble != self._trouble:
                    self._trouble = trouble
                    return [r.Noted(level="warning", text=f"Ray is out of reach: {trouble}")]
            case b.Refused():
                self._pending.answered(answer.id)
                if answer.withheld:
                    self._others.refuse(map(self._where, answer.slots))
                return self._mark_taken(answer.slots)
            case b.Seated():
                known = {slot: self._held.get(slot) for slot in answer.held}
                waiting = {slot for slot, seat in known.items() if seat is not None and seat.holder is None}
                self._take_seats({slot: seat for slot, seat in answer.held.items() if slot in waiting})
            case b.Hangs(node=name):
                return [self._note_hanging(name)]
            case b.OtherVersion(node=name, version=version):
                if self._others_versions.get(name) != version:
                    self._others_versions[name] = version
                    text = f"node {name} has geminid {version}, and the service {__version__}: it is not used"
                    return [r.Noted(level="warning", text=text)]
            case b.NoAgent(node=name, reason=reason):
                if self._agentless.get(name) != reason:
                    self._agentless[name] = reason
                    text = f"node {name} is not used, for its agent cannot be started: {reason}"
                    return [r.Noted(level="warning", text=text)]
            case b.Lost():
                return self._lose_slots(answer.slots, answer.reason)
        return []

    def _look_at(self, answer: b.Nodes) -> list[r.Record]:
        """All nodes that Ray has, and all slots that are held for us."""
        self._trouble, self._has_looked = "", True
        self._seen = {node.name: node for node in answer.nodes}
        told: list[r.Record] = []
        for name in self._up - set(self._seen):
            if name in self._resting:  # no agent of it is there to be missed
                told += self._lose_node(name)
            else:
                self._nodes.forget(name)
        for name, node in self._seen.items():
            self._wishes.learn(node.gpu_type, node.bundle, node.accelerator)
            if node.resting and name not in self._up:  # its agent was ended just when it was missed
                told += self._join(name)
                self._resting[name] = ""
            if node.agent is not None and node.agent.token != self._resting.get(name):
                self._nodes.know(name, node.agent.host, node.agent.port, node.agent.token)
        if (found := answer.found) is not None:  # the first word of a bridge: what earlier ones held
            changed = [slot for slot, seat in self._held.items() if _is_another(found.get(slot), seat)]
            told += self._lose_slots([slot for slot in changed if self._where(slot)[0] in self._seen])
            self._take_seats({slot: seat for slot, seat in found.items() if slot not in changed})
            for name in [name for name, token in self._resting.items() if token and name in self._seen]:
                self._bridge.send(b.Rest(node=name))
        draining = frozenset(name for name, node in self._seen.items() if node.draining)
        told += [r.NodeLeaving(node=name, leaving=True) for name in sorted(draining - self._draining)]
        told += [r.NodeLeaving(node=name, leaving=False) for name in sorted(self._draining - draining)]
        self._draining = draining
        self._doubt_missing()
        return told + self._count_others()

    def _count_others(self, nodes: Iterable[str] | None = None) -> list[r.Record]:
        """See what is not for our jobs, of all nodes or of these."""
        if nodes is None:
            self._others.forget_waits()
        told: list[r.Record] = []
        for name in sorted(self._up & self._seen.keys() if nodes is None else nodes):
            slots, others = self._seen[name].slots, self._seen[name].others
            held = {index for index in range(slots) if self._slot(name, index) in self._held}
            taken = self._others.count(name, slots, others, held)
            if taken is not None:
                told.append(r.SlotsTaken(node=name, slots=list(taken), reason=self._others.why_unfit(name)))
        return told

    def _spare(self, nodes: Sequence[str], reason: str) -> list[r.Record]:
        """Nodes that cannot be used, for this reason, are not for a while; whoever was to come there goes elsewhere."""
        told: list[r.Record] = []
        if new := self._others.spare(nodes, reason):
            text = f"{reason}; {', '.join(new)} is not given to jobs for {UNFIT_S:g} s"
            told.append(r.Noted(level="warning", text=text))
        self._release([slot for slot in self._held if _node(slot) in nodes and not self._holders.of([slot])])
        return told + self._count_others()

    def _brought(self, job_id: str, answer: b.Shipped | b.Unshippable | b.Unfit) -> list[r.Record]:
        """A job's code was brought to nodes, or could not be."""
        match answer:
            case b.Shipped():
                self._places.came(job_id, answer.places)
                self._unshipped.pop(job_id, None)
            case b.Unshippable():
                return self._cannot_ship(job_id, answer)
            case b.Unfit() if answer.reason:
                return self._spare(answer.nodes, answer.reason)
        return []  # otherwise they may be about to go; if they do not, it is asked for again

    def _token_of(self, node: str) -> str:
        """By which the agent of a node is told from others; of none, nothing that another would have."""
        agent = self._seen[node].agent if node in self._seen else None
        return "" if agent is None else agent.token

    def _cannot_ship(self, job_id: str, answer: b.Unshippable) -> list[r.Record]:
        """A job's code could not be brought to nodes: nobody else's matter, and no reason to take nodes from others.

        Ray has tried three times, since what an environment is made of comes over networks. A job that has never run
        has failed then, and one that has is tried again later and later; if it runs, it stays as it is until then.
        """
        if job_id not in self._wanted:
            return []
        job, reason = self._wanted[job_id][0], answer.reason
        count = self._unshipped[job_id] = self._unshipped.get(job_id, 0) + 1
        self._places.may_be_left(job_id)  # on other nodes
        running = self._running.get(job_id)
        if running is None:
            del self._wanted[job_id]
            if answer.certain or job.state.first_started_at_s is None:
                return [r.JobEnded(job_id=job_id, how="failed", reason=reason)]
        slots = running.asked if isinstance(running, _Elastic) else () if running is None else running.slots
        return held(job_id, reason, count, self._placed(slots) if slots else None)

    def _note_hanging(self, node: str) -> r.Record:
        told = f"the agent of node {node} has not answered for {self._silent_s:g} s: it is ended, with all that it runs"
        return r.Noted(level="warning", text=f"{told}, and another one is started")

    def _mark_taken(self, slots: Sequence[str]) -> list[r.Record]:
        """These slots are not ours, until their nodes are looked at again."""
        marked = self._others.mark(map(self._where, slots))
        return [
            r.SlotsTaken(node=node, slots=list(indices), reason=self._others.why_unfit(node))
            for node, indices in marked.items()
        ]

    def _lose_slots(self, slots: Sequence[str], why: str = "") -> list[r.Record]:
        """Ray has taken slots back: the agents have ended what ran there, and jobs go on with what they have left."""
        mine = [slot for slot in slots if slot in self._held]
        self._release(mine)
        told = f"Ray has taken {', '.join(mine)} back" + (f": {why}" if why else "")
        lost = self._lose(set(mine), told) if mine else []
        return [*self._mark_taken(mine), *lost]

    def _lose_node(self, name: str) -> list[r.Record]:
        """A node is gone: jobs go on with what they have elsewhere, or come back from their checkpoints."""
        reason = f"node {name} is gone"
        self._up.discard(name)
        self._gone_since_s[name] = monotonic()
        self._resting.pop(name, None)
        mine = {self._slot(name, index) for index in range(self._known[name].slots)}
        self._release([slot for slot in self._held if slot in mine])
        self._others.lose_node(name)
        told: list[r.Record] = [r.NodeLeft(node=name, reason=reason)]
        for job_id in self._holders.of(mine):
            running = self._running[job_id]
            held = set(running.workers.values()) if isinstance(running, _Elastic) else set()
            if running.holds & mine and held <= mine:
                self._fences.put(job_id, [name])
        return told + self._lose(mine, reason)

    def _forget_nodes(self, now_s: float) -> list[r.Record]:
        """Nodes that have been gone for long, and may never come back: an autoscaler gives each a new name."""
        fenced = self._fences.nodes
        late = [name for name, since_s in self._gone_since_s.items() if now_s - since_s > FORGET_S]
        late = [name for name in late if name not in fenced][: len(self._known) - 1]
        for name in late:
            del self._known[name], self._gone_since_s[name]
        self._is_outdated |= bool(late)
        return [r.NodeForgotten(node=name) for name in late]

    # --- Jobs that may still run on nodes that are gone ---

    def _may_begin(self, job_id: str) -> bool:
        return not self._fences.holds(job_id)

    def _fence_before(self, job: LiveJob) -> None:
        """What an earlier service started may run on nodes that are not here, which only it knew, if it ever ran."""
        place = job.state.placement
        missing = set() if place is None else set(place.node_names) - self._up
        if not job.phase.holds_slots and job.wants_slots and job.state.first_started_at_s is not None:
            missing.add(BEFORE)
        self._fences.put(job.id, missing)

    def _doubt_missing(self) -> None:
        """Wait for what may run on nodes that Ray does not have either; others may still come."""
        for name in self._fences.nodes - self._seen.keys() - self._up:
            self._nodes.doubt(name)

    def _join(self, name: str) -> list[r.Record]:
        """A node can be used."""
        seen = self._seen[name]
        place: dict[str, Any] = {key: value for key, value in (("rack", seen.rack), ("zone", seen.zone)) if value}
        self._known[name] = NodeGroup(gpu_type=seen.gpu_type, slots=seen.slots, name=name, **place)
        self._up.add(name)
        self._gone_since_s.pop(name, None)
        told: list[r.Record] = [r.NodeJoined(node=name, gpu_type=seen.gpu_type, slots=seen.slots)]
        if differs := self._described.differences(self._known[name]):
            text = f"node {name} has {differs}, as the cluster file of --cluster says; what Ray says counts"
            told.append(r.Noted(level="warning", text=text))
        return told

    def _rest(self, now_s: float) -> None:
        """End the agents of nodes that nobody needs: to Ray's autoscaler, a node with an actor on it is in use."""
        slots = {slot for _, wanted in self._wanted.values() for slot in wanted}
        slots |= self._pending.things | self._held.keys()
        slots |= {slot for running in self._running.values() for slot in running.holds}
        unneeded = self._up - self._resting.keys() - {self._where(slot)[0] for slot in slots}
        self._unneeded_since_s = {name: self._unneeded_since_s.get(name, now_s) for name in unneeded}
        for name, since_s in self._unneeded_since_s.items():
            if now_s - since_s > REST_S and (agent := self._seen[name].agent) is not None:
                self._resting[name] = agent.token
                self._nodes.leave(name)
                self._bridge.send(b.Rest(node=name))

    # --- Slots ---

    def _slot(self, node: str, index: int) -> str:
        return f"{node}/{index}"

    def _where(self, slot: str) -> tuple[str, int]:
        node, _, index = slot.rpartition("/")
        return node, int(index)

    def _is_here(self, slot: str) -> bool:
        return self._where(slot)[0] in self._up

    def _is_there(self, job_id: str) -> bool:
        if not super()._is_there(job_id):
            return False
        job, slots = self._wanted[job_id]
        return all(self._is_ready(job, slot) for slot in slots)

    def _is_ready(self, job: LiveJob, slot: str) -> bool:
        """Whether a slot is held for us, its node has an agent, and a job's code is there."""
        node = _node(slot)
        return slot in self._held and node in self._up and node not in self._resting and self._has_code(job, slot)

    def _has_code(self, job: LiveJob, slot: str) -> bool:
        return not (job.code and self._ship) or self._places.on(job.id, _node(slot)) is not None

    def _usable(self, job_id: str, slots: tuple[str, ...]) -> tuple[str, ...]:
        code = self._wanted[job_id][0].code if self._ship else ""
        missing = tuple(slot for slot in slots if slot not in self._held and _node(slot) in self._up)
        if (
            missing
            and not any(self._others.has(*self._where(slot)) for slot in missing)
            and not self._pending.among(missing)
        ):
            self._lease(job_id, missing)
        if code:
            asked = self._pending.of(job_id)
            self._places.bring(job_id, {_node(slot) for slot in slots if slot in self._held or slot in asked}, code)
        running = self._running.get(job_id)
        used = set(running.workers.values()) if isinstance(running, _Elastic) else set()
        job = self._wanted[job_id][0]  # where it trains it stays, though nobody knew any more that its code is there
        return tuple(slot for slot in slots if self._is_ready(job, slot) or (slot in used and slot in self._held))

    def _lease(self, job_id: str, slots: Sequence[str]) -> None:
        """Ask for slots; where there is no bridge, they are asked for again at the next turn."""
        self._resting |= dict.fromkeys(self._resting.keys() & {self._where(slot)[0] for slot in slots}, "")
        self._pending.ask(job_id, slots, lambda number: self._bridge.send(b.Lease(id=number, slots=list(slots))))

    def _release(self, slots: Sequence[str]) -> None:
        if slots:
            for slot in slots:
                self._held.pop(slot, None)
            self._bridge.send(b.Release(slots=list(slots)))

    def _take_seats(self, held: Mapping[str, b.Seat]) -> None:
        """Slots are held for us; their agents know by whom before anything is started there."""
        self._held |= {slot: seat for slot, seat in held.items() if seat.holder or slot not in self._held}
        for node in {self._where(slot)[0] for slot in held}:
            self._nodes.hold(node)

    def _holders_on(self, node: str) -> dict[str, Identity | None]:
        """The processes that hold the slots of a node for us, by index."""
        seen = self._seen.get(node)
        seats = {index: self._held.get(self._slot(node, index)) for index in range(seen.slots if seen else 0)}
        return {str(index): seat.holder for index, seat in seats.items() if seat is not None}

    def _environment_of(self, job: LiveJob, node: str, slots: Sequence[str]) -> dict[str, str]:
        """What a process needs to see its slots of a node and no others: the devices that Ray gave us for them."""
        found = slot_environment([self._where(slot)[1] for slot in slots], (), self._slot_memory_bytes)
        seats = [self._held[slot] for slot in slots if slot in self._held]  # no process starts on a slot that is not
        devices = [device for seat in seats for device in seat.devices]
        place = self._places.on(job.id, node)
        known = self._known.get(node)
        threads = {"OMP_NUM_THREADS": "1"} if known is None or known.gpu_type == "cpu" else {}
        return {
            **threads,
            **(place.environment if place is not None else {}),
            **dict(job.spec.env),
            **found,
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
        }

    def _folder_on(self, job_id: str, node: str) -> str | None:
        """Where a job's code is on a node, if it was brought there."""
        place = self._places.on(job_id, node)
        return None if place is None else place.folder

    # --- Processes ---

    def _spec(self, job: LiveJob) -> WorkerSpec:
        return WorkerSpec(
            command=job.spec.command,
            folder=self.folder_of(job.id),
            name=job.id,
            working_folder=Path(job.spec.working_dir or ""),
            environment={},
            slot_environment=lambda slot: self._environment_of(job, self._where(slot)[0], [slot]),
            options=worker_options(job.spec),
            checkpoints=self.folders.checkpoints_of(job.id),
            address=Address(host=self._host),
            topology=self._topology,
            max_failures=job.spec.max_retries,
            min_slots=job.spec.min_slots,
            patience=replace(self._patience, heartbeat=heartbeat_s(self.cluster.total_slots)),
        )

    def _lone_environment(self, job: LiveJob, slots: tuple[str, ...]) -> Mapping[str, str]:
        """One process sees the slots of the first node."""
        node = self._where(slots[0])[0]
        mine = [slot for slot in slots if self._where(slot)[0] == node]
        addresses = {node: self._nodes.host(node)}
        return {
            **meeting_place(addresses),
            **self._environment_of(job, node, mine),
            **place_among(addresses, node, len(mine)),
        }

    def _start_command(self, job: LiveJob, slots: tuple[str, ...], ended: Callable[[Command], None]) -> Command:
        return self._commands.start(job.id, self._launches(job, slots), ended)

    def _topology(self, node: str) -> tuple[str, ...]:
        """The zone and rack of a node."""
        known = self._known.get(node)
        if known is None:
            return ()
        placed = self._described.placed(known)
        return placed.zone, placed.rack or ""

    def _launches(self, job: LiveJob, slots: Sequence[str]) -> list[Launch]:
        """What is to be run on each node of a command."""
        by_node: dict[str, list[str]] = {}
        for slot in slots:
            by_node.setdefault(self._where(slot)[0], []).append(slot)
        by_node = {node: by_node[node] for node in sorted(by_node, key=lambda node: (self._topology(node), node))}
        addresses = {node: self._nodes.host(node) for node in by_node}
        meeting = meeting_place(addresses)
        launches = []
        for node, mine in by_node.items():
            environment = {
                **meeting,
                **self._environment_of(job, node, mine),
                **place_among(addresses, node, len(mine)),
                "GEMINID_JOB": job.id,
            }
            out = self.folder_of(job.id) / "logs" / ("out.log" if len(by_node) == 1 else f"{node}.log")
            folder = Path(job.spec.working_dir or "")
            launches.append(Launch(job.spec.command, environment, folder, out, mine[0], f"{job.id}/out"))
        return launches

    def _adopt_command(self, job: LiveJob, ended: Callable[[Command], None]) -> Command | None:
        stopping = job.phase is JobPhase.STOPPING  # as the service before this one asked
        return self._commands.adopt(job.id, ended, begin=job.wants_slots and not stopping, asked=stopping)

    def _exit_of(self, job_id: str) -> PlainExit | None:
        return self._commands.exit_of(job_id)

    def _plain_over(self, job_id: str, *, stopping: bool) -> list[r.Record]:
        ended = self._exit_of(job_id)
        if ended is None or ended.code != SLOT_GONE or stopping:
            return super()._plain_over(job_id, stopping=stopping)
        self._wanted.pop(job_id, None)
        return [r.JobEnded(job_id=job_id, how="lost", reason=f"it {ended.told()}")]

    def _forget_exit(self, job_id: str) -> None:
        self._commands.forget_exit(job_id)

    def _live_workers(self, job_id: str) -> dict[str, str]:
        left = Handover.read(self.folder_of(job_id))
        workers = left.workers if left is not None else {}
        return {
            worker: entry["slot"] for worker, entry in workers.items() if self._nodes.runs(entry["node"], entry["key"])
        }

    def _end_others(self) -> None:
        """Of jobs that were taken over, those processes that nobody wrote down: none has begun anything by then."""
        running = self._nodes.running()
        known = {key for job_id in self._running for key in self._written_keys(job_id)}
        for key in running.keys() - known:
            self._nodes.end(key, running[key])

    def _written_keys(self, job_id: str) -> set[str]:
        """The keys of the processes that are written down for a job."""
        left = Handover.read(self.folder_of(job_id))
        workers = {} if left is None else left.workers
        return self._commands.keys(job_id) | {entry["key"] for entry in workers.values()}


def _node(slot: str) -> str:
    """The node of a slot."""
    return slot.rpartition("/")[0]


def _leave_word(jobs: Path, key: str, code: int, well: bool, report: str) -> None:
    """A worker has ended: how, and what it left on its node, is left here, too, for whoever takes the job over."""
    job_id, _, worker = key.rpartition(".")[0].partition("/")
    folder = jobs / job_id
    if not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        if code != SLOT_GONE:
            exit_file_of(folder, worker).write_text(json.dumps({"code": code}), encoding="utf-8")
        if report:
            report_beside(end_of(folder, worker)).write_text(report, encoding="utf-8")
        if well:
            end_of(folder, worker).touch(mode=0o600)


def _service_id(folder: Path) -> str:
    """A name for this service among others on the same cluster, made once."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / SERVICE_ID
    if not path.exists():
        path.write_text(secrets.token_hex(4), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _is_another(found: b.Seat | None, known: b.Seat) -> bool:
    """Whether a slot is not held any more by whom it was; it may not have been known yet by whom."""
    return found is None or (known.holder is not None and found != known)


def heartbeat_s(slots: int) -> float:
    """How often workers say that they live: the more there are to be heard, the less often."""
    return min(max(slots / HEARD_PER_S, Patience().heartbeat), LONGEST_HEARTBEAT_S)


def _several(names: Iterable[str]) -> str:
    """Some names in a sentence; of many, the first."""
    first, *others = names
    return ", ".join([first, *others[:2]]) + (f" and {len(others) - 2} more" if len(others) > 2 else "")
