"""The rules that hold under every policy: protected jobs keep their slots, quotas hold, wide jobs get a turn.

A :class:`Guard` stands between the engine and a policy. It shows the policy only the jobs that may change, on the slots
that the others leave; it cuts down what goes beyond a quota; and it keeps a job that needs many slots from being
overtaken for ever (``reservations.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from geminid.configuration import Configuration
from geminid.engine.explain import expected_speed
from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, JobView, Policy, decision_of, slots_of
from geminid.serve.equals import asked_for
from geminid.serve.minimumrun import Kept, SlowdownOfOthers, keep_running
from geminid.serve.reservations import PATIENCE_S, reserve

#: Least expected speed-up for which a job grows into slots that no other job wants.
WORTH_GROWING = 0.05

#: Least expected speed-up for which a job gives up slots that no other job gets. (A policy may also take slots for
#: another reason, such as costs.)
WORTH_SHRINKING = 0.25


@dataclass(slots=True)
class AroundAPolicy(Policy):
    """Another policy, with something around it: when it decides and what it needs are those of the other one."""

    policy: Policy
    interval_s: float | None = field(init=False)
    adapts_batch: bool = field(init=False)
    needs_models: bool = field(init=False)
    brings_profiles: bool = field(init=False)

    def __post_init__(self) -> None:
        self.interval_s, self.adapts_batch = self.policy.interval_s, self.policy.adapts_batch
        self.needs_models, self.brings_profiles = self.policy.needs_models, self.policy.brings_profiles

    @property
    def needs_every_job(self) -> bool:
        """As the other policy says."""
        return self.policy.needs_every_job

    @property
    def regards_owners(self) -> bool:
        """What the other policy says."""
        return self.policy.regards_owners

    @property
    def regards_priority(self) -> bool:
        """As the other policy says."""
        return self.policy.regards_priority

    @property
    def solution(self) -> Any:
        """The other policy's last decision with its prices, if it has any."""
        return getattr(self.policy, "solution", None)

    @property
    def wishes(self) -> Any:
        """The nodes that the other policy suggests for an autoscaled cluster."""
        return getattr(self.policy, "wishes", ())


