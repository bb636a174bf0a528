"""Why a plan changes the slots that it changes: what is told of each job is true of the very slots it gives or gets.

Slots have names, so it can be said of each where it came from and where it goes: from a job that ended, to one that
starts, out of service. What somebody asked for (a quota, a priority) is told to the jobs that it is about, and to those
who give slots to them or get some of theirs. Nothing else that happened at the same time is mentioned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState, Slot

#: So many slots, jobs or requests are named where there may be many.
MOST_NAMED = 3

#: What happened, or was asked for, so long ago is not told any more as the reason of a change.
RECENT_S = 10.0

#: So many requests are remembered.
MOST_ASKED = 20


@dataclass(frozen=True, slots=True)
class Change:
    """The slots that a plan takes a job from, and those that it leads it to."""

    before: frozenset[Slot]
    after: frozenset[Slot]

    @property
    def lost(self) -> frozenset[Slot]:
        """Those that it gives up."""
        return self.before - self.after

    @property
    def gained(self) -> frozenset[Slot]:
        """Those that it gets."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class _Asked:
    """Something that somebody asked for: whom it is about, and whether they can have more slots for it, or fewer."""

    at_s: float
    text: str
    about: Callable[[LiveJob], bool]
    more: bool | None


@dataclass(slots=True)
class Causes:
    """What happened that plans may be a consequence of."""

    _freed: dict[Slot, tuple[float, str]] = field(default_factory=dict)
    _asked: list[_Asked] = field(default_factory=list)

    def freed(self, at_s: float, slots: Iterable[Slot], text: str) -> None:
        """Slots have become free, or came into service."""
        self._freed |= dict.fromkeys(slots, (at_s, text))

    def asked(self, at_s: float, text: str, about: Callable[[LiveJob], bool], more: bool | None = None) -> None:
        """Somebody wants it otherwise for some jobs, who may have ``more`` for it, or less (None: either)."""
        self._asked = [*self._asked, _Asked(at_s, text, about, more)][-MOST_ASKED:]

    def planned(self, slots: Iterable[Slot]) -> None:
        """Slots have been given to somebody: that they became free explains nothing any more."""
        for slot in slots:
            self._freed.pop(slot, None)

    def explain(
        self, changes: Mapping[str, Change], state: ServiceState, now_s: float, told_already: Set[str] = frozenset()
    ) -> dict[str, str]:
        """What is to be told to each job whose slots change; an empty text where there is nothing to tell.

        Jobs that are ``told_already`` what limits them are not told who asked for it.
        """
        self._asked = [one for one in self._asked if now_s - one.at_s <= RECENT_S]
        self._freed = {slot: freed for slot, freed in self._freed.items() if now_s - freed[0] <= RECENT_S}
        takers = {slot: job_id for job_id, change in changes.items() for slot in change.gained}
        givers = {slot: job_id for job_id, change in changes.items() for slot in change.lost}
        told = {}
        for job_id, change in changes.items():
            given = Counter(takers[slot] for slot in change.lost if slot in takers)
            got = Counter(givers[slot] for slot in change.gained if slot in givers)
            asked = [
                one.text
                for one in (self._asked if job_id not in told_already else ())
                if self._concerns(one, job_id, state, grows=len(change.after) >= len(change.before))
                or any(self._concerns(one, other, state, grows=True) for other in given)
                or any(self._concerns(one, other, state, grows=False) for other in got)
            ]
            free = self._was_waited_for(change.gained, state.jobs.get(job_id))
            texts = [
                *_out_of_service(change.lost, state),
                *asked[:MOST_NAMED],
                *free[:MOST_NAMED],
                *_listed([f"{count} to {other}{_for(changes[other], state)}" for other, count in given.most_common()]),
                *_listed([f"{count} from {other}" for other, count in got.most_common()]),
            ]
            told[job_id] = "; ".join(texts)
        return told

    def _was_waited_for(self, slots: Iterable[Slot], job: LiveJob | None) -> list[str]:
        """Why slots became free while a job was there that has them now; each reason once, and none of its own."""
        since_s = 0.0 if job is None else job.state.submitted_at_s
        own = None if job is None else f"{job.id} "
        found = [self._freed[slot] for slot in sorted(slots) if slot in self._freed]
        texts = dict.fromkeys(text for at_s, text in found if at_s >= since_s)
        return [text for text in texts if own is None or not text.startswith(own)]

    @staticmethod
    def _concerns(one: _Asked, job_id: str, state: ServiceState, *, grows: bool) -> bool:
        job = state.jobs.get(job_id)
        was_there = job is not None and job.state.submitted_at_s <= one.at_s
        return job is not None and was_there and one.about(job) and one.more in (None, grows)


def _for(change: Change, state: ServiceState) -> str:
    """What a job needs another's slots for."""
    if not change.before:
        return ", which starts"
    gone = _out_of_service(change.lost, state)
    return f" ({gone[0]})" if gone else ""


def _out_of_service(slots: Iterable[Slot], state: ServiceState) -> list[str]:
    """Of some slots, why they are nobody's to have; each reason once."""
    told: dict[str, None] = {}
    for node, slot in sorted(slots):
        if node in state.down:
            told[f"node {node} is gone"] = None
        elif node in state.drained:
            told[f"node {node} is drained"] = None
        elif node in state.leaving:
            told[f"node {node} is about to leave the cluster"] = None
        elif (node, slot) in state.cordoned:
            told[f"slot {node}/{slot} is cordoned"] = None
        elif (node, slot) in state.taken and node in state.unfit:
            told[f"node {node} is not used for now: {state.unfit[node]}"] = None
        elif (node, slot) in state.taken:
            told[f"others use slot {node}/{slot}"] = None
    return list(told)[:MOST_NAMED]


def _listed(names: list[str]) -> list[str]:
    return [", ".join(names[:MOST_NAMED]) + (" and others" if len(names) > MOST_NAMED else "")] if names else []
