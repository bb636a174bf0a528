"""Why a plan changes the slots that it changes, slot by slot.

Slots have names, so each can be followed: from a job that ended, to one that starts, out of service. A change that
somebody made (a quota, a priority) is a reason for the jobs that it is about, and for those that give slots to them or
get slots from them. Nothing else that happened at the same time is mentioned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf

from geminid.configuration import Placement
from geminid.engine.explain import expected_speed
from geminid.policies.base import JobFacts, JobView
from geminid.serve import records as r
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState, Slot

#: Slots, jobs or requests that are named in one reason.
MAX_NAMED = 3

#: Age in seconds after which an event or a request is not the reason of a change any more.
RECENT_S = 10.0

#: Requests that are remembered.
MAX_REQUESTS = 20

#: Changes of one plan that are explained in full: computing what a job's model expects takes time.
MAX_EXPLAINED = 100


@dataclass(frozen=True, slots=True)
class Change:
    """The slots of a job before and after a plan."""

    before: frozenset[Slot]
    after: frozenset[Slot]

    @property
    def lost(self) -> frozenset[Slot]:
        """The slots that the job gives up."""
        return self.before - self.after

    @property
    def gained(self) -> frozenset[Slot]:
        """The slots that the job gets."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a decision was made with: the jobs before and after it, its own reasons, and whether jobs had reported."""

    before: Mapping[str, JobView]
    after: Mapping[str, JobView]
    reasons: Mapping[str, str]
    has_measurements: bool

    def expectation(self, job_id: str, change: Change) -> str:
        """How much faster the job is expected to be after a change of slots, by the model that the decision used."""
        before, after = self.before[job_id], self.after[job_id]
        if before.gpu_type != after.gpu_type:
            return ""
        nodes = len({node for node, _ in change.after})
        expected = expected_speed(replace(before, model=after.model), len(change.after), nodes)
        return "" if expected is None else f"expected speed × {expected:.2f}"


@dataclass(frozen=True, slots=True)
class _Request:
    """A change that somebody made: which jobs it is about, and whether they may get ``more`` slots (None: or fewer)."""

    at_s: float
    text: str
    about: Callable[[LiveJob], bool]
    more: bool | None


