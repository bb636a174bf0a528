"""Geminid's actors on a Ray cluster: where they live, how they are ended, and what Ray says if it cannot have them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import ray

#: Where Geminid's actors live.
NAMESPACE = "geminid"

#: What Ray raises if the actor that was called has ended, or could not be started; not if the call itself failed.
GONE = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError, ray.exceptions.NodeDiedError)

#: What a line begins with that says what an installer, or Python, thinks is wrong.
WRONG = re.compile(r"([\w.-]+: )?(error\b|[\w.]*(Error|Exception)\b:)", re.IGNORECASE)

#: What says no more than that there is more to read.
EMPTY_WORDS = "failed with the following details"


def could_not_begin(problem: BaseException) -> bool:
    """Whether an actor could not even be made: not for want of its node, or because something has ended it."""
    return bool(getattr(problem, "actor_init_failed", False))


def end_actor(actor: Any) -> None:
    """End an actor, or have it not be started."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor)


def end_named(is_meant: Callable[[str], bool]) -> None:
    """End all actors with such names."""
    for name in filter(is_meant, ray.util.list_named_actors()):
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(ray.get_actor(name))


def why_it_died(problem: BaseException) -> str:
    """Why Ray says that an actor has died, in a sentence; nothing if it does not say."""
    if isinstance(problem, ray.exceptions.OutOfMemoryError):
        return "its node was short of memory"
    said = [line for line in str(problem).splitlines()[1:] if line.strip() and not line.startswith("\t")]
    return said[0].partition(". ")[0].strip()[:200] if said else ""


def in_a_line(problem: BaseException) -> str:
    """A problem in a line; that of the process that was asked, not that it was asked through Ray.

    Of what an installer printed, or of a stack of calls, it is the last line that says what is wrong.
    """
    problem = getattr(problem, "cause", None) or problem
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(problem))  # Ray's are coloured
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    wrong = [line for line in lines[1:] if WRONG.match(line) and EMPTY_WORDS not in line]
    return (wrong[-1] if wrong else f"{type(problem).__name__}: {(lines or [''])[0]}")[:300]
