"""Why jobs did not get what they should have, counted: what policies and the engine say with their decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: What a policy does in place of what it should, such as ``infeasible_slo``, begins with its name.
_NAMED = re.compile(r"[a-z]+(?:_[a-z]+)+: ")
_BETWEEN_NAMED = re.compile(rf"; (?={_NAMED.pattern})")

_NUMBER = re.compile(r"(?<![\w.-])\d+(?:[.,]\d+)*(?![\w-])")


def is_named(reason: str) -> bool:
    """Whether a reason names a fallback, in place of only describing what was decided."""
    return _NAMED.match(reason) is not None


@dataclass(slots=True)
class Reasons:
    """Reasons without the jobs and numbers in them, and the jobs that each was given for."""

    _jobs: dict[str, set[str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def add(self, reasons: Mapping[str, str], partners: Mapping[str, str | None]) -> None:
        """Count the reasons of one decision, by job; ``partners`` are the other jobs that they may speak of."""
        for job_id, text in reasons.items():
            if self._last.get(job_id) == text:
                continue
            self._last[job_id] = text
            for reason in _BETWEEN_NAMED.split(text):
                self._jobs.setdefault(_general(reason, job_id, partners.get(job_id)), set()).add(job_id)

    def counts(self) -> dict[str, int]:
        """How many jobs each reason was given for at some time, the most frequent first."""
        counted = [(reason, len(jobs)) for reason, jobs in self._jobs.items()]
        return dict(sorted(counted, key=lambda item: (-item[1], item[0])))


def _general(reason: str, *job_ids: str | None) -> str:
    for job_id in job_ids:
        if job_id:
            reason = re.sub(rf"(?<![\w-]){re.escape(job_id)}(?![\w-])", "…", reason)
    return _NUMBER.sub("…", reason)