@dataclass(slots=True)
class Causes:
    """What happened that a plan may be the consequence of. ``quotas`` are those that are set now."""

    quotas: dict[tuple[str, str], int] = field(default_factory=dict)
    _freed: dict[Slot, tuple[float, str]] = field(default_factory=dict)
    _requests: list[_Request] = field(default_factory=list)
    _planned: dict[str, frozenset[Slot]] = field(default_factory=dict)

    def freed(self, at_s: float, slots: Iterable[Slot], text: str) -> None:
        """Slots have become free, or came into service."""
        self._freed |= dict.fromkeys(slots, (at_s, text))

    def job_left(self, at_s: float, job_id: str, what: str) -> None:
        """A job has no slots any more, because of ``what`` became of it."""
        self.freed(at_s, self._planned.pop(job_id, ()), f"{job_id} {what}")

    def requested(self, at_s: float, text: str, about: Callable[[LiveJob], bool], more: bool | None = None) -> None:
        """Somebody changed something ``about`` some jobs: they may have ``more`` slots now, or fewer (None: either)."""
        self._requests = [*self._requests, _Request(at_s, text, about, more)][-MAX_REQUESTS:]

    def quota_set(self, at_s: float, record: r.QuotaSet) -> bool:
        """A quota was set or lifted; whether there is one now that was not there before, or the other way round."""
        of, name = record.of, record.name
        before = self.quotas.pop((of, name), inf)
        after = inf if record.slots is None else record.slots
        if record.slots is not None:
            self.quotas[of, name] = record.slots
        became = "was lifted" if record.slots is None else f"became {record.slots}"
        self.requested(
            at_s,
            f"the quota of {of} {name} {became}",
            lambda job: name == (job.spec.queue if of == "queue" else job.spec.owner),
            None if after == before else after > before,
        )
        return (before == inf) != (after == inf)

    def job_changed(self, at_s: float, record: r.JobChanged, before: JobFacts, after: JobFacts) -> None:
        """Somebody changed the priority or the sizes of a job."""
        pairs = ((before.weight, after.weight), (before.max_slots, after.max_slots))
        grows = {new > old for old, new in pairs if new != old}
        either = before.min_slots != after.min_slots or len(grows) != 1
        given = {"priority": record.priority, "min_slots": record.min_slots, "max_slots": record.max_slots}
        values = ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None)
        text, job_id = f"{record.by} set {values} of {record.job_id}", record.job_id
        self.requested(at_s, text, lambda job: job.id == job_id, None if either else grows.pop())

    def planned(self, targets: Mapping[str, Placement | None], *, only: bool = False) -> None:
        """Slots were given to jobs: that they became free explains nothing any more.

        With ``only``, no other jobs have slots.
        """
        if only:
            self._planned = {}
        for job_id, place in targets.items():
            self._planned[job_id] = _slots(place)
            if not only:
                for slot in self._planned[job_id]:
                    self._freed.pop(slot, None)

    def reasons_of(
        self, targets: Mapping[str, Placement | None], state: ServiceState, now_s: float, weighed: Weighed
    ) -> dict[str, str]:
        """The reasons of a plan, by job, for the jobs for which there is one."""
        changes = {
            job_id: Change(_slots(state.jobs[job_id].target), _slots(place)) for job_id, place in targets.items()
        }
        reasons: dict[str, str] = {}
        explained = self.explain(changes, state, now_s, weighed.reasons.keys())
        for number, (job_id, because) in enumerate(explained.items()):
            texts = [weighed.reasons.get(job_id, ""), because]
            if not any(texts) and weighed.before[job_id].allocation:
                texts = ["decided again with what jobs have measured" if weighed.has_measurements else "decided again"]
            if number < MAX_EXPLAINED:
                texts.append(weighed.expectation(job_id, changes[job_id]))
            if reason := "; ".join(text for text in texts if text):
                reasons[job_id] = reason
        return reasons

    def explain(
        self, changes: Mapping[str, Change], state: ServiceState, now_s: float, limited: Set[str] = frozenset()
    ) -> dict[str, str]:
        """The reason of each change, by job; an empty text where there is none.

        The policy has named what limits the jobs that are ``limited``: requests are no reasons for them.
        """
        self._requests = [one for one in self._requests if now_s - one.at_s <= RECENT_S]
        self._freed = {slot: freed for slot, freed in self._freed.items() if now_s - freed[0] <= RECENT_S}
        takers = {slot: job_id for job_id, change in changes.items() for slot in change.gained}
        givers = {slot: job_id for job_id, change in changes.items() for slot in change.lost}
        reasons = {}
        for job_id, change in changes.items():
            given = Counter(takers[slot] for slot in change.lost if slot in takers)
            got = Counter(givers[slot] for slot in change.gained if slot in givers)
            requests = [
                one.text
                for one in (self._requests if job_id not in limited else ())
                if self._concerns(one, job_id, state, grows=len(change.after) >= len(change.before))
                or any(self._concerns(one, other, state, grows=True) for other in given)
                or any(self._concerns(one, other, state, grows=False) for other in got)
            ]
            free = self._was_waited_for(change.gained, state.jobs.get(job_id))
            texts = [
                *_out_of_service(change.lost, state),
                *requests[:MAX_NAMED],
                *free[:MAX_NAMED],
                *_listed([f"{count} to {other}{_for(changes[other], state)}" for other, count in given.most_common()]),
                *_listed([f"{count} from {other}" for other, count in got.most_common()]),
            ]
            reasons[job_id] = "; ".join(texts)
        return reasons

    def _was_waited_for(self, slots: Iterable[Slot], job: LiveJob | None) -> list[str]:
        """Why slots became free while the job that gets them waited; each reason once, without the job's own."""
        since_s = 0.0 if job is None else job.state.submitted_at_s
        own = None if job is None else f"{job.id} "
        found = [self._freed[slot] for slot in sorted(slots) if slot in self._freed]
        texts = dict.fromkeys(text for at_s, text in found if at_s >= since_s)
        return [text for text in texts if own is None or not text.startswith(own)]

    @staticmethod
    def _concerns(one: _Request, job_id: str, state: ServiceState, *, grows: bool) -> bool:
        job = state.jobs.get(job_id)
        was_there = job is not None and job.state.submitted_at_s <= one.at_s
        return job is not None and was_there and one.about(job) and one.more in (None, grows)


def _for(change: Change, state: ServiceState) -> str:
    """What a job needs the slots of another for."""
    if not change.before:
        return ", which starts"
    gone = _out_of_service(change.lost, state)
    return f" ({gone[0]})" if gone else ""


def _out_of_service(slots: Iterable[Slot], state: ServiceState) -> list[str]:
    """Why some of these slots may not be used; each reason once."""
    reasons: dict[str, None] = {}
    for node, slot in sorted(slots):
        if node in state.down:
            reasons[f"node {node} is gone"] = None
        elif node in state.drained:
            reasons[f"node {node} is drained"] = None
        elif node in state.leaving:
            reasons[f"node {node} is about to leave the cluster"] = None
        elif (node, slot) in state.cordoned:
            reasons[f"slot {node}/{slot} is cordoned"] = None
        elif (node, slot) in state.taken and node in state.unfit:
            reasons[f"node {node} is not used for now: {state.unfit[node]}"] = None
        elif (node, slot) in state.taken:
            reasons[f"others use slot {node}/{slot}"] = None
    return list(reasons)[:MAX_NAMED]


def _listed(names: list[str]) -> list[str]:
    return [", ".join(names[:MAX_NAMED]) + (" and others" if len(names) > MAX_NAMED else "")] if names else []


def _slots(place: Placement | None) -> frozenset[Slot]:
    return frozenset(() if place is None else place.slots())
