"""Whether a job can meet its deadline, the earliest time at which it can be done, and what would help.

Two things are known: the forecast, which says when it will be done beside all others, and the job's own model, which
says how long it would take if it had the slots that it may have from now on. A suggestion is made only if one of the
two says that it helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf
from typing import Any

from geminid.cluster import Cluster
from geminid.engine.hints import NEW, Hint, Levers, Rivals, go_before
from geminid.goodput.batchplan import best_plan
from geminid.serve.livejob import LiveJob, may_be_resized
from geminid.serve.whatif import application_of, known_of, length_is_known
from geminid.units import humanize_duration

#: A later deadline is suggested with this much to spare.
SPARE = 1.1

#: More slots help if a job takes at most this part of the time with them.
CLEARLY_FASTER = 0.95

#: Jobs of unknown length that are named.
MAX_NAMED = 3


class Verdict(StrEnum):
    """Whether a deadline can be met."""

    MET = "can be met"
    AT_RISK = "may be missed"
    TOO_EARLY = "cannot be met"
    MISSED = "was missed"
    UNKNOWN = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A deadline, ``due_s`` from now, and what is known of it: ``earliest_s`` is when the job can be done.

    ``hints`` say what would help, ``why`` what the verdict rests on.
    """

    due_s: float
    verdict: Verdict
    why: str
    earliest_s: float | None = None
    hints: tuple[Hint, ...] = ()

    def to_dict(self, now_s: float) -> dict[str, Any]:
        """As plain data, with times since the epoch."""
        plain = asdict(self)
        earliest_s = plain.pop("earliest_s")
        plain |= {
            "verdict": self.verdict.value,
            "due_at_s": now_s + plain.pop("due_s"),
            "earliest_finish_at_s": None if earliest_s is None else now_s + earliest_s,
            "help": [hint.text for hint in self.hints],
        }
        del plain["hints"]
        return plain


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no forecast of a job, and what would change that."""

    why: str
    hints: tuple[Hint, ...] = ()


def alone_s(job: LiveJob, like: LiveJob | None, cluster: Cluster) -> dict[int, float]:
    """How long a job would take at best with each number of slots, from now on; empty if that is not known.

    All sizes count that the cluster and the job's batch allow, whatever its owner allows.
    """
    application = None
    if may_be_resized(job, like) and length_is_known(job, like):
        application = application_of(known_of(job, like), job, cluster, -1.0, like)
    if application is None:
        return {}
    times: dict[int, float] = {}
    for gpu_type, truth in application.truth.items():
        fitted, limits = truth.model, application.limits[gpu_type]
        if fitted is None:
            continue
        per_node = cluster.largest_node_slots.get(gpu_type, 0)
        most = min(cluster.slots_per_type.get(gpu_type, 0), limits.largest // limits.smallest_per_slot)
        gradient = application.gradient.at(0, limits.initial)
        left = float(application.progress_steps[0]) * limits.initial
        for slots in range(job.spec.min_slots, most + 1):
            plan = best_plan(fitted, gradient, limits, nodes=-(-slots // per_node), slots=slots)
            rate = plan.throughput if application.counts_samples else plan.goodput
            if rate > 0:
                times[slots] = min(times.get(slots, inf), left / rate * application.speed_divisor)
    return times


def judged(
    due_s: float,
    *,
    forecast: Sequence[float] | None,
    starts: Sequence[float] | None,
    known: bool,
    alone: Mapping[int, float],
    most_slots: int | None,
    job_id: str,
    levers: Levers,
    rivals: Rivals,
    unsure_of: Sequence[str] = (),
    missing: Missing | None = None,
) -> Deadline:
    """Judge a deadline that is ``due_s`` from now.

    ``forecast`` and ``starts`` are from when to when the job will finish and start, if that was computed; ``known``
    if how long it takes is more than a guess. ``alone`` is what :func:`alone_s` says of it, and ``rivals`` what it
    competes with. ``unsure_of`` are other jobs of unknown length that it depends on: what the
    forecast says is no bound then. ``missing`` is why there is no forecast, unless it is still to be computed.
    """
    if due_s <= 0:
        return Deadline(due_s=due_s, verdict=Verdict.MISSED, why=f"{_ago(-due_s)} ago")
    has = f"and has {_ago(due_s)}"
    allowed = {slots: time_s for slots, time_s in alone.items() if most_slots is None or slots <= most_slots}
    best_s = min(allowed.values(), default=None)
    if best_s is not None and best_s > due_s:
        why = f"even alone, on as many slots as it may have, it would take {_ago(best_s)} more, {has}"
        hints = [*_more_slots(job_id, due_s, alone, levers, rivals), _later(best_s)]
        return Deadline(due_s=due_s, verdict=Verdict.TOO_EARLY, why=why, earliest_s=best_s, hints=tuple(hints))
    if forecast is None:
        unknown = missing or Missing("its forecast is being computed")
        earliest_s = best_s if missing is None else None
        return Deadline(
            due_s=due_s, verdict=Verdict.UNKNOWN, why=unknown.why, earliest_s=earliest_s, hints=tuple(unknown.hints)
        )
    sooner = go_before(job_id, levers, rivals)
    if not known and best_s is None:
        if starts is not None and starts[0] > due_s and unsure_of:
            why = f"it waits for slots, and how long {_listed(unsure_of)} will hold them is not known"
            return Deadline(due_s=due_s, verdict=Verdict.AT_RISK, why=why, hints=tuple(sooner))
        if starts is not None and starts[0] > due_s:
            why = f"it will not start before then: at the earliest in {_ago(starts[0])}"
            hints = [*sooner, _later(forecast[0])]
            return Deadline(due_s=due_s, verdict=Verdict.TOO_EARLY, why=why, earliest_s=forecast[0], hints=tuple(hints))
        why = "how long it takes is not known: it states no work (epochs, dataset_samples), and has not run before"
        return Deadline(due_s=due_s, verdict=Verdict.UNKNOWN, why=why)
    early_s, late_s = forecast[0], forecast[1]
    if late_s <= due_s:
        why = f"it will be done in at most {_ago(late_s)}, {has}"
        return Deadline(due_s=due_s, verdict=Verdict.MET, why=why, earliest_s=early_s)
    hints = []
    if best_s is not None:
        hints += _more_slots(job_id, due_s, alone, levers, rivals, best_s=best_s, slower=max(late_s / best_s, 1.0))
    # A job of a fixed size takes as long as this whatever the others do.
    takes_s = best_s if best_s is not None else early_s - (0.0 if starts is None else starts[0])
    if takes_s > due_s:
        why = f"it takes {_ago(takes_s)} {'more' if starts is None else 'at least'}, {has}"
        hints = [_later(late_s)]
        return Deadline(due_s=due_s, verdict=Verdict.TOO_EARLY, why=why, earliest_s=early_s, hints=tuple(hints))
    hints += sooner
    if early_s <= due_s or unsure_of:
        why = f"it will be done in {_ago(early_s)} to {_ago(late_s)}, {has}"
        if early_s > due_s:
            why = f"by what is assumed of {_listed(unsure_of)}, of unknown length, {why}"
        earliest_s = early_s if early_s <= due_s else best_s
        return Deadline(due_s=due_s, verdict=Verdict.AT_RISK, why=why, earliest_s=earliest_s, hints=tuple(hints))
    beside = "beside the others it" if rivals.others else "it"
    why = f"{beside} will be done in {_ago(early_s)} at the earliest, {has}"
    hints.append(_later(late_s))
    return Deadline(due_s=due_s, verdict=Verdict.TOO_EARLY, why=why, earliest_s=early_s, hints=tuple(hints))


def _more_slots(
    job_id: str,
    due_s: float,
    alone: Mapping[int, float],
    levers: Levers,
    rivals: Rivals,
    *,
    best_s: float = inf,
    slower: float = 1.0,
) -> list[Hint]:
    """The fewest slots beyond those that its owner allows with which a job would be in time, if it could have them.

    It may be ``slower`` than alone by this factor. If no number is enough then, the one with which it is
    fastest is suggested, if that is clearly faster than ``best_s``, what it takes at best with the slots it may have.
    """
    asked = levers.asked_max_slots
    if not levers.elastic or asked is None:
        return []
    most = inf if rivals.most_slots is None else rivals.most_slots
    further = {slots: time_s for slots, time_s in sorted(alone.items()) if asked < slots <= most}
    enough = [slots for slots, time_s in further.items() if time_s * slower <= due_s]
    fastest = min(further, key=further.__getitem__, default=0)
    if not enough and best_s < inf and fastest and further[fastest] < CLEARLY_FASTER * best_s:
        enough = [fastest]
    if not enough:
        return []
    command = f"max_slots = {enough[0]}" if job_id == NEW else f"geminid set {job_id} --max-slots {enough[0]}"
    return [Hint(f"let it have {enough[0]} slots ({command})", ("max_slots", job_id, enough[0]))]


def _later(finish_s: float) -> Hint:
    return Hint(
        f"submit it with a later deadline: {humanize_duration(max(round(SPARE * finish_s), 1))} or more from now"
    )


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _ago(seconds: float) -> str:
    return humanize_duration(max(round(seconds), 1))
