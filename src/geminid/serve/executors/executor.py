"""Jobs on the slots of nodes: elastic ones through a supervisor each, plain commands through the agents of their nodes.

The same for every engine: a provider (``provider.py``) supplies nodes and leases of their slots. What is to be done for
a job next is decided by ``reconcile``. Starting anything waits for ``flush``, which the service calls once it has
written down that it will: after a crash, the log knows of every process that there may be.

There may be thousands of jobs, and each reports something every second: what that means for others is found by the
slots that it is about. A job that waits for a slot is reconciled again when another leaves it, or is to stop.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from queue import Empty, SimpleQueue

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.job import JobKind
from geminid.jobstate import JobPhase
from geminid.process.disk_full import meeting_folder
from geminid.process.logfiles import rotate
from geminid.serve import records as r
from geminid.serve.executors import agentevents as a
from geminid.serve.executors import provider as p
from geminid.serve.executors.base import ExecutorEvent, Submissions
from geminid.serve.executors.commands import Commands
from geminid.serve.executors.elasticjob import ElasticJob, Outcome, Surroundings
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.jobrecords import Refusals, held, not_started, stopped
from geminid.serve.executors.jobtable import JobTable, RunningJob
from geminid.serve.executors.launching import Launching
from geminid.serve.executors.nodepool import NodeLost, NodeOutcome, NodePool
from geminid.serve.executors.plainjob import PlainJob, command_ended
from geminid.serve.executors.reconcile import Acquire, Action, Desired, Resize, Start, StopToMove, reconcile
from geminid.serve.executors.starts import CommandEnded, CommandStarted, JobEvent, StartFailed, Starts, SupervisorEvent
from geminid.serve.executors.takeover import Takeover, replanned
from geminid.serve.livejob import LiveJob
from geminid.supervise.handover import Handover
from geminid.supervise.protocol import Progress

#: Time between two looks at the sizes of logs.
LOGS_EVERY_S = 1.0

#: Greatest number of jobs whose logs are looked at in one look; with more jobs, each is looked at less often.
MAX_LOGS = 1000

#: How long to wait, when a service begins, for the agents of nodes that jobs were on, in seconds.
JOBS_AGENTS_S = 60.0

#: How long to wait for one event while nodes are waited for, in seconds.
WAIT_STEP_S = 0.2


class Inbox:
    """Passes events on to the service; before that has begun, keeps them."""

    def __init__(self) -> None:
        self._early: SimpleQueue[ExecutorEvent] = SimpleQueue()
        self._forward: Callable[[ExecutorEvent], None] = self._early.put

    def post(self, event: ExecutorEvent) -> None:
        """Something that was learned in any thread."""
        self._forward(event)

    def next(self, timeout_s: float) -> ExecutorEvent | None:
        """An early event; None if none has come in time."""
        try:
            return self._early.get(timeout=timeout_s)
        except Empty:
            return None

    def forward_to(self, post: Callable[[ExecutorEvent], None]) -> None:
        """The service has begun: events go there, those that were kept first."""
        while (event := self.next(0.0)) is not None:
            post(event)
        self._forward = post
        while (event := self.next(0.0)) is not None:  # posted meanwhile
            post(event)


class LogRotation:
    """Puts logs of running jobs aside that have grown too large: of some jobs, and of the next ones the next time."""

    def __init__(self, folders: JobFolders, clock: Clock) -> None:
        self._folders, self._clock = folders, clock
        self._next_s = 0.0
        self._due: list[str] = []

    def tick(self, jobs: Iterable[str]) -> None:
        """Look at the logs of some jobs, if it is time."""
        if self._clock.monotonic_s() > self._next_s:
            self._next_s = self._clock.monotonic_s() + LOGS_EVERY_S
            self.look(jobs)

    def skip(self) -> None:
        """Look at no logs from now on."""
        self._next_s = inf

    def look(self, jobs: Iterable[str]) -> None:
        """Look at the logs of some jobs."""
        due = self._due or list(jobs)
        self._due = due[MAX_LOGS:]
        for job_id in due[:MAX_LOGS]:
            rotate(self._folders.logs_of(job_id))


class AgentExecutor:
    """Runs jobs on the nodes of a provider; see the module."""

    def __init__(
        self,
        provider: p.NodeProvider,
        nodes: NodePool,
        launching: Launching,
        commands: Commands,
        submissions: Submissions,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self.provider, self.nodes, self.submissions, self.folders = provider, nodes, submissions, launching.folders
        self._launching, self._commands, self._inbox, self._clock = launching, commands, inbox, clock
        self.agent_versions: Mapping[str, str] = nodes.agent_versions
        self.jobs = JobTable()
        self._starts = Starts(launching, commands, inbox.post)
        self._refusals = Refusals()
        self.logs = LogRotation(self.folders, clock)
        self._early_records: list[r.Record] = []
        self._undelivered: dict[str, int] = {}  # how often in a row a job's code could not be brought to its nodes

    # --- Before the service begins ---

    def note(self, text: str) -> None:
        """A warning that is recorded when the service begins."""
        self._early_records.append(r.Noted(level="warning", text=text))

    def wait_for_event(self) -> None:
        """Handle one event before the service begins, if one comes soon; nodes that join then are simply there."""
        event = self._inbox.next(WAIT_STEP_S)
        outcomes = [] if event is None else self._nodes_outcomes(event)
        self._early_records += [outcome for outcome in outcomes if isinstance(outcome, r.Noted)]

    # --- What the service asks ---

    @property
    def cluster(self) -> Cluster:
        """The slots that there are."""
        return self.nodes.cluster

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Take over what lives, end what no job knows, record what is gone."""
        places = [job.state.placement for job in jobs if job.phase.holds_slots and job.state.placement is not None]
        needed = {name for place in places for name in place.node_names}
        deadline_s = self._clock.monotonic_s() + JOBS_AGENTS_S
        while (needed & self.nodes.seen.keys()) - self.nodes.up and self._clock.monotonic_s() < deadline_s:
            self.wait_for_event()
        records, self._early_records = self._early_records, []
        self.nodes.fence_before(jobs)
        self.provider.open(self._inbox.post, {job.id for job in jobs if job.code and job.phase.holds_slots})
        takeover = Takeover(self._launching, self._commands)
        for job in jobs:
            if not job.phase.holds_slots:
                continue
            if job.kind is JobKind.PLAIN:
                taken = takeover.plain(job, self._starts.on_command_end(job.id))
            else:
                taken = takeover.elastic(job, self._starts.on_supervisor_event(job.id))
            records += taken.records
            if taken.running is None:
                tidy(self.folders, job.id)
                continue
            self.jobs.running[job.id] = taken.running
            if job.phase is JobPhase.STOPPING:
                self._end(taken.running, save=True)
            self.jobs.account(job.id)
        keys = {key for job_id in self.jobs.running for key in takeover.keys(job_id)}
        self._launching.agents.end_unknown(set(self.jobs.running), keys)
        records += self.nodes.begin()
        self._inbox.forward_to(post)
        return [*records, *replanned(jobs, self.jobs.running.__contains__, self.provider.names)]

    def run(self, job: LiveJob, placement: Placement) -> list[r.Record]:
        """Have a job run on these slots, as soon as they are free."""
        self.jobs.wanted[job.id] = (job, tuple(map(self.provider.names.name, placement.slots())))
        running = self.jobs.running.get(job.id)
        if isinstance(running, ElasticJob):
            running.supervisor.set_min_slots(job.spec.min_slots)
        return self._reconcile([job.id])

    def stop(self, job: LiveJob, reason: str, *, save: bool = True) -> list[r.Record]:
        """Have a job's processes end."""
        self.jobs.wanted.pop(job.id, None)
        self.jobs.account(job.id)
        running = self.jobs.running.get(job.id)
        if running is None or running.stopping:
            return []
        stopping = r.JobStopping(job_id=job.id, reason=reason)
        if self._starts.recall(running):
            self.jobs.drop(job.id)
            return [stopping, stopped(job.id), *self._reconcile_stirred()]
        self._end(running, save=save)
        return [stopping]

    def flush(self) -> None:
        """Start what was announced: the service has written it down."""
        for job_id in self._starts.flush():
            self.jobs.account(job_id)

    def handle(self, event: ExecutorEvent) -> list[r.Record]:
        """What something that was posted means for the jobs."""
        if isinstance(event, JobEvent):
            return self._handle_job(event)
        return self._apply(self._nodes_outcomes(event))

    def tick(self, capacity: Callable[[], Mapping[str, int]]) -> list[r.Record]:
        """Grace periods, progress that is due, logs that have grown, slots nobody needs, jobs that can go on."""
        records: list[r.Record] = []
        now_s = self._clock.monotonic_s()
        for job_id, running in list(self.jobs.running.items()):
            if isinstance(running, ElasticJob):
                records += running.tick(now_s)
                if (failure := running.failure) is not None:
                    records += self._settle(running, running.handle(failure, self._surroundings(job_id)))
            elif running.command is not None:
                running.command.tick()
        self.logs.tick(self.jobs.running)
        self.provider.request_capacity(capacity)
        events = self.provider.tick(self.jobs.needed_slots, self.jobs.__contains__)
        records += [*self.nodes.tick(), *self._apply(self.nodes.handle_provider(events)), *self._reconcile_stirred()]
        waiting = [job_id for job_id in self.jobs.wanted if not self.provider.is_waiting(job_id)]
        return records + self._reconcile(job_id for job_id in waiting if not self._is_there(job_id))

    def delay_of(self, job_id: str) -> str:
        """What a job that is to start or to grow waits for. In any thread."""
        wanted = self.jobs.wanted.get(job_id)
        if wanted is None:
            return ""
        job, slots = wanted
        if self.provider.trouble:
            return self.provider.trouble
        if fenced := self.nodes.fences.around(job_id):
            return f"some of it may still run on {several(fenced)}, out of reach; it starts when that is over"
        if delay := self.provider.delay_of(job_id, job.code, slots):
            return delay
        nodes = {self.provider.names.place(slot)[0] for slot in slots}
        if agentless := sorted((nodes - self.nodes.up) | (nodes & self.nodes.resting)):
            return f"the agent of {several(agentless)} is being started"
        return ""

    def close(self, *, detach: bool) -> None:
        """End with all processes, or leave them to the next service."""
        for running in self.jobs.running.values():
            if isinstance(running, PlainJob):
                if running.command is not None and not detach:
                    running.command.kill()
            elif detach:
                running.supervisor.detach()
            else:
                running.supervisor.kill()
        self._launching.agents.close()
        self.provider.close(detach=detach)

    # --- Reconciling ---

    def _reconcile(self, job_ids: Iterable[str]) -> list[r.Record]:
        """Bring jobs as close to their wanted slots as the others let them."""
        records: list[r.Record] = []
        for job_id in job_ids:
            if job_id in self.jobs.wanted:
                chain = self.jobs.waiting_chain(job_id)
                for action in reconcile(list(map(self._desired, chain)), self.jobs.around(chain)):
                    records += self._carry_out(action)
                for one in chain:
                    self.jobs.account(one)
        return records

    def _reconcile_stirred(self) -> list[r.Record]:
        """Reconcile the jobs that want slots where something has changed."""
        records: list[r.Record] = []
        while self.jobs.stirred:
            records += self._reconcile(self.jobs.take_stirred())
        return records

    def _desired(self, job_id: str) -> Desired:
        job, slots = self.jobs.wanted[job_id]
        running = self.jobs.running.get(job_id)
        used = set(running.workers.values()) if isinstance(running, ElasticJob) else set()
        acquired = frozenset(slot for slot in slots if self._is_acquired(job, slot))
        # Where it trains it stays, though it may not be known any more that its code is there.
        ready = acquired | {slot for slot in slots if slot in used and self.provider.seat(slot) is not None}
        may_start = not self.nodes.fences.holds(job_id)
        return Desired(job_id, slots, ready, acquired, job.spec.min_slots, job.elastic, may_start)

    def _is_acquired(self, job: LiveJob, slot: str) -> bool:
        return self.nodes.is_usable(slot) and self.provider.is_ready(job.id, job.code, slot)

    def _is_there(self, job_id: str) -> bool:
        """Whether a job runs on all slots that it is wanted on, or is about to, and nothing is left to be done."""
        running, (job, slots) = self.jobs.running.get(job_id), self.jobs.wanted[job_id]
        there = running is not None and not running.stopping and running.target == slots
        return there and all(self._is_acquired(job, slot) for slot in slots)

    def _carry_out(self, action: Action) -> list[r.Record]:
        job, _ = self.jobs.wanted[action.job_id]
        running = self.jobs.running.get(job.id)
        placed = self._surroundings(job.id).placed
        match action:
            case Acquire(slots=slots):
                self.provider.lease(job.id, job.code, [slot for slot in slots if self.nodes.has(slot)])
            case Start(slots=slots):
                starting = r.JobStarting(job_id=job.id, placement=placed(slots))
                self._undelivered.pop(job.id, None)
                try:
                    self.jobs.running[job.id] = self._starts.announce_start(job, slots)
                except (OSError, ValueError) as problem:
                    self.jobs.drop(job.id)
                    return [starting, not_started(job.id, problem)]
                return [starting]
            case Resize(slots=slots) if isinstance(running, ElasticJob):
                self._undelivered.pop(job.id, None)
                running.retarget(slots)
                self._starts.announce_resize(running)
                return [r.JobRescaling(job_id=job.id, placement=placed(running.recorded))]
            case StopToMove() if running is not None:
                why = f": {job.why}" if job.why else ""
                moving = r.JobStopping(job_id=job.id, reason=f"it has to move to other slots{why}")
                if self._starts.recall(running):
                    self.jobs.drop(job.id, target=False)
                    return [moving, stopped(job.id), *self._reconcile([job.id])]
                self._end(running, save=True)
                return [moving]
        return []

    def _end(self, running: RunningJob, *, save: bool) -> None:
        self.jobs.stirred |= running.holds
        if isinstance(running, ElasticJob):
            running.stop(save=save)
        else:
            running.stop(self._launching.patience.grace)

    # --- What jobs and nodes report ---

    def _surroundings(self, job_id: str) -> Surroundings:
        wanted, _ = self.jobs.wanted.get(job_id, (None, ()))
        return Surroundings(self.provider.names, self.cluster, self._refusals, wanted, self._clock.monotonic_s())

    def _handle_job(self, event: JobEvent) -> list[r.Record]:
        running = self.jobs.running.get(event.job_id)
        records: list[r.Record] = []
        match event:
            case SupervisorEvent() if isinstance(running, ElasticJob) and running.supervisor is event.supervisor:
                records = self._settle(running, running.handle(event.event, self._surroundings(event.job_id)))
                if isinstance(event.event, Progress):  # once a second from every job, and it changes no slot
                    return records
            case CommandStarted() if running is not None:
                placement = self._surroundings(event.job_id).placed(running.holds)
                return [r.JobFormed(job_id=event.job_id, placement=placement)]
            case StartFailed(problem=problem):
                self.jobs.drop(event.job_id)
                records = [not_started(event.job_id, problem)]
            case CommandEnded() if isinstance(running, PlainJob) and running.command is event.command:
                exit_ = self._commands.exit_of(event.job_id)
                ended = command_ended(event.job_id, exit_, stopping=running.stopping)
                self.jobs.drop(event.job_id, target=ended.how != "stopped")
                records = [ended]
            case _:
                return []
        self.jobs.account(event.job_id)
        if event.job_id not in self.jobs.running:
            tidy(self.folders, event.job_id)
        return records + self._reconcile([event.job_id]) + self._reconcile_stirred()

    def _settle(self, job: ElasticJob, outcome: Outcome) -> list[r.Record]:
        """Do what an event of a job means beside its records."""
        if outcome.over:
            self.jobs.drop(job.job_id, target=outcome.drop_target)
        if outcome.resize:
            self._starts.announce_resize(job)
        return list(outcome.records)

    def _nodes_outcomes(self, event: ExecutorEvent) -> list[NodeOutcome]:
        if isinstance(event, a.AgentEvent):
            return [*self.nodes.handle_agent(event), p.SlotsChanged()]
        return self.nodes.handle_provider(self.provider.handle(event))

    def _apply(self, outcomes: Sequence[NodeOutcome]) -> list[r.Record]:
        """Do what changes of nodes mean for jobs; records of it."""
        records: list[r.Record] = []
        for outcome in outcomes:
            match outcome:
                case NodeLost(node=node, slots=slots, reason=reason):
                    for job_id in self.jobs.holders(sorted(slots)):
                        running = self.jobs.running[job_id]
                        used = set(running.workers.values()) if isinstance(running, ElasticJob) else set()
                        if used <= slots:  # all that is known to run of it is there, and may still run
                            self.nodes.fences.put(job_id, [node])
                    records += self.jobs.lose(slots, reason)
                case p.SlotsLost(slots=slots, reason=reason):
                    records += self.jobs.lose(frozenset(slots), reason)
                case p.SlotsChanged(slots=None):
                    records += self._reconcile([job_id for job_id in self.jobs.wanted if not self._is_there(job_id)])
                case p.SlotsChanged(slots=slots):
                    self.jobs.stirred |= slots or set()
                case p.CodeUndeliverable():
                    records += self._undeliverable(outcome)
                case a.CodeGone(job_id=job_id, slots=slots):
                    coded = self.jobs.running.get(job_id)
                    if isinstance(coded, ElasticJob):
                        coded.do_without(slots, f"its code is not on {outcome.node} any more")
                        self.jobs.account(job_id)
                case _:
                    records.append(outcome)
        return records + self._reconcile_stirred()

    def _undeliverable(self, event: p.CodeUndeliverable) -> list[r.Record]:
        """A job's code could not be brought to nodes: it concerns this job only, and no node is taken from others.

        A job that has never run has failed then, and one that has is tried again later and later; if it runs, it stays
        as it is until then.
        """
        job_id = event.job_id
        if job_id not in self.jobs.wanted:
            return []
        job, _ = self.jobs.wanted[job_id]
        count = self._undelivered[job_id] = self._undelivered.get(job_id, 0) + 1
        running = self.jobs.running.get(job_id)
        if running is None:
            self.jobs.drop(job_id)
            if event.certain or job.state.first_started_at_s is None:
                return [r.JobEnded(job_id=job_id, how="failed", reason=event.reason)]
        slots = () if running is None else running.target
        return held(job_id, event.reason, count, self._surroundings(job_id).placed(slots) if slots else None)


def tidy(folders: JobFolders, job_id: str) -> None:
    """A job's processes are gone: its logs keep to their size, and nothing of it stays in memory."""
    rotate(folders.logs_of(job_id))
    folder = folders.folder_of(job_id)
    handover = Handover.read(folder)
    if handover is not None:
        shutil.rmtree(meeting_folder(folder, handover.token), ignore_errors=True)


def several(names: Iterable[str]) -> str:
    """Some names in a sentence; of many, the first."""
    first, *others = names
    return ", ".join([first, *others[:2]]) + (f" and {len(others) - 2} more" if len(others) > 2 else "")
