"""What users and operators can ask a service to do: each operation is checked, and becomes records.

An operation is checked in the caller's thread as far as that needs no state. Its records are made in the service's
thread, from the state as it is then, and the caller gets a future that is done when they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from geminid.cluster import Cluster
from geminid.executionplan import DATA_PARALLEL
from geminid.fields import InvalidInput, Problem, check_integer, check_name, check_optional
from geminid.job import JobKind, JobSpec
from geminid.jobstate import JobPhase
from geminid.process.python_command import PYTHONS
from geminid.serve import records as r
from geminid.serve.arrays import made_elements, unmade_element
from geminid.serve.dependencies import check_group, resolved
from geminid.serve.executors.base import Executor
from geminid.serve.inbox import Refused
from geminid.serve.jobarray import array_of, element_number
from geminid.serve.jobnames import IDENTIFIER
from geminid.serve.livejob import ENDS, LiveJob
from geminid.serve.state import ServiceState

#: Have the service write the records that the first function makes of its state, and answer with the second.
Ask = Callable[[Callable[[ServiceState], Sequence[r.Record]], Callable[[ServiceState], Any]], Future[Any]]


class Operations:
    """The operations of one service. Those of them that need a cluster or an executor ask this ``executor``."""

    def __init__(self, executor: Executor, ask: Ask) -> None:
        self._executor, self._ask = executor, ask

    @property
    def _cluster(self) -> Cluster:
        return self._executor.cluster

    def submit(
        self, spec: JobSpec, owner: str, *, request: str | None = None, digest: str = "", checked: bool = False
    ) -> Future[LiveJob]:
        """Submit a job. ``request`` is its idempotency key: the same key again gets the same job.

        ``digest`` stands for the content of the request: a key that was used for another content is refused. The job's
        code may have to be read in the caller's thread. A job that is ``checked`` was accepted before.

        Raises:
            InvalidInput: it can never run here.
        """
        spec = spec if checked else self.accepted(spec, owner)
        return self._submit([spec], owner, request, digest, lambda jobs: jobs[0])

    def submit_group(
        self, specs: Sequence[JobSpec], owner: str, *, request: str | None = None, digest: str = ""
    ) -> Future[list[LiveJob]]:
        """Submit several jobs, which were accepted before: all of them or none. They may wait for each other by name.

        Raises:
            InvalidInput: some wait for each other in a circle.
        """
        check_group(specs)
        return self._submit(specs, owner, request, digest, lambda jobs: jobs)

    def _submit(
        self,
        specs: Sequence[JobSpec],
        owner: str,
        request: str | None,
        digest: str,
        answer: Callable[[list[LiveJob]], Any],
    ) -> Future[Any]:
        """Submit jobs together. The first has the idempotency key, the others keys that follow from it."""
        submissions = self._executor.submissions
        found = [(spec, submissions.store_code(spec), submissions.kind_of(spec)) for spec in specs]
        keys = [request if not i or request is None else f"{request}#{i}" for i in range(len(specs))]
        given: list[str] = []

        def make(state: ServiceState) -> list[r.Record]:
            if request is not None and request in state.requests:
                given.extend(state.requests[key] for key in keys if key in state.requests)
                known = state.jobs[given[0]].digest
                if known and digest and known != digest:
                    sentence = f"its Idempotency-Key was used for another job before, {given[0]}: use a key only once"
                    raise Refused(422, sentence)
                return []
            given.extend(f"j{state.submitted + 1 + i}" for i in range(len(specs)))
            others = dict(zip((spec.name for spec in specs), given, strict=True)) if len(specs) > 1 else {}
            return [
                r.JobSubmitted(
                    job_id=job_id,
                    spec=resolved(spec, state, owner, state.at_s, others) if spec.after else spec,
                    elastic=kind.kind is JobKind.ELASTIC,
                    request=key,
                    digest=digest,
                    code=code,
                    job_kind=kind.kind.value,
                    kind_reason=kind.reason,
                )
                for job_id, key, (spec, code, kind) in zip(given, keys, found, strict=True)
            ]

        return self._ask(make, lambda state: answer([state.jobs[job_id] for job_id in given]))

    def accepted(
        self, spec: JobSpec, owner: str, python: str | None = None, environment: Mapping[str, str] | None = None
    ) -> JobSpec:
        """The job as it will run: with its owner, and of a fixed size if its script cannot be resized.

        ``python`` is the submitter's interpreter, ``environment`` a part of the submitter's environment.

        Raises:
            InvalidInput: it can never run here.
        """
        submissions = self._executor.submissions
        if python is not None and spec.command[0] in PYTHONS:
            spec = replace(spec, command=(submissions.interpreter(python) or spec.command[0], *spec.command[1:]))
        if environment:
            spec = replace(spec, env=tuple({**submissions.inherited(environment), **dict(spec.env)}.items()))
        plain = submissions.kind_of(spec).kind is JobKind.PLAIN
        if problems := [*submissions.check(spec), *_not_runnable(spec, plain=plain)]:
            raise InvalidInput(problems)
        spec = replace(spec, owner=owner)
        return replace(spec, max_slots=spec.min_slots) if spec.max_slots is None and plain else spec

    def request(self, job_id: str, request: str, by: str, *, from_scratch: bool = False) -> Future[LiveJob]:
        """Ask a job to ``run`` (if it is paused, perhaps ``from_scratch``), to ``pause`` or to ``cancel``."""

        def make(state: ServiceState) -> list[r.Record]:
            job = _existing(state, job_id)
            if job.phase.is_terminal:
                if request == "cancel" and job.phase is JobPhase.CANCELLED:
                    return []
                raise _is_over(job)
            if job.wish == "cancel" and request != "cancel":
                raise Refused(409, f"job {job_id} is being cancelled")
            if job_id not in state.jobs:
                return [_skipped(job_id, request, by)]
            return [
                r.JobWished(job_id=one.id, wish=request, by=by, from_scratch=from_scratch)
                for one in _with_elements(state, job)
                if one.wish not in (request, "cancel")
            ]

        return self._ask(make, lambda state: _existing(state, job_id))

    def change(
        self, job_id: str, by: str, *, priority: int | None, min_slots: int | None, max_slots: int | None
    ) -> Future[LiveJob]:
        """Change a job's priority or sizes."""
        changes = {"priority": priority, "min_slots": min_slots, "max_slots": max_slots}
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}

        def make(state: ServiceState) -> list[r.Record]:
            job = _existing(state, job_id)
            if job.phase.is_terminal:
                raise _is_over(job)
            if not given:
                raise Refused(422, "nothing was given to change: priority, min_slots or max_slots")
            if job.kind is JobKind.PLAIN and (min_slots is not None or max_slots is not None):
                raise Refused(409, f"job {job_id} is a plain command, whose size cannot change")
            changed = replace(job.spec, **given)  # checks the values
            found = self._executor.submissions.check(changed)
            if problems := [problem for problem in found if {problem.field, *problem.involves} & given.keys()]:
                raise InvalidInput(problems)
            if job_id not in state.jobs:
                raise Refused(409, f"job {job_id} has not been queued yet: change the array, {array_of(job_id)}")
            return [
                r.JobChanged(job_id=one.id, by=by, priority=priority, min_slots=min_slots, max_slots=max_slots)
                for one in _with_elements(state, job)
            ]

        return self._ask(make, lambda state: state.jobs[job_id])

    def drain(self, node: str, drained: bool, by: str) -> Future[None]:
        """Let a node take no more work, or take work again."""
        if node not in self._cluster.node_index:
            raise Refused(404, f"there is no node {node!r}; there is {', '.join(self._cluster.node_index)}")
        record = r.NodeDrained(node=node, drained=drained, by=by)
        return self._ask(lambda state: [record] if (node in state.drained) != drained else [], _nothing)

    def cordon(self, node: str, slot: int, cordoned: bool, by: str) -> Future[None]:
        """Let a slot take no more work, or take work again."""
        if node not in self._cluster.node_index or not 0 <= slot < self._cluster.node(node).slots:
            raise Refused(404, f"there is no slot {slot} on a node {node!r}")
        record = r.SlotCordoned(node=node, slot=slot, cordoned=cordoned, by=by)
        return self._ask(lambda state: [record] if ((node, slot) in state.cordoned) != cordoned else [], _nothing)

    def set_quota(self, of: str, name: str, slots: int | None, by: str, *, borrow: bool = False) -> Future[None]:
        """Limit the slots of all jobs of a queue or an owner together; None lifts the limit.

        With ``borrow``, they may have more slots while nobody else can use them.
        """
        if of not in ("queue", "owner"):
            raise Refused(422, f"a quota is of a queue or of an owner, not of {of[:100]!r}")
        if slots is not None and (problems := check_name(of, name)):
            raise InvalidInput(problems)
        record = r.QuotaSet(of=of, name=name, slots=slots, by=by, borrow=borrow)
        return self._ask(lambda state: [record], _nothing)

    def set_queue(
        self,
        queue: str,
        by: str,
        *,
        max_priority: int | None = None,
        add: Set[str] = frozenset(),
        remove: Set[str] = frozenset(),
        everybody: bool = False,
    ) -> Future[None]:
        """Set the highest priority that users of a queue may choose, add or remove members, or open it to everybody.

        Raises:
            InvalidInput: a name or the priority is not valid.
        """
        problems = [*check_name("queue", queue), *(bad for user in sorted(add) for bad in check_name("member", user))]
        problems += check_optional(check_integer, "max_priority", max_priority, at_least=-1000, at_most=1000)
        if problems:
            raise InvalidInput(problems)

        def make(state: ServiceState) -> list[r.Record]:
            before = state.rules_of(queue)
            if absent := sorted(remove - before.members):
                raise Refused(404, f"{', '.join(absent)[:200]} is not a member of queue {queue}")
            rules = before.changed(max_priority=max_priority, add=add, remove=remove, everybody=everybody)
            return [] if rules == before else [r.QueueRulesSet(queue=queue, by=by, **rules.to_dict())]

        return self._ask(make, _nothing)

    def note(self, level: str, text: str) -> None:
        """Leave a note for operators."""
        self._ask(lambda state: [r.Noted(level=level, text=text)], _nothing)


