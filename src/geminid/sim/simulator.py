"""Drive the engine in virtual time with simulated jobs, event by event.

A scheduler in the simulator knows only what its jobs have measured: step times of configurations they have run, and the
gradient noise of the epoch they are in. Time jumps from event to event; between two events nothing is computed.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import MappingProxyType

import numpy as np

from geminid.cluster import Cluster
from geminid.engine.commands import Command, Limit, Rescale, Share, Start, Stop
from geminid.engine.engine import Engine, Outcome
from geminid.engine.events import Completed, Event, NodeDown, NodeDrained, NodeUp, Reported, Revised, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Profile
from geminid.goodput.sharing import shared_speed
from geminid.job import Adaptivity
from geminid.network import WITHIN_RACK, Crossing
from geminid.policies.base import Allocation, JobFacts, JobView, Policy
from geminid.sim.application import Application
from geminid.sim.contention import contentions
from geminid.sim.profiles.gavel import ThroughputTable
from geminid.sim.reasons import Reasons
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simjob import ByIdentity, SimJob, Stint, by_identity
from geminid.sim.tuner import Batch
from geminid.sim.workload import TraceJob, Workload

#: Rounds without any progress after which a simulation gives up: the policy interrupts jobs faster than they restart.
FRUITLESS_ROUNDS = 2000

#: However soon a policy asks to be woken, it is not before this.
SHORTEST_WAKE_S = 1.0

#: Failures of nodes after which a simulation gives up: they come faster than jobs get on.
MOST_FAILURES = 100_000

#: What happens first at one moment: work ends, nodes change, jobs arrive, and then decisions are made.
_JOB, _NODE, _ARRIVAL, _TICK = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the simulated world behaves.

    ``rescale_s`` overrides what a change of slots costs each job (None: the costs that come with the profiles).
    ``interference`` is the fraction of speed that distributed jobs lose when they share a node. Nodes fail at random,
    ``node_mtbf_s`` apart on average (None: never), and are back after ``repair_s``; a job on one falls back to its
    last checkpoint, made every ``checkpoint_s``. Nodes that a policy gave back and wants again take ``provision_s`` to
    come. ``oracle`` lets every policy know what only a simulator can.
    ``estimate_error`` is the standard deviation of the logarithm by which jobs are wrong about how much they have to do
    (0: they know, from epochs and dataset; None: nobody knows).
    Jobs choose their batch sizes anew whenever the scheduler decides, as the published simulators have it. With
    ``tune_s`` they do it as the training library does: a job begins with its initial batch, looks for a better one so
    often, by what it has measured itself, and changes it if that is clearly better. ``report_s`` after a change of
    slots or batch it has measured its speed.
    """

    rescale_s: float | None = None
    interference: float = 0.0
    node_mtbf_s: float | None = None
    repair_s: float = 1800.0
    checkpoint_s: float = 600.0
    provision_s: float = 120.0
    seed: int = 0
    model: str = "geminid"
    oracle: bool = False
    estimate_error: float | None = 0.0
    tune_s: float | None = None
    report_s: float = 0.0
    debug: bool = False


