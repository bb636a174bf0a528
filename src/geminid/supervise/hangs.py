"""Which of a job's workers hang: decisions only, from what they last reported and when.

A worker that sends nothing any more hangs, whatever it does. One that sends heartbeats may still keep its peers
waiting; whether that is a hang depends on what it is doing. A pass takes about as long as the passes before it, so a
worker that takes far longer, while a peer waits for it, hangs. The leader may do more than the others in the body of
its loop, and every worker between epochs (evaluate, save, print): there is no limit while there are signs of life, such
as calls of the model, and a minute without any. If that proves too short for a script, the limit grows. After training
a script may take hours, but not forever: it occupies slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from geminid.supervise.group import Standing
from geminid.supervise.spec import Patience

#: How many times its usual duration a part of a pass may take.
MAX_USUAL_DURATIONS = 20.0

#: How many times longer than for one slow worker to wait when all wait for each other.
DEADLOCK_FACTOR = 3.0

#: What a worker is doing, in words.
_DOING = {
    "opening": "waiting for its first batch",
    "loading": "waiting for its data",
    "training": "in the body of its loop",
    "forward": "in the model's forward",
    "computing": "in backward",
    "compiling": "compiling",
    "stepping": "in optimizer.step()",
    "between": "between epochs",
}

#: The phases in which the script decides how long they take.
IN_SCRIPT = ("opening", "loading", "training", "forward", "computing", "compiling", "stepping", "between")

#: How many times longer a script may show no sign of life after a worker was ended because it had shown none.
PATIENCE_GROWTH = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A worker as its supervisor sees it.

    ``silent_s`` is how long ago its last message was received (since its start, if there was none), ``phase_s`` how
    long it has been in its phase, ``usual_s`` how long its passes take, ``joined`` whether it is in the newest
    generation, ``leads`` whether it is (or was, until it has joined) a leader.
    """

    worker: str
    standing: Standing | None
    silent_s: float
    phase: str
    phase_s: float
    usual_s: float | None = None
    joined: bool = True
    leads: bool = False
    finished: bool = False
    connected: bool = True

    @property
    def in_a_group(self) -> bool:
        """Whether it has peers that may wait for it."""
        return self.standing in (Standing.MEMBER, Standing.LEAVING) and not self.finished


@dataclass(frozen=True, slots=True)
class Hung:
    """A worker that hangs, and how that shows; ``free`` if it was where the script may take as long as it likes."""

    worker: str
    reason: str
    free: bool = False


def hung(workers: Sequence[Seen], patience: Patience) -> list[Hung]:
    """The workers that have to be ended."""
    found = []
    for seen in workers:
        if seen.silent_s > (limit := _silence(seen, patience)):
            what = "did not get to geminid.init() in" if seen.phase == "starting" else "was silent for"
            found.append(Hung(seen.worker, f"hung: it {what} {limit:g} s"))
        elif seen.phase in ("left", "finished") and seen.phase_s > patience.conclude:
            found.append(Hung(seen.worker, f"hung: it did not end within {patience.conclude:g} s after training"))
        elif seen.in_a_group and seen.phase in IN_SCRIPT:
            limit = allowed(seen, patience)
            waited_s = max((_waits(other) for other in workers if other is not seen), default=0.0)
            if min(seen.phase_s, waited_s) > limit:
                what = f"hung: its peers have waited for it for {limit:.0f} s ({_DOING[seen.phase]})"
                found.append(Hung(seen.worker, what, free=_is_free(seen)))
    return found


def deadlocked(workers: Sequence[Seen], patience: Patience) -> bool:
    """Whether all members wait for each other, far longer than synchronising or forming a group takes."""
    missing = [seen for seen in workers if seen.standing is Standing.MEMBER and not seen.joined]
    if missing:
        return all(seen.phase == "forming" and seen.phase_s > patience.stall for seen in missing)
    members = [seen for seen in workers if seen.in_a_group]
    known = [seen.usual_s for seen in members if seen.usual_s is not None]
    if len(members) < 2:
        return False
    usual = len(known) == len(members)  # in the first step, connections may still be opened
    limit = DEADLOCK_FACTOR * (_longest(max(known), patience) if usual else patience.form)
    return all(_waits(seen) > limit for seen in members)


def late(workers: Sequence[Seen], forming_s: float, free_s: float, patience: Patience) -> list[Hung]:
    """Members that have not joined although others have waited for ``forming_s`` for them to form a group.

    A worker that is in the script has not reached a boundary yet, and one that synchronises may be waiting for such a
    worker. No worker has been in the script for ``free_s``.
    """
    missing = [seen for seen in workers if seen.standing is Standing.MEMBER and not seen.joined]
    if forming_s <= patience.form or not any(seen.phase == "forming" for seen in missing):
        return []
    coming = ("forming", "synchronising") if free_s <= patience.form else ("forming",)
    return [
        Hung(seen.worker, f"hung: it did not join its peers within {patience.form:g} s")
        for seen in missing
        if seen.phase not in coming and not excused(seen, patience)
    ]


def unaware(workers: Sequence[Seen], members: Collection[str], patience: Patience) -> list[Hung]:
    """Of these members, which have not noticed that their group is broken, those that are not in the script."""
    return [
        Hung(seen.worker, f"hung: it did not notice within {patience.hang:g} s that its group was broken")
        for seen in workers
        if seen.worker in members and not excused(seen, patience)
    ]


def waiting(workers: Sequence[Seen], lost_s: float) -> list[str]:
    """Workers that wait for peers, one of which gave up ``lost_s`` ago, and that live: they sent something since.

    A worker that has sent nothing in the second half of that time may be the one that the others have lost.
    """
    return [seen.worker for seen in workers if seen.phase == "forming" and seen.silent_s < lost_s / 2.0]


def busy(workers: Sequence[Seen], patience: Patience) -> bool:
    """Whether a worker of a group is in the script."""
    return any(seen.in_a_group and excused(seen, patience) for seen in workers)


def excused(seen: Seen, patience: Patience) -> bool:
    """Whether the script may still be working in this worker; after training it may for hours."""
    if seen.phase in ("left", "finished"):
        return True
    return seen.phase in IN_SCRIPT and seen.phase_s <= allowed(seen, patience)


def allowed(seen: Seen, patience: Patience) -> float:
    """How long a worker may be in the phase that it is in while its peers wait for it."""
    if seen.usual_s is None or seen.phase in ("opening", "compiling"):
        return patience.stall
    longest = _longest(seen.usual_s, patience)
    return max(patience.free, longest) if _is_free(seen) else longest


def more_patient(patience: Patience) -> Patience:
    """How long to wait next time, after a worker was ended that may only have been busy."""
    return replace(patience, free=max(patience.free, min(PATIENCE_GROWTH * patience.free, patience.stall)))


def _is_free(seen: Seen) -> bool:
    """Whether the script may take as long as it likes there."""
    return seen.phase == "between" or (seen.leads and seen.phase == "training")


def _longest(usual_s: float, patience: Patience) -> float:
    """How long a pass may take that usually takes ``usual_s``."""
    return max(patience.step, min(MAX_USUAL_DURATIONS * usual_s, patience.stall), 2.0 * usual_s)


def _silence(seen: Seen, patience: Patience) -> float:
    """How long a worker may send nothing."""
    if seen.finished and not seen.connected:  # it closed its connection at its end, and has to end now
        return patience.grace
    return patience.stall if seen.standing is Standing.STARTING else patience.hang


def _waits(seen: Seen) -> float:
    """How long a worker has waited for its peers."""
    return seen.phase_s if seen.in_a_group and seen.phase == "synchronising" else 0.0