def _not_runnable(spec: JobSpec, *, plain: bool) -> list[Problem]:
    """What of a specification can run nowhere; ``plain`` if its command cannot be resized."""
    problems = []
    if IDENTIFIER.fullmatch(spec.name):
        problems.append(Problem("name", spec.name, "must not look like a job's identifier: choose another one"))
    if plain and spec.max_slots is not None and not spec.has_fixed_size:
        must = f"must be {spec.min_slots}, as min_slots: a plain command has a fixed size"
        problems.append(Problem("max_slots", spec.max_slots, must, involves=("min_slots",)))
    if not plain and spec.slots_per_replica > 1:
        must = "must be 1, or kind must be plain: a worker of an elastic job has one slot and the whole model on it"
        problems.append(Problem("slots_per_replica", spec.slots_per_replica, must))
    others = [plan.name for plan in spec.execution_plans if plan != DATA_PARALLEL]
    if others:
        must = f"must be left out, or be {DATA_PARALLEL.name} alone: a live script runs in the way it was written"
        problems.append(Problem("execution_plans", ", ".join(others), must))
    return problems


def _existing(state: ServiceState, job_id: str) -> LiveJob:
    job = state.jobs.get(job_id) or unmade_element(state.jobs, job_id)
    if job is None:
        raise Refused(404, f"there is no job {job_id}")
    return job


def _with_elements(state: ServiceState, job: LiveJob) -> list[LiveJob]:
    """A job, and if it is an array those of its elements that are not over."""
    if job.array is None:
        return [job]
    return [job, *(one for one in made_elements(state, job.id) if not one.phase.is_terminal)]


def _skipped(job_id: str, request: str, by: str) -> r.Record:
    """The record of a request about an element that has not been made."""
    array = array_of(job_id) or ""
    if request != "cancel":
        raise Refused(409, f"job {job_id} has not been queued yet: pause or resume the array, {array}")
    return r.ElementSkipped(job_id=array, element=element_number(job_id), by=by)


def _is_over(job: LiveJob) -> Refused:
    return Refused(409, f"job {job.id} is over: it {ENDS[job.phase]}")


def _nothing(state: ServiceState) -> None:
    """The answer of operations that have none."""
