"""Submitting a job again, with some of its fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.job import JobSpec

#: Fields of a job that another run of it does not have: its owner submits it, and what it waited for is over.
DROPPED = ("owner", "after")

#: Fields that stand for the size of a job: one of them replaces the others.
SIZES = {"slots": ("min_slots", "max_slots"), "min_slots": ("slots",), "max_slots": ("slots",)}


def changed_spec(spec: JobSpec, changes: object) -> JobSpec:
    """A job as it was submitted, with the changes of a request: fields of a job file; those of ``env`` are added.

    Raises:
        InvalidInput: a field does not exist, or a value is wrong.
    """
    if not isinstance(changes, Mapping):
        raise InvalidInput([Problem("the request", NOT_SHOWN, "must be an object of fields of a job file")])
    document: dict[str, Any] = {name: value for name, value in spec.to_dict().items() if name not in DROPPED}
    for name in changes:
        for other in SIZES.get(str(name), ()):
            document.pop(other, None)
    env = changes.get("env", {})
    if not isinstance(env, Mapping):
        raise InvalidInput([Problem("env", NOT_SHOWN, "must be a mapping of variables to texts")])
    document |= {**changes, "env": {**document.get("env", {}), **env}}
    return JobSpec.from_dict(document)
