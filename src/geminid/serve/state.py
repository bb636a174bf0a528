"""The state of the service, as a function of its records: no clock, no file, no thread.

``ServiceState.apply`` takes records in their order; ``lifecycle.py`` says what they make of a single job. A job has two
placements: its *target* is what the last plan gives it, and the placement of its
:class:`~geminid.jobstate.JobState` is what its processes hold. Neither ever gives one slot to two jobs; the executor
leads from one to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from typing import Any

from geminid.configuration import Placement, double_grants
from geminid.fields import InvalidInput
from geminid.job import JobKind, JobSpec
from geminid.jobstate import IllegalTransition, JobState
from geminid.serve import lifecycle
from geminid.serve import records as r
from geminid.serve.jobarray import array_of
from geminid.serve.livejob import LiveJob, job_to_dict, printable
from geminid.serve.quarantine import check_numbers, number_of, quarantined, read_job, reason_of
from geminid.serve.queues import QueueRules

#: Jobs that are searched, latest first, for one of the same kind as a new job.
MAX_FORERUNNERS = 1000

#: Notes for operators that are kept.
MAX_NOTES = 200

#: A slot: its node and its number.
Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over jobs: what they used, and how often they were rescaled, failed or stood still."""

    jobs: int = 0
    gpu_s: float = 0.0
    rescales: int = 0
    failures: int = 0
    paused_s: float = 0.0

    def plus(self, job: LiveJob, now_s: float) -> Totals:
        """The sums with another job."""
        return Totals(
            self.jobs + 1,
            self.gpu_s + job.service_gpu_s(now_s),
            self.rescales + job.state.rescales,
            self.failures + job.state.failures,
            self.paused_s + sum(job.pauses_s),
        )