@dataclass(slots=True)
class Result:
    """What happened: the jobs with all their stints, what deciding cost, and why jobs got less than they should."""

    policy: str
    cluster: Cluster
    jobs: list[SimJob]
    decision_s: list[float] = field(default_factory=list)
    rejected: list[tuple[float, str]] = field(default_factory=list)
    reasons: Reasons = field(default_factory=Reasons)
    failures: int = 0
    node_s: float = 0.0
    returned_slot_s: float = 0.0
    events: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job before it comes, from others like it: profiles by GPU type, and how noisy it is."""

    profiles: Mapping[str, Profile]
    gradient: GradientStats | None = None

    def tell(self, models: ModelKeeper, job_id: str) -> None:
        """Have the scheduler start with it."""
        for gpu_type, profile in self.profiles.items():
            models.add_profile(job_id, gpu_type, profile)
        if self.gradient is not None:
            models.add_gradient(job_id, self.gradient)


class NoProgress(RuntimeError):
    """A policy and a workload that would keep a simulation busy for ever."""


class Simulator:
    """One run of one policy over one workload. Deterministic: the same inputs give the same result.

    ``standing`` are jobs that are there already when time begins, as a scheduler knew them then: what they may have,
    where they stand, their age and what they have had. Their entries in the workload say what they have left to do.
    The policy is asked about them at once, and those that run go on without a pause where they stand.
    """

    def __init__(
        self,
        workload: Workload,
        applications: Mapping[str, Application],
        cluster: Cluster,
        policy: Policy,
        settings: Settings | None = None,
        throughputs: ThroughputTable | None = None,
        known: Mapping[str, Known] | None = None,
        standing: Mapping[str, JobView] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.throughputs, self.known, self.standing = throughputs, known or {}, standing or {}
        self.cluster = cluster
        self._links = None if cluster.links.as_profiled else cluster.links
        self._uplinks_changed = False
        self.policy = policy
        self.models = ModelKeeper(self.settings.model)
        self._own_models = self.models if self.settings.tune_s is None else ModelKeeper(self.settings.model)
        self._starts: Counter[str] = Counter()
        self._models_known: set[str] = set()
        self._rng = np.random.default_rng(self.settings.seed)
        self._estimates_rng = np.random.default_rng([self.settings.seed, 1])
        self.jobs = self._make_jobs(workload.jobs, applications)
        self.engine = Engine(
            cluster,
            policy,
            self.models,
            oracle=_SimOracle(self) if policy.needs_oracle or self.settings.oracle else None,
            sharing=throughputs or ApplicationSharing(applications),
            debug=self.settings.debug,
        )
        self.result = Result(policy.name, cluster, list(self.jobs.values()))
        self._queue: list[tuple[float, int, int, Callable[[], None]]] = []
        self._sequence = count()
        self._running: dict[str, SimJob] = {}
        self._next_tick_s = math.inf
        self._wake_at_s = math.inf
        self._fruitless_rounds = 0
        self._returned: set[int] = set()
        self._broken: set[int] = set()
        self._rented_since_s = 0.0
        self._not_yet_arrived = 0
        self.now_s = 0.0

    # --- Setting up ---

    def _make_jobs(self, traces: Sequence[TraceJob], applications: Mapping[str, Application]) -> dict[str, SimJob]:
        known: dict[int, ByIdentity] = {}
        jobs: dict[str, SimJob] = {}
        problems = self._unknown_speeds(traces)
        for trace in () if problems else traces:
            app = None
            if trace.duration_s is None and trace.steps is None:
                app = applications.get(trace.application or "")
                if app is None:
                    names = ", ".join(sorted(applications)) or "none are loaded"
                    problems.append(
                        Problem(f"application of job {trace.name}", trace.application, f"must be one of: {names}")
                    )
                    continue
            standing = self.standing.get(trace.name)
            facts = self._facts(trace, app) if standing is None else standing.facts
            per_type = self.cluster.slots_per_type
            most = max((n for t, n in per_type.items() if facts.gpu_types is None or t in facts.gpu_types), default=0)
            if app is not None:
                most = min(most, max(x.largest // x.smallest_per_slot for x in facts.limits.values()))
            if facts.requested_slots > most:
                where = f"requested slots of job {trace.name}"
                expected = f"must be at most {most}, the most that one GPU type of the cluster and its batch size allow"
                problems.append(Problem(where, facts.requested_slots, expected))
                continue
            total = (trace.duration_s or trace.steps) if app is None else app.total_steps
            assert total is not None
            key = None if app is None else by_identity(app, known)
            checkpoint_s = self.settings.checkpoint_s if self.settings.node_mtbf_s is not None else math.inf
            job = SimJob(trace, facts, key, total, checkpoint_s=checkpoint_s)
            if standing is None:
                job.facts = replace(facts, work=self._told_work(job))
            elif facts.work is not None:
                job.facts = replace(facts, work=standing.progress + job.work)
            jobs[trace.name] = job
        if problems:
            raise InvalidInput(problems[:20])
        return jobs

    def _told_work(self, job: SimJob) -> float | None:
        """What a job says it has to do; how long opaque jobs take is known to oracles only."""
        error = self.settings.estimate_error
        if error is None or (job.trace.duration_s is not None and not self.settings.oracle):
            return None
        return job.work * math.exp(error * float(self._estimates_rng.standard_normal()))

    def _unknown_speeds(self, traces: Sequence[TraceJob]) -> list[Problem]:
        """Jobs that make steps at a speed that no table tells, all of a kind in one sentence."""
        unknown = Counter(
            (trace.application or "", trace.requested_slots)
            for trace in traces
            if trace.steps is not None and not self._throughputs_of(trace)
        )
        if unknown and self.throughputs is None:
            jobs = f"{unknown.total()} of its jobs make steps at speeds that depend on the GPU type"
            told = f"{jobs}: pass --profiles with a file of throughputs by GPU type, like Gavel's"
            return [Problem("workload", NOT_SHOWN, told)]
        types = ", ".join(self.cluster.type_index)
        return [
            Problem(f"{model} on {slots} slots ({jobs} jobs)", NOT_SHOWN, f"has no throughput on any of {types}")
            for (model, slots), jobs in unknown.items()
        ]

    def _throughputs_of(self, trace: TraceJob) -> dict[str, float]:
        if self.throughputs is None or trace.steps is None:
            return {}
        job_type = (trace.application or "", trace.requested_slots)
        speeds = {gpu_type: self.throughputs.alone(job_type, gpu_type) for gpu_type in self.cluster.type_index}
        return {gpu_type: speed for gpu_type, speed in speeds.items() if speed > 0}

    def _spread_throughputs_of(self, trace: TraceJob, throughputs: Mapping[str, float]) -> dict[str, float]:
        """Speeds on more nodes than needed, where they differ."""
        if self.throughputs is None or trace.requested_slots == 1:
            return {}
        job_type = (trace.application or "", trace.requested_slots)
        speeds = {gpu_type: self.throughputs.spread(job_type, gpu_type) for gpu_type in throughputs}
        return {gpu_type: speed for gpu_type, speed in speeds.items() if speed != throughputs[gpu_type]}

    def _facts(self, trace: TraceJob, app: Application | None) -> JobFacts:
        rescale_s = self.settings.rescale_s
        if app is None:
            throughputs = self._throughputs_of(trace)
            deadline_s = trace.slo_s
            if trace.slo_factor is not None and trace.steps is not None:
                deadline_s = trace.slo_factor * trace.steps / max(throughputs.values())
            return JobFacts(
                id=trace.name,
                submitted_s=trace.submit_s,
                requested_slots=trace.requested_slots,
                min_slots=trace.requested_slots,
                max_slots=trace.requested_slots,
                adaptivity=Adaptivity.RIGID,
                gpu_types=frozenset(throughputs) if throughputs else None,
                rescale_s=rescale_s if rescale_s is not None else 0.0,
                weight=trace.weight,
                owner=trace.owner,
                opportunistic=trace.opportunistic,
                kind=trace.application or "",
                throughputs=MappingProxyType(dict(throughputs)),
                spread_throughputs=MappingProxyType(self._spread_throughputs_of(trace, throughputs)),
                steps=trace.steps,
                deadline_s=None if deadline_s is None else trace.submit_s + deadline_s,
            )
        adaptivity, requested_batch = trace.adaptivity, trace.requested_batch
        if app.pinned_batch is not None:
            adaptivity, requested_batch = Adaptivity.FIXED_BATCH, app.pinned_batch
        limits = {t: app.limits[t] for t in self.cluster.type_index if t in app.limits}
        if adaptivity is not Adaptivity.ADAPTIVE and requested_batch is not None:
            limits = {t: replace(x, initial=requested_batch, largest=requested_batch) for t, x in limits.items()}
        if not limits:
            types = ", ".join(self.cluster.type_index)
            where = f"profile of {app.name}"
            raise InvalidInput([Problem(where, NOT_SHOWN, f"covers none of the cluster's GPU types ({types})")])
        most = max(limit.largest // limit.smallest_per_slot for limit in limits.values())
        most = min(most, app.pinned_slots or most)
        rigid = adaptivity is Adaptivity.RIGID
        return JobFacts(
            id=trace.name,
            submitted_s=trace.submit_s,
            requested_slots=trace.requested_slots,
            min_slots=trace.requested_slots if rigid else 1,
            max_slots=trace.requested_slots if rigid else max(most, trace.requested_slots),
            requested_batch=requested_batch,
            opportunistic=trace.opportunistic,
            adaptivity=adaptivity,
            gpu_types=frozenset(limits),
            limits=MappingProxyType(limits),
            rescale_s=rescale_s if rescale_s is not None else app.rescale_s,
            weight=trace.weight,
            owner=trace.owner,
            kind=app.name,
            deadline_s=None if trace.slo_s is None else trace.submit_s + trace.slo_s,
        )

    # --- The loop ---

    def run(self, progress: Callable[[int], None] | None = None) -> Result:
        """Simulate until every job is done; ``progress`` is told the number of jobs that are."""
        started = time.perf_counter()
        for job in self.jobs.values():
            if job.facts.id in self.standing:
                self._stand(job, self.standing[job.facts.id])
            else:
                self._at(job.facts.submitted_s, _ARRIVAL, partial(self._arrive, job))
        if self.standing:
            self._schedule_round()
            self._at(self.now_s, _TICK, lambda: self._decide_anew(Tick(self.now_s)))
        if self.settings.node_mtbf_s is not None:
            for node in range(len(self.cluster.nodes)):
                self._schedule_failure(node)
        done = 0
        while self._queue and (self.engine.jobs or self._not_yet_arrived):
            self.now_s, _, _, action = heapq.heappop(self._queue)
            self.result.events += 1
            action()
            if self._uplinks_changed:
                self._share_uplinks()
            finished = len(self.jobs) - len(self.engine.jobs) - self._not_yet_arrived
            if progress is not None and finished != done:
                done = finished
                progress(done)
        self._count_rent()
        self.result.wall_s = time.perf_counter() - started
        return self.result

    def _at(self, at_s: float, order: int, action: Callable[[], None]) -> None:
        if order == _ARRIVAL:
            self._not_yet_arrived += 1
        heapq.heappush(self._queue, (at_s, order, next(self._sequence), action))

    def _schedule_failure(self, node: int) -> None:
        assert self.settings.node_mtbf_s is not None
        self._at(self.now_s + float(self._rng.exponential(self.settings.node_mtbf_s)), _NODE, partial(self._fail, node))

    def _fail(self, node: int) -> None:
        if node in self._returned:
            self._schedule_failure(node)
            return
        self.result.failures += 1
        if self.result.failures > MOST_FAILURES:
            raise NoProgress(f"nodes failed {MOST_FAILURES:,} times and jobs were still not done: they fail too often.")
        self._broken.add(node)
        self._feed(NodeDown(self.now_s, node))
        self._at(self.now_s + self.settings.repair_s, _NODE, partial(self._repair, node))

    def _repair(self, node: int) -> None:
        self._broken.discard(node)
        self._schedule_failure(node)
        if node not in self._returned:
            self._decide_anew(NodeUp(self.now_s, node))

    # --- Autoscaling ---

    def _count_rent(self) -> None:
        """Add up what the rented nodes have cost since their number last changed."""
        elapsed_s, self._rented_since_s = self.now_s - self._rented_since_s, self.now_s
        self.result.node_s += elapsed_s * (len(self.cluster.nodes) - len(self._returned))
        self.result.returned_slot_s += elapsed_s * sum(self.cluster.nodes[node].slots for node in self._returned)

    def _scale(self, desired: Mapping[str, int]) -> None:
        """Give nodes back, the least used first, or rent some again; the cluster is all that can be had."""
        for gpu_type, index in self.cluster.type_index.items():
            nodes = np.flatnonzero(self.cluster.node_type == index).tolist()
            wanted = desired.get(gpu_type, 0)
            if index == 0 and not any(desired.values()):
                wanted = 1  # somebody has to be there when the next job comes
            self._scale_type(nodes, min(wanted, len(nodes)))

    def _scale_type(self, nodes: Sequence[int], wanted: int) -> None:
        """Have so many of these nodes, which are of one type."""
        rented = [node for node in nodes if node not in self._returned]
        more = wanted - len(rented)
        if more:
            self._count_rent()
        if more < 0:
            used = Counter(node for job in self.engine.jobs.values() for node, _ in job.allocation)
            for node in sorted(rented, key=lambda node: (used[node], -node))[:-more]:
                self._returned.add(node)
                self._at(self.now_s, _NODE, partial(self._feed, NodeDrained(self.now_s, node)))
        for node in [node for node in nodes if node in self._returned - self._broken][: max(more, 0)]:
            self._returned.discard(node)
            self._at(self.now_s + self.settings.provision_s, _NODE, partial(self._bring, node))

    def _bring(self, node: int) -> None:
        if node not in self._returned | self._broken:
            self._feed(NodeUp(self.now_s, node))

    def _stand(self, job: SimJob, view: JobView) -> None:
        """Have a job go on as it was when time began."""
        self._tell_models(job)
        self.engine.restore(replace(view, facts=job.facts))
        if view.allocation and view.gpu_type is not None:
            batch = self._batch(job, view.gpu_type, view.allocation)
            steps_per_s = self._steps_per_s(job, view.gpu_type, view.allocation)
            crossing = self._crossing(view.allocation)
            job.begin(self.now_s, 0.0, view.allocation, view.gpu_type, batch, steps_per_s, crossing)
            self._running[job.facts.id] = job
            self._schedule(job)
            self._uplinks_changed |= bool(crossing.uplinks)
        elif job.application is None:
            job.start_up_s = 0.0  # what else it costs is in the time that it takes

    def _arrive(self, job: SimJob) -> None:
        self._not_yet_arrived -= 1
        job.at_s = self.now_s
        self._tell_models(job)
        self._feed(Submitted(self.now_s, job.facts))
        self._schedule_round()

    def _tell_models(self, job: SimJob) -> None:
        """What the scheduler knows of a job's speed before it has run here."""
        if self.settings.oracle:
            models = job.true_models()
            for gpu_type, fitted in models.items():
                self.models.add_fit(job.facts.id, gpu_type, fitted)
            self._models_known |= {job.facts.id} if models else set()
            profiles = {} if models else job.oracle_profiles(self.cluster)
            for gpu_type, profile in profiles.items():
                self.models.add_profile(job.facts.id, gpu_type, profile)
        elif job.facts.id in self.known:
            self.known[job.facts.id].tell(self.models, job.facts.id)
        elif self.policy.brings_profiles:
            for gpu_type, profile in job.one_slot_profiles().items():
                self.models.add_profile(job.facts.id, gpu_type, profile)

    def _schedule_round(self) -> None:
        """Make sure that the end of the current round is scheduled while there are jobs."""
        interval_s = self.policy.interval_s
        if interval_s is not None and self._next_tick_s == math.inf:
            self._next_tick_s = max(1, math.ceil(self.now_s / interval_s - 1e-9)) * interval_s
            self._at(self._next_tick_s, _TICK, self._tick)

    def _tick(self) -> None:
        if not self.engine.jobs:
            self._next_tick_s = math.inf
            return
        self._decide_anew(Tick(self.now_s))
        if self.policy.interval_s is not None and self.engine.jobs:
            self._next_tick_s = self.now_s + self.policy.interval_s
            self._at(self._next_tick_s, _TICK, self._tick)
        else:
            self._next_tick_s = math.inf

    def _decide_anew(self, event: Event) -> None:
        """A round, a wake-up, a node that is back; too many of them without anybody working are one too many."""
        before = self._works_from_s()
        self._feed(event)
        self._fruitless_rounds = 0 if before < self.now_s else self._fruitless_rounds + 1
        if self._fruitless_rounds > FRUITLESS_ROUNDS:
            waiting = ", ".join(list(self.engine.jobs)[:5])
            why = "Either nothing it decides can run, or it stops jobs before their restart is over."
            if self.result.rejected:
                why = f"Its last decision that could not be carried out: {self.result.rejected[-1][1]}."
            raise NoProgress(
                f"policy {self.policy.name} made no progress in {FRUITLESS_ROUNDS} decisions; waiting: {waiting}. {why}"
            )

    def _works_from_s(self) -> float:
        """Since when the first of the running jobs has been working, or will be."""
        return min((job.stint.works_from_s for job in self._running.values() if job.stint), default=math.inf)

    def _feed(self, event: Event) -> None:
        """Give the engine an event and carry out what it answers."""
        deciding = self.policy.interval_s is None or isinstance(event, Tick)
        if deciding and (self.policy.needs_models or self.policy.needs_reports):
            self._report_news()
        started = time.perf_counter()
        outcome = self.engine.handle(event)
        if outcome.decided:
            self.result.decision_s.append(time.perf_counter() - started)
        self._carry_out(outcome)
        if deciding and self.policy.adapts_batch and self.settings.tune_s is None:
            self._retune_all()

    def _carry_out(self, outcome: Outcome) -> None:
        for reason in outcome.rejected:
            self.result.rejected.append((self.now_s, reason))
        if outcome.reasons:
            jobs = self.engine.jobs
            partners = {job_id: jobs[job_id].partner for job_id in outcome.reasons if job_id in jobs}
            self.result.reasons.add(outcome.reasons, partners)
        for command in outcome.commands:
            self._execute(command)
        if outcome.desired_nodes is not None:
            self._scale(outcome.desired_nodes)
        if self.settings.interference:
            self._spread_interference()
        if outcome.decided and not outcome.rejected and self.policy.interval_s is None:
            self._wake_at_s = math.inf
            if outcome.wake_at_s is not None and outcome.wake_at_s > self.now_s:
                self._wake_at_s = max(outcome.wake_at_s, self.now_s + SHORTEST_WAKE_S)
            if self.now_s < self._wake_at_s < math.inf:
                self._at(self._wake_at_s, _TICK, self._wake)

    def _wake(self) -> None:
        """A wake-up that the policy asked for; only the last one it asked for counts."""
        if self.engine.jobs and self.now_s == self._wake_at_s:
            self._decide_anew(Tick(self.now_s))

    # --- The executor ---

    def _execute(self, command: Command) -> None:
        job = self.jobs[command.job_id]
        job.advance(self.now_s)
        self._notice_crossing(job)
        match command:
            case Start(allocation=allocation) | Rescale(allocation=allocation):
                gpu_type = self.cluster.nodes[allocation[0][0]].gpu_type
                self._learn(job)
                batch = self._batch(job, gpu_type, allocation)
                steps_per_s = self._steps_per_s(job, gpu_type, allocation)
                crossing = self._crossing(allocation)
                job.begin(self.now_s, job.pause_s, allocation, gpu_type, batch, steps_per_s, crossing)
                self._running[job.facts.id] = job
                self._schedule(job)
                if crossing.uplinks and job.stint is not None:
                    self._at(job.stint.works_from_s, _JOB, partial(self._notice_crossing, job))
                self._reveal(job)
                if isinstance(command, Start):
                    self._start_tuning(job)
            case Share(partner=partner):
                self._share(job, partner)
            case Limit(cap=cap, memory_cap=memory_cap):
                job.limit(self.now_s, cap, memory_cap)
                self._slow_down(job)
            case Stop(lost=lost):
                if lost:
                    job.crash(self.now_s)
                else:
                    job.finish_stint(self.now_s)
                self._running.pop(job.facts.id, None)

    def _reveal(self, job: SimJob) -> None:
        """A job that was there at the beginning, and had not told how much it has to do, tells when it starts."""
        standing = self.standing.get(job.facts.id)
        if standing is not None and job.application is not None and job.facts.work is None:
            job.facts = replace(job.facts, work=standing.progress + job.work)
            self.engine.take(Revised(self.now_s, job.facts))

    def _steps_per_s(self, job: SimJob, gpu_type: str, allocation: Allocation) -> float:
        """Speed of a job without an application: its table's, or one second of work a second."""
        if self.throughputs is None or job.trace.steps is None:
            return 1.0
        spread = len(allocation) > -(-job.facts.requested_slots // self.cluster.largest_node_slots[gpu_type])
        speed = job.facts.throughputs[gpu_type]
        return job.facts.spread_throughputs.get(gpu_type, speed) if spread else speed

    def _share(self, job: SimJob, partner: str | None) -> None:
        """Let a job share its slots with a partner, or have them alone."""
        stint = job.share(self.now_s, partner, 1.0)
        if stint.batch is not None and job.facts.adaptivity is Adaptivity.ADAPTIVE:
            stint.batch = self._batch(job, stint.gpu_type, stint.allocation, shared=partner is not None) or stint.batch
        self._slow_down(job)

    def _slow_down(self, job: SimJob) -> None:
        """Let a job and its partner be as fast as their batches allow beside each other."""
        stint = job.stint
        assert stint is not None
        other = self.jobs[stint.partner] if stint.partner is not None else None
        if other is None or other.stint is None:
            self._schedule(job)
            return
        for one, beside in ((job, other), (other, job)):
            if one.stint is not None and one.stint.partner == beside.facts.id:
                one.advance(self.now_s)
                one.share(self.now_s, beside.facts.id, self._speed_beside(one, beside))
                self._schedule(one)

    def _speed_beside(self, job: SimJob, other: SimJob) -> float:
        """What is left of a job's speed: by the batches of both, where they have any, while the other one computes."""
        mine, theirs, sharing = job.stint, other.stint, self.engine.sharing
        assert mine is not None
        assert theirs is not None
        assert sharing is not None
        if isinstance(sharing, ApplicationSharing) and mine.batch is not None and theirs.batch is not None:
            busy = sharing.busy(job.facts.kind, mine.gpu_type, mine.batch.per_slot)
            speed = shared_speed(busy, sharing.busy(other.facts.kind, mine.gpu_type, theirs.batch.per_slot))
            if mine.memory_cap is not None:
                speed *= sharing.spilled(other.facts, job.facts, mine.gpu_type, mine.memory_cap)[0]
        else:
            speed = sharing.relative_speeds(job.facts, other.facts, mine.gpu_type)[0]
        return 1.0 - theirs.cap * (1.0 - speed)

    def _batch(self, job: SimJob, gpu_type: str, allocation: Allocation, *, shared: bool = False) -> Batch | None:
        if job.application is None:
            return None
        placement = tuple(slots for _, slots in allocation)
        if not self.policy.adapts_batch or job.facts.adaptivity is not Adaptivity.ADAPTIVE:
            return job.fixed_batch(gpu_type, sum(placement))
        slowdown = self._crossing(allocation).path.slowdown
        known = self.engine.jobs[job.facts.id].model
        gradient = known.gradient if known is not None else None
        fitted = self._own_models.fit_of(job.facts.id, gpu_type)
        if gradient is None or fitted is None:
            return job.tuned_batch(None, job.application.value.gradient.at(0, 1.0), gpu_type, placement, shared=shared)
        return job.tuned_batch(fitted, gradient, gpu_type, placement, shared=shared, link_slowdown=slowdown)

    def _schedule(self, job: SimJob) -> None:
        """Schedule the next moment at which something changes for a running job by itself."""
        if job.stint is not None and job.stint.cap == 0.0:
            return
        if self.policy.adapts_batch and job.application is not None:
            at_s, epoch = job.end_of_epoch_s(), job.epoch()
        else:
            at_s, epoch = job.completion_s(), -1
        self._at(at_s, _JOB, partial(self._job_event, job, job.version, epoch))

    def _job_event(self, job: SimJob, version: int, epoch: int) -> None:
        if job.version != version:
            return
        job.advance(self.now_s)
        job.finish_epoch(epoch)
        if job.progress >= job.total * (1.0 - 1e-9):
            job.progress = job.total
            job.completed_s = self.now_s
            self._notice_crossing(job)
            job.finish_stint(self.now_s)
            self._running.pop(job.facts.id, None)
            self._feed(Completed(self.now_s, job.facts.id, self._told_progress(job, job.work)))
            return
        if self.settings.tune_s is None:
            self._retune(job)
        if job.version == version:
            self._schedule(job)

    def _retune_all(self) -> None:
        for job in list(self._running.values()):
            job.advance(self.now_s)
            self._retune(job)

    def _retune(self, job: SimJob) -> None:
        """Let a job choose its batch size anew, as the training library does; a change starts a new stint."""
        stint = job.stint
        if stint is None or stint.batch is None or job.facts.adaptivity is not Adaptivity.ADAPTIVE:
            return
        fitted = self._own_models.fit_of(job.facts.id, stint.gpu_type)
        gradient = job.gradient()
        if fitted is None or gradient is None or self.now_s < stint.works_from_s:
            return
        shared = stint.partner is not None
        current = None if self.settings.tune_s is None else stint.batch
        slowdown = stint.crossing.path.slowdown
        batch = job.tuned_batch(
            fitted, gradient, stint.gpu_type, stint.placement, shared=shared, current=current, link_slowdown=slowdown
        )
        if batch is not None and batch != stint.batch:
            job.retune(self.now_s, batch)
            self._notice_crossing(job)
            self._slow_down(job)

    def _start_tuning(self, job: SimJob) -> None:
        """From now on the job looks for a better batch now and then, until its processes end."""
        self._starts[job.facts.id] += 1
        if self.settings.tune_s is not None and self.policy.adapts_batch and job.stint is not None:
            at_s = job.stint.works_from_s + self.settings.tune_s
            self._at(at_s, _JOB, partial(self._tune, job, self._starts[job.facts.id]))

    def _tune(self, job: SimJob, start: int) -> None:
        if job.stint is None or self._starts[job.facts.id] != start or self.settings.tune_s is None:
            return
        job.advance(self.now_s)
        self._learn(job)
        self._retune(job)
        self._at(self.now_s + self.settings.tune_s, _JOB, partial(self._tune, job, start))

    def _learn(self, job: SimJob) -> None:
        """A job that tunes itself takes in what it has measured on the slots that it has."""
        stint = job.stint
        if self.settings.tune_s is not None and stint is not None and self._has_measured(stint):
            view = replace(self.engine.jobs[job.facts.id], gpu_type=stint.gpu_type)
            self._own_models.report(view, job.observation(), None)

    def _has_measured(self, stint: Stint) -> bool:
        return self.now_s > stint.works_from_s + self.settings.report_s

    def _report_news(self) -> None:
        """Jobs report what they have measured since the last decision."""
        for job in list(self._running.values()):
            stint = job.stint
            if stint is None or self.now_s <= stint.works_from_s:
                continue
            job.advance(self.now_s)
            measured = self._has_measured(stint) and job.facts.id not in self._models_known
            observation = job.observation() if measured and not stint.reported else None
            stint.reported |= measured
            gradient = job.gradient()
            done = self._told_progress(job, job.work * job.progress / job.total)
            speed = stint.speed if stint.partner is not None and measured else None
            self.engine.handle(Reported(self.now_s, job.facts.id, observation, gradient, done, job.loss(), speed))

    def _told_progress(self, job: SimJob, done: float) -> float:
        """What a job tells of its progress: with what it had done when time began. A plain command tells nothing."""
        standing = self.standing.get(job.facts.id)
        if standing is None:
            return done
        return standing.progress + (0.0 if job.application is None else done)

    # --- The network ---

    def _crossing(self, allocation: Allocation) -> Crossing:
        """What joins the nodes of an allocation."""
        if self._links is None:
            return WITHIN_RACK
        return self._links.crossing(tuple(node for node, _ in allocation))

    def _notice_crossing(self, job: SimJob) -> None:
        """What a job sends over uplinks begins, changes or ends now, if it sends anything."""
        if job.stint is not None and job.stint.crossing.uplinks:
            self._uplinks_changed = True

    def _share_uplinks(self) -> None:
        """Let the jobs that send over uplinks now share them."""
        self._uplinks_changed = False
        assert self._links is not None
        for job, contention in list(contentions(self._running.values(), self._links, self.now_s)):
            job.advance(self.now_s)
            job.contend(self.now_s, contention)
            self._schedule(job)

    def _spread_interference(self) -> None:
        """Distributed jobs that share a node slow each other down."""
        distributed = [job for job in self._running.values() if job.stint and len(job.stint.allocation) > 1]
        users: dict[int, int] = {}
        for job in distributed:
            for node, _ in job.stint.allocation if job.stint else ():
                users[node] = users.get(node, 0) + 1
        for job in self._running.values():
            stint = job.stint
            assert stint is not None
            shares = len(stint.allocation) > 1 and any(users[node] > 1 for node, _ in stint.allocation)
            slowdown = 1.0 / (1.0 - self.settings.interference) if shares else 1.0
            if slowdown != stint.slowdown:
                job.advance(self.now_s)
                stint.slowdown = slowdown
                job.version += 1
                self._schedule(job)


@dataclass(slots=True)
class _SimOracle:
    """The simulator's own knowledge, for policies whose papers assume it."""

    simulator: Simulator
    _times: dict[tuple[str, int | None, tuple[int, ...]], float] = field(default_factory=dict)

    def remaining_iterations(self, job_id: str, *, after_current_epoch: bool = False) -> float:
        """Steps at the requested batch size to completion."""
        job = self.simulator.jobs[job_id]
        job.advance(self.simulator.now_s)
        return job.remaining_iterations(after_current_epoch=after_current_epoch)

    def remaining_s(self, job_id: str) -> float:
        """Seconds of work left on the requested slots."""
        job = self.simulator.jobs[job_id]
        job.advance(self.simulator.now_s)
        return job.remaining_s(self.simulator.cluster)

    def iteration_s(self, job_id: str, placement: Sequence[int]) -> float:
        """True seconds per step at the requested batch size."""
        job = self.simulator.jobs[job_id]
        key = (job.trace.application or job_id, job.trace.requested_batch, tuple(placement))
        if key not in self._times:
            self._times[key] = job.iteration_s(tuple(placement))
        return self._times[key]