@dataclass(slots=True)
class Guard(AroundAPolicy):
    """Another policy, with limits.

    ``protected`` says of a running job until when its slots are its own (a plain command would lose its work; a
    minimum run time; a resize that is hardly over). ``groups`` are the quotas that a job falls under, with their slots;
    those that ``may_borrow`` are larger for as long as others cannot use what is beyond.
    ``rested_s`` is for how long its owner had a job paused, which is no waiting; ``patience_s`` for how long one waits
    before narrower ones are held back for it. Until ``kept_until_s`` a running job may be shrunk, but not stopped, for
    others that count no more (``minimumrun.py``).
    """

    name = "guard"
    paper = "none"
    objective = "another policy's, within quotas and with some jobs left alone"

    protected: Callable[[JobView], float] = lambda job: 0.0
    groups: Callable[[str], Mapping[str, int]] = lambda job_id: {}
    may_borrow: Callable[[str], bool] = lambda name: False
    rested_s: Callable[[str], float] = lambda job_id: 0.0
    kept_until_s: Callable[[JobView], float] = lambda job: 0.0
    patience_s: float = PATIENCE_S
    _others: SlowdownOfOthers = field(default_factory=SlowdownOfOthers)
    _last: Any = None
    _settled: Any = None
    _weighed: frozenset[str] = frozenset()

    def has_weighed(self, job_id: str) -> bool:
        """Whether the prices of ``solution`` have anything to do with a job."""
        return job_id in self._weighed

    @property
    def solution(self) -> Any:
        """The last decision about most of the jobs that may ever change: prices among a few of them say little."""
        return getattr(self.policy, "solution", None) if self._settled is None else self._settled

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy about the jobs that may change, and keep its answer within the quotas."""
        self._others.learn(view.ended, view.now_s)
        until = {job.id: self.protected(job) for job in view.jobs if job.allocation}
        usable = list(view.usable_slots)
        kept: dict[str, JobView] = {}
        for job in sorted(view.jobs, key=lambda job: -until.get(job.id, 0.0)):  # first those that are protected longest
            if until.get(job.id, 0.0) > view.now_s and job.stands(usable):
                kept[job.id] = job
                for node, slots in job.allocation:
                    usable[node] -= slots
        limits = self._limits(view)
        others, short = _within_reach([job for job in view.jobs if job.id not in kept], view.jobs, limits)
        waiting = [job for job in others if not job.allocation]
        reserved = reserve(view, waiting, usable, self._waited_s(view), self.patience_s)
        may_start = {job.id: job for job in reserved.waiting}
        seen = tuple(may_start.get(job.id, job) for job in others if job.allocation or job.id in may_start)
        free = [left - was + now for left, was, now in zip(view.free_slots, usable, reserved.usable, strict=True)]
        behind = {job.id: view.behind[job.id] for job in seen if job.id in view.behind}
        shown = replace(
            view,
            jobs=seen,
            usable_slots=tuple(reserved.usable),
            free_slots=tuple(free),
            behind=behind,
            slots_with_protected=view.usable_slots,
            charged=(*view.charged, *kept.values()),
        )
        decision = decision_of(self.policy, shown)
        found = getattr(self.policy, "solution", None)
        left_out = sum(until[job_id] < inf for job_id in kept)
        if found is not self._last and (not left_out or left_out < len(seen)):
            self._settled, self._weighed = found, frozenset(job.id for job in seen)
        self._last = found
        by_name = self.policy.needs_every_job
        assignments = _first_come(reserved.waiting, decision.assignments, by_name=by_name) | reserved.granted
        assignments |= {job.id: job.allocation for job in _not_worth_it(shown, assignments, limits)}
        running = Kept(assignments, {}, None)
        if not decision.others_stay:
            whole = replace(shown, usable_slots=tuple(usable))
            running = keep_running(whole, assignments, self.kept_until_s, self._is_owed(view.now_s))
            assignments = running.assignments | {job_id: job.allocation for job_id, job in kept.items()}
        wake_at_s = min(
            (
                at_s
                for at_s in (decision.wake_at_s, reserved.until_s, running.until_s, *(until[job_id] for job_id in kept))
                if at_s is not None
            ),
            default=None,
        )
        if wake_at_s == float("inf"):
            wake_at_s = decision.wake_at_s
        cut, reasons = _within_quotas(
            view, limits, {*kept, *reserved.granted}, assignments, others_stay=decision.others_stay
        )
        return replace(
            decision,
            assignments=cut,
            reasons={**decision.reasons, **reserved.reasons, **running.reasons, **short, **reasons},
            wake_at_s=wake_at_s,
        )

    def _is_owed(self, now_s: float) -> Callable[[JobView], bool]:
        """Which of the waiting jobs go before newcomers."""
        return lambda job: self._others.is_unfair_to(job, now_s, self.rested_s(job.id))

    def _waited_s(self, view: ClusterView) -> Callable[[JobView], float]:
        """For how long each job has waited in all, without the time for which it was paused."""
        now_s = view.now_s
        return lambda job: max(job.age_s(now_s) - job.executed_s(now_s) - self.rested_s(job.id), 0.0)

    def _limits(self, view: ClusterView) -> dict[str, Mapping[str, int]]:
        """The quotas of every job that is under any; those that may borrow with what others cannot use."""
        groups = {job.id: groups for job in view.jobs if (groups := self.groups(job.id))}
        quotas = {name: slots for limits in groups.values() for name, slots in limits.items()}
        borrowing = {name: slots for name, slots in quotas.items() if self.may_borrow(name)}
        whole = sum(view.usable_slots)
        for borrower, own in borrowing.items():
            wanted: Counter[str] = Counter()
            for job in view.jobs:
                if borrower not in groups.get(job.id, ()):
                    tightest = min(groups.get(job.id, ()), key=quotas.__getitem__, default="")
                    wanted[tightest] += job.facts.max_slots * (1 + len(view.behind.get(job.id, ())))
            others = sum(min(slots, quotas.get(name, whole)) for name, slots in wanted.items())
            borrowing[borrower] = max(own, whole - others)
        return {
            job_id: {name: borrowing.get(name, slots) for name, slots in limits.items()}
            for job_id, limits in groups.items()
        }


def _first_come(
    waiting: Sequence[JobView], assignments: Mapping[str, Configuration | Allocation], *, by_name: bool
) -> dict[str, Configuration | Allocation]:
    """The assignments with equal jobs starting in the order of their arrival, whichever of them the policy named."""
    result = dict(assignments)
    starting = [job for job in waiting if job.id in assignments]
    if not starting:
        return result
    kinds = {_kind(job, by_name=by_name) for job in starting}
    similar = {_looks(job.facts) for job in starting}
    equals: dict[Hashable, list[JobView]] = {}
    for job in waiting:
        if _looks(job.facts) in similar and (kind := _kind(job, by_name=by_name)) in kinds:
            equals.setdefault(kind, []).append(job)
    for jobs in equals.values():
        given = [result.pop(job.id) for job in jobs if job.id in result]
        first = sorted(jobs, key=lambda job: job.facts.submitted_s)
        result |= {job.id: what for job, what in zip(first, given, strict=False)}
    return result


def _looks(facts: JobFacts) -> Hashable:
    """What tells most jobs of different kinds apart, and is found quickly: there may be very many jobs."""
    return facts.owner, facts.queue, facts.weight, facts.deadline_s, facts.work, facts.requested_slots


def _kind(job: JobView, *, by_name: bool) -> Hashable:
    """What makes a job that waits like others to every policy: all that is asked of it, and that nothing is done."""
    return asked_for(job.facts, by_name=by_name), job.progress, job.executed_before_s, job.partner


def _not_worth_it(
    view: ClusterView,
    assignments: Mapping[str, Configuration | Allocation],
    limits: Mapping[str, Mapping[str, int]],
) -> list[JobView]:
    """The jobs that would be resized although their models expect almost no gain, and no other job gains either.

    A model with few measurements changes often, and a job that is resized each time makes no progress.
    """
    if min(view.free_slots, default=0) < 0 or any(job.id in assignments for job in view.jobs if not job.allocation):
        return []
    changed = []
    for job in view.jobs:
        wanted = assignments.get(job.id)
        if job.allocation and isinstance(wanted, Configuration) and wanted.slots != job.slots:
            changed.append((job, wanted))
        elif (
            job.allocation and wanted is not None and not isinstance(wanted, Configuration) and wanted != job.allocation
        ):
            return []
    grow = [wanted.slots > job.slots for job, wanted in changed]
    if not changed or (any(grow) and not all(grow)):
        return []
    least, most = (0.0, 1.0 + WORTH_GROWING) if grow[0] else (1.0 - WORTH_GROWING, 1.0 + WORTH_SHRINKING)
    return [
        job
        for job, wanted in changed
        if wanted.gpu_type == job.gpu_type
        and job.id not in limits
        and job.facts.min_slots <= job.slots <= job.facts.max_slots
        and job.stands(view.usable_slots)
        and least < (expected_speed(job, wanted.slots, wanted.nodes) or inf) < most
    ]


def _within_reach(
    jobs: Sequence[JobView], everybody: Sequence[JobView], groups: Mapping[str, Mapping[str, int]]
) -> tuple[tuple[JobView, ...], dict[str, str]]:
    """The jobs that their quotas let have slots, asking for no more than is left; and why others are left out.

    A policy that does not know quotas would give slots to jobs that may not have them, and they would stay free.
    """
    if not groups:
        return tuple(jobs), {}
    left = {name: quota for limits in groups.values() for name, quota in limits.items()}
    for job in everybody:
        for name in groups.get(job.id, ()):
            left[name] -= job.slots
    reasons: dict[str, str] = {}
    waiting = [job for job in jobs if not job.allocation and job.id in groups]
    for job in sorted(waiting, key=lambda job: (-job.facts.weight, job.facts.submitted_s)):
        tightest = min(groups[job.id], key=left.__getitem__)
        if left[tightest] < job.facts.min_slots:
            reasons[job.id] = _limit(tightest, groups[job.id][tightest])
            continue
        for name in groups[job.id]:
            left[name] -= job.facts.min_slots
    seen = []
    for job in jobs:
        if job.id in groups and job.id not in reasons:
            room = min(left[name] for name in groups[job.id])
            most = max(job.facts.min_slots, job.slots + min(room, 0)) + max(room, 0)
            if room < 0 and most < job.slots:  # it gives back what is beyond
                for name in groups[job.id]:
                    left[name] += job.slots - most
            if most < job.facts.max_slots:
                job = replace(job, facts=replace(job.facts, max_slots=most))
        if job.id not in reasons:
            seen.append(job)
    return tuple(seen), reasons


def _within_quotas(
    view: ClusterView,
    limits: Mapping[str, Mapping[str, int]],
    kept: Set[str],
    assignments: Mapping[str, Configuration | Allocation],
    *,
    others_stay: bool,
) -> tuple[dict[str, Configuration | Allocation], dict[str, str]]:
    """The assignments within the quotas, and why some are less: running jobs come first, then the order of arrival."""
    left: dict[str, int] = {}
    result: dict[str, Configuration | Allocation] = {}
    reasons: dict[str, str] = {}
    for job in sorted(view.jobs, key=lambda job: (job.id not in kept, not job.allocation)):
        wanted = assignments.get(job.id)
        if wanted is None and not (others_stay and job.allocation):
            continue
        groups = limits.get(job.id, {})
        slots = job.slots if wanted is None else wanted.slots if isinstance(wanted, Configuration) else slots_of(wanted)
        room = min((left.setdefault(name, quota) for name, quota in groups.items()), default=slots)
        if job.id in kept:
            room = slots
        granted = min(slots, room)
        if granted < slots and (granted < job.facts.min_slots or job.facts.min_slots == job.facts.max_slots):
            granted = 0
        for name in groups:
            left[name] -= granted
        if granted == slots and wanted is not None:
            result[job.id] = wanted
        elif 0 < granted < slots:
            gpu_type = job.gpu_type or next(iter(view.cluster.type_index))
            if isinstance(wanted, Configuration):
                gpu_type = wanted.gpu_type
            result[job.id] = Configuration(gpu_type=gpu_type, nodes=1, slots=granted)
        if granted < slots:
            name = min(groups, key=lambda name: left[name])
            reasons[job.id] = _limit(name, groups[name])
            if granted == 0 and wanted is None:
                result[job.id] = ()
    return result, reasons


@dataclass(slots=True)
class Timed(AroundAPolicy):
    """Another policy with a time limit. One that is late is not asked again until it has answered."""

    name = "timed"
    paper = "none"
    objective = "another policy's, in time"

    limit_s: float = 30.0
    _late: threading.Thread | None = None

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy in a thread of its own, and give up on it after a while."""
        if self._late is not None and self._late.is_alive():
            raise TimeoutError(f"{self.policy.name} is still busy with an earlier decision")
        answers: list[Decision | BaseException] = []

        def ask() -> None:
            try:
                answers.append(decision_of(self.policy, view))
            except BaseException as problem:
                answers.append(problem)

        self._late = threading.Thread(target=ask, name=f"policy {self.policy.name}", daemon=True)
        self._late.start()
        self._late.join(self.limit_s)
        if not answers:
            raise TimeoutError(f"{self.policy.name} did not decide within {self.limit_s:g} s")
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]


def _limit(name: str, slots: int) -> str:
    return f"the quota of {name} is {slots} {'slot' if slots == 1 else 'slots'}"