@dataclass(slots=True)
class ServiceState:
    """Everything that the service knows. Only ``apply`` changes it; the values in it never change.

    ``requests`` are jobs by the idempotency keys of their submissions, ``submitted`` is how many jobs there ever were.
    ``quotas`` are by kind (``queue`` or ``owner``) and name; ``borrowers`` are those that may be exceeded for a while.
    ``notes`` are for operators, latest last, without audit notes. ``forgotten`` are the sums over jobs that are not
    kept any more, by owner. ``down`` are nodes that are gone, ``leaving`` nodes that are about to go. ``taken`` are
    slots that processes outside Geminid use, or that cannot be used because their node is ``unfit``, with the reason.
    ``slots`` is how many slots each node has. ``queues`` are the rules of queues that have any. ``unsettled`` are jobs
    for which something is to be done when others end: arrays that are not over, and jobs that wait for others.
    """

    seq: int = 0
    at_s: float = 0.0
    epoch: int = 0
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    submitted: int = 0
    drained: frozenset[str] = frozenset()
    cordoned: frozenset[Slot] = frozenset()
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)
    borrowers: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[tuple[float, str, str], ...] = ()
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    forgotten: dict[str, Totals] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    taken: frozenset[Slot] = frozenset()
    unfit: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, QueueRules] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)

    @property
    def emptied(self) -> frozenset[str]:
        """Nodes that jobs must leave: drained by an operator, or about to go."""
        return self.drained | self.leaving

    @property
    def out_of_service(self) -> frozenset[Slot]:
        """Slots that no job may be given: cordoned by an operator, or taken. A cordoned slot may not exist now."""
        closed = self.cordoned | self.taken
        return frozenset((node, slot) for node, slot in closed if slot < self.slots.get(node, slot + 1))

    def copy(self) -> ServiceState:
        """A copy that does not change with this state."""
        return replace(
            self,
            jobs=dict(self.jobs),
            requests=dict(self.requests),
            quotas=dict(self.quotas),
            gpu_types=dict(self.gpu_types),
            slots=dict(self.slots),
            forgotten=dict(self.forgotten),
            unsettled=set(self.unsettled),
        )

    def apply(self, seq: int, at_s: float, record: r.Record) -> None:
        """Apply the next record. A job whose record cannot be applied is put into quarantine."""
        try:
            self.apply_or_raise(seq, at_s, record)
        except Exception as problem:
            if not (about := r.jobs_of(record)):
                raise
            self.seq, self.at_s = seq, max(self.at_s, at_s)
            for job_id in sorted(about):
                self._quarantine(job_id, reason_of(record, problem))

    def apply_or_raise(self, seq: int, at_s: float, record: r.Record) -> None:
        """Apply the next record, or raise the error that prevents it."""
        check_numbers(record)
        self.seq, self.at_s = seq, max(self.at_s, at_s)
        at_s = self.at_s
        match record:
            case r.ServiceStarted():
                self.epoch = record.epoch
                nodes = record.cluster.get("gpu_types_by_node", {})
                self.gpu_types = dict(nodes)
                self.down, self.leaving, self.taken, self.unfit = frozenset(), frozenset(), frozenset(), {}
                self.slots = dict(record.cluster.get("slots", {}))
                gone = {node for job in self.jobs.values() if job.target for node in job.target.node_names} - set(nodes)
                self._lose_nodes(at_s, gone, "its node was gone when the service came back")
            case r.JobSubmitted():
                self._submit(at_s, record)
            case r.ArrayExpanded():
                self._expand(at_s, record)
            case r.Planned():
                for job_id, target in record.targets.items():
                    if job_id in self.jobs:
                        reason = record.reasons.get(job_id, "")
                        self._put(at_s, lifecycle.planned(self.jobs[job_id], at_s, target, reason))
            case r.NodeJoined():
                self.gpu_types = {**self.gpu_types, record.node: record.gpu_type}
                self.slots = {**self.slots, record.node: record.slots}
                self.down -= {record.node}
            case r.NodeLeft():
                self.down |= {record.node}
                self.leaving -= {record.node}
                self._set_taken(record.node, (), "")
                self.notes = (*self.notes, (at_s, "warning", record.reason))[-MAX_NOTES:]
                self._lose_nodes(at_s, {record.node}, record.reason)
            case r.NodeForgotten():
                self.down -= {record.node}
                self.slots = {node: slots for node, slots in self.slots.items() if node != record.node}
            case r.SlotsTaken():
                self._set_taken(record.node, record.slots, printable(record.reason))
            case r.NodeLeaving():
                self.leaving = self.leaving | {record.node} if record.leaving else self.leaving - {record.node}
            case r.NodeDrained():
                self.drained = self.drained | {record.node} if record.drained else self.drained - {record.node}
            case r.SlotCordoned():
                slot = {(record.node, record.slot)}
                self.cordoned = self.cordoned | slot if record.cordoned else self.cordoned - slot
            case r.QuotaSet():
                named = (record.of, record.name)
                self.quotas.pop(named, None)
                self.borrowers -= {named}
                if record.slots is not None:
                    self.quotas[named] = record.slots
                    self.borrowers |= {named} if record.borrow else set()
            case r.QueueRulesSet():
                members = frozenset(record.members)
                rules = QueueRules(max_priority=record.max_priority, members=members, open=record.open)
                others = {name: known for name, known in self.queues.items() if name != record.queue}
                self.queues = others if rules.is_default else {**others, record.queue: rules}
            case r.JobsForgotten():
                self._forget(record.job_ids)
            case r.LogRecovered():
                self.submitted = max(self.submitted, record.submitted)
                known = [job_id for job_id in record.continued if job_id in self.jobs]
                for job_id in known:
                    self._put(at_s, lifecycle.continued(self.jobs[job_id], at_s))
                text = f"the log was recovered; {record.lost}" if record.lost else "the log was recovered"
                self.notes = (*self.notes, (at_s, "warning", text))[-MAX_NOTES:]
            case r.JobQuarantined():
                self._quarantine(record.job_id, record.reason)
            case r.Noted() if record.level == "audit":
                pass  # only the log keeps these: there may be many
            case r.Noted():
                self.notes = (*self.notes, (at_s, record.level, record.text))[-MAX_NOTES:]
            case _:
                job = self.jobs.get(record.job_id)
                if job is not None and not job.phase.is_terminal:
                    with suppress(IllegalTransition, InvalidInput):  # a process may report anything
                        self._change(at_s, job, record)

    def _change(self, at_s: float, job: LiveJob, record: r.Record) -> None:
        """Apply a record to the job that it is about; a job that stays on its slots takes them from other targets."""
        changed = lifecycle.changed(job, at_s, record, self.gpu_types)
        if isinstance(record, r.JobHeld) and (place := lifecycle.stays_on(job, record)) is not None:
            self._take_slots(at_s, set(place.slots()), f"{job.id} stays where it is", except_for=job.id)
        self._put(at_s, changed)

    def _put(self, at_s: float, job: LiveJob) -> None:
        """Keep a job as it is now, and count it in its array if it is an element."""
        before = self.jobs.get(job.id)
        self.jobs[job.id] = job
        (self.unsettled.add if _is_unsettled(job) else self.unsettled.discard)(job.id)
        array = self.jobs.get(array_of(job.id) or "")
        if array is not None and array.array is not None and job is not before:
            self._put(at_s, lifecycle.counted(array, at_s, array.array.counted(before, job)))

    def _expand(self, at_s: float, record: r.ArrayExpanded) -> None:
        """Make the next elements of an array."""
        array = self.jobs.get(record.job_id)
        if array is None or array.array is None or array.spec.array is None or array.phase.is_terminal:
            return
        self._put(at_s, replace(array, array=array.array.made(array.spec.array, record.elements)))
        like = self._forerunner(array.spec, array.kind)
        for number in record.elements:
            self._put(at_s, lifecycle.as_fast_as(lifecycle.element(array, number), at_s, like))

    def _lose_nodes(self, at_s: float, nodes: Set[str], reason: str) -> None:
        """Take nodes that are gone from all targets."""
        slots = {slot for job in self.jobs.values() if job.target for slot in job.target.slots() if slot[0] in nodes}
        self._take_slots(at_s, slots, reason)

    def _take_slots(self, at_s: float, slots: set[Slot], reason: str, *, except_for: str = "") -> None:
        """Take slots from the targets of all jobs but one."""
        for job in list(self.jobs.values()):
            if job.id != except_for:
                self._put(at_s, lifecycle.without_slots(job, at_s, slots, reason))

    def _quarantine(self, job_id: str, reason: str) -> None:
        job = self.jobs.get(job_id)
        number = number_of(job_id)
        if job is None and number > self.submitted:  # its submission cannot be read: it is listed nevertheless
            self.submitted = number
            spec = JobSpec(name="unreadable", command=("false",))
            job = LiveJob(state=JobState.submitted(job_id=job_id, spec=spec, at_s=self.at_s), elastic=False)
        if job is not None and not job.phase.is_terminal:
            self._put(self.at_s, quarantined(job, self.at_s, reason))

    def _set_taken(self, node: str, slots: Sequence[int], reason: str) -> None:
        """Of a node's slots exactly these are taken."""
        others = {slot for slot in self.taken if slot[0] != node}
        self.taken = frozenset(others | {(node, slot) for slot in slots})
        unfit = {name: why for name, why in self.unfit.items() if name != node}
        self.unfit = {**unfit, node: reason} if reason else unfit

    def _submit(self, at_s: float, record: r.JobSubmitted) -> None:
        self.submitted += 1
        if record.job_id in self.jobs:
            return
        like = self._forerunner(record.spec, record.job_kind)
        self._put(at_s, lifecycle.as_fast_as(lifecycle.submitted(record, at_s), at_s, like))
        if record.request is not None:
            self.requests[record.request] = record.job_id

    def _forerunner(self, spec: JobSpec, kind: str) -> LiveJob | None:
        """The latest job of the same kind that was measured."""
        if kind == JobKind.PLAIN:
            return None
        recent = islice(reversed(self.jobs.values()), MAX_FORERUNNERS)
        return next((job for job in recent if job.measured and _kind(job.spec) == _kind(spec)), None)

    def _forget(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            if job is None or not job.phase.is_terminal:
                continue
            del self.jobs[job_id]
            self.unsettled.discard(job_id)
            if job.request is not None:
                self.requests.pop(job.request, None)
            owner = job.spec.owner or ""
            if job.array is None:  # its elements are counted
                self.forgotten[owner] = self.forgotten.get(owner, Totals()).plus(job, self.at_s)

    def totals(self, now_s: float) -> dict[str, Totals]:
        """The sums over all jobs so far, by owner."""
        found = dict(self.forgotten)
        for job in self.jobs.values():
            if job.array is not None:  # its elements are counted
                continue
            owner = job.spec.owner or ""
            found[owner] = found.get(owner, Totals()).plus(job, now_s)
        return found

    def quotas_of(self, job_id: str) -> dict[str, int]:
        """The quotas that apply to a job, by name: ``queue NAME`` or ``owner NAME``."""
        job = self.jobs.get(job_id)
        if job is None or not self.quotas:
            return {}
        names = (("queue", job.spec.queue), ("owner", job.spec.owner or ""))
        return {f"{of} {name}": self.quotas[of, name] for of, name in names if (of, name) in self.quotas}

    def rules_of(self, queue: str) -> QueueRules:
        """The rules of a queue."""
        return self.queues.get(queue, QueueRules())

    def may_borrow(self, name: str) -> bool:
        """Whether a quota (``queue NAME`` or ``owner NAME``) may be exceeded while nobody else can use the slots."""
        of, _, whose = name.partition(" ")
        return (of, whose) in self.borrowers

    def plan_problems(self, targets: Mapping[str, Placement | None], placed: Iterable[str] | None = None) -> list[str]:
        """What is wrong with a plan, in sentences: sizes that a job does not allow, and exceeded quotas.

        Where a quota was lowered below what is in use, a plan must not use more of it than before; quotas that may be
        borrowed beyond are not checked. ``placed`` are the jobs that have slots, where the caller knows them.
        """
        problems = []
        used_before: Counter[str] = Counter()
        used: Counter[str] = Counter()
        quotas: dict[str, int] = {}
        involved = self.jobs if placed is None else {**dict.fromkeys(placed), **targets}
        for job in (self.jobs[job_id] for job_id in involved):
            target = targets.get(job.id, job.target)
            before, after = (place.num_slots if place else 0 for place in (job.target, target))
            least, most = job.spec.min_slots, job.spec.max_slots
            if after not in (0, before) and not (least <= after and (most is None or after <= most)):
                problems.append(f"job {job.id} was given {after} slots, and asked for {least} to {most or 'any'}")
            for name, slots in self.quotas_of(job.id).items():
                quotas[name] = slots
                used_before[name] += before
                used[name] += after
        problems += [
            f"the quota of {name} is {slots} slots, and {used[name]} were given"
            for name, slots in quotas.items()
            if used[name] > max(slots, used_before[name]) and not self.may_borrow(name)
        ]
        return problems

    def check(self) -> None:
        """Raise if a slot is planned for two jobs, held by two jobs, or held by a job that has ended."""
        active = [job for job in self.jobs.values() if not job.phase.is_terminal]
        for what, placements in (
            ("planned for", [job.target for job in active if job.target]),
            ("held by", [job.state.placement for job in active if job.state.placement]),
        ):
            if twice := double_grants(placements):
                raise AssertionError(f"slots {sorted(twice)} are {what} two jobs")
        for job in self.jobs.values():
            if job.phase.is_terminal and (job.target or job.state.placement):
                raise AssertionError(f"job {job.id} is {job.phase} and has slots")

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, including the jobs' secrets."""
        return {
            "seq": self.seq,
            "at_s": self.at_s,
            "epoch": self.epoch,
            "submitted": self.submitted,
            "jobs": [job_to_dict(job) for job in self.jobs.values()],
            "requests": self.requests,
            "drained": sorted(self.drained),
            "cordoned": sorted([node, slot] for node, slot in self.cordoned),
            "quotas": [[of, name, slots] for (of, name), slots in sorted(self.quotas.items())],
            "borrowers": sorted([of, name] for of, name in self.borrowers),
            "notes": [list(note) for note in self.notes],
            "gpu_types": dict(self.gpu_types),
            "forgotten": {owner: list(astuple(totals)) for owner, totals in self.forgotten.items()},
            "down": sorted(self.down),
            "leaving": sorted(self.leaving),
            "taken": sorted([node, slot] for node, slot in self.taken),
            "unfit": dict(self.unfit),
            "slots": dict(self.slots),
            "queues": {name: rules.to_dict() for name, rules in sorted(self.queues.items())},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ServiceState:
        """The state from plain data."""
        jobs = [read_job(entry) for entry in plain["jobs"]]
        return cls(
            seq=plain["seq"],
            at_s=plain["at_s"],
            epoch=plain["epoch"],
            submitted=plain["submitted"],
            jobs={job.id: job for job in jobs},
            requests=dict(plain["requests"]),
            drained=frozenset(plain["drained"]),
            cordoned=frozenset((node, slot) for node, slot in plain["cordoned"]),
            quotas={(of, name): slots for of, name, slots in plain["quotas"]},
            borrowers=frozenset((of, name) for of, name in plain.get("borrowers", ())),
            notes=tuple((at_s, level, text) for at_s, level, text in plain["notes"]),
            gpu_types=dict(plain["gpu_types"]),
            forgotten={owner: Totals(*totals) for owner, totals in plain.get("forgotten", {}).items()},
            down=frozenset(plain.get("down", ())),
            leaving=frozenset(plain.get("leaving", ())),
            taken=frozenset((node, slot) for node, slot in plain.get("taken", ())),
            unfit=dict(plain.get("unfit", {})),
            slots=dict(plain.get("slots", {})),
            queues={name: QueueRules.from_dict(rules) for name, rules in plain.get("queues", {}).items()},
            unsettled={job.id for job in jobs if _is_unsettled(job)},
        )


def _is_unsettled(job: LiveJob) -> bool:
    """Whether something is to be done for a job when others end."""
    return (job.blocked or job.array is not None) and not job.phase.is_terminal


def _kind(spec: JobSpec) -> tuple[str | None, str, tuple[str, ...], str | None]:
    """What jobs have in common that are taken to be equally fast."""
    return (spec.owner, spec.name, spec.command[:2], spec.working_dir)
