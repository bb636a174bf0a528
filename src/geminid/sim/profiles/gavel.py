"""Gavel's throughput tables: steps per second of known job types on known GPU types, alone and in pairs.

A JSON file with ``table[gpu type][job type][partner]``: a job type is written as a model with its batch size and the
number of GPUs; without a partner (``"null"``) the entry is a number, with one it is both jobs' numbers when they share
the same GPUs, zeros if they cannot. Types that end in ``_unconsolidated`` are for gangs spread over more servers than
they need. Steps are added up over a job's GPUs.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.policies.base import JobFacts
from geminid.sim.profiles.bytype import ByType

#: The file that is looked for in a folder.
DEFAULT_FILE = "simulation_throughputs.json"

_SPREAD = "_unconsolidated"

#: A model with its batch size, and a number of GPUs.
JobType = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TypeThroughputs:
    """Steps per second on one GPU type: alone, spread over more nodes than needed, and of pairs."""

    alone: Mapping[JobType, float]
    spread: Mapping[JobType, float]
    pairs: Mapping[tuple[JobType, JobType], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ThroughputTable:
    """All that is known of job types' speeds. It is a :class:`geminid.policies.base.SharingModel` as well."""

    by_type: Mapping[str, TypeThroughputs]

    def knows(self, job_type: JobType) -> bool:
        """Whether a job of this type can run anywhere at all."""
        return any(entry.alone.get(job_type, 0.0) > 0 for entry in self.by_type.values())

    def alone(self, job_type: JobType, gpu_type: str) -> float:
        """Steps per second with slots of a type to itself; zero where it cannot run."""
        return self.by_type[gpu_type].alone.get(job_type, 0.0) if gpu_type in self.by_type else 0.0

    def spread(self, job_type: JobType, gpu_type: str) -> float:
        """The same on more nodes than it needs; where nobody measured that, as on the fewest."""
        return self.by_type[gpu_type].spread.get(job_type, 0.0) or self.alone(job_type, gpu_type)

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        """Speeds of two jobs on shared slots, relative to having them alone."""
        a, b = (first.kind, first.requested_slots), (second.kind, second.requested_slots)
        if gpu_type not in self.by_type:
            return 0.0, 0.0
        entry = self.by_type[gpu_type]
        together = entry.pairs.get((a, b))
        if together is None:
            together = entry.pairs.get((b, a), (0.0, 0.0))[::-1]
        alone = entry.alone.get(a, 0.0), entry.alone.get(b, 0.0)
        if min(*together, *alone) <= 0:
            return 0.0, 0.0
        return together[0] / alone[0], together[1] / alone[1]

    def speeds_together(self, jobs: Sequence[JobFacts], gpu_type: str, batches: Sequence[int]) -> NDArray[np.float64]:
        """The same for every job (rows) beside every other (columns); batches are part of a job's kind here."""
        kinds: dict[JobType, tuple[int, JobFacts]] = {}
        place = [kinds.setdefault((job.kind, job.requested_slots), (len(kinds), job))[0] for job in jobs]
        of_kinds = np.array(
            [[self.relative_speeds(a, b, gpu_type)[0] for _, b in kinds.values()] for _, a in kinds.values()]
        )
        return np.asarray(of_kinds[np.ix_(place, place)])


def find_throughputs(path: Path) -> Path | None:
    """The throughput table that ``path`` names: the file itself, or the usual one in the folder."""
    if path.is_file() and path.suffix == ".json":
        return path
    return path / DEFAULT_FILE if (path / DEFAULT_FILE).is_file() else None


def load_throughputs(path: Path) -> ThroughputTable:
    """Read a table from a file, or from a folder that has one; raises InvalidInput with what is wrong with it."""
    file = find_throughputs(path)
    if file is None:
        expected = f"must be a JSON file of throughputs, or a folder with a {DEFAULT_FILE}"
        raise InvalidInput([Problem("profiles", str(path), expected)])
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput([Problem(file.name, NOT_SHOWN, f"cannot be read as JSON ({error})")]) from None
    try:
        return ThroughputTable(ByType(_by_type(content)))
    except _WrongEntry as wrong:
        raise InvalidInput([Problem(f"{file.name}, {wrong.where}", wrong.value, wrong.expected)]) from None


@dataclass
class _WrongEntry(Exception):
    where: str
    value: Any
    expected: str


def _by_type(content: Any) -> dict[str, TypeThroughputs]:
    if not isinstance(content, Mapping) or not content:
        raise _WrongEntry("the file", NOT_SHOWN, "must map GPU types to job types")
    alone: dict[str, dict[JobType, float]] = {}
    pairs: dict[str, dict[tuple[JobType, JobType], tuple[float, float]]] = {}
    known: dict[str, JobType] = {}
    for gpu_type, first_text, second_text, value in _entries(content):
        where = f"{gpu_type}, {first_text}"
        first = known.get(first_text) or known.setdefault(first_text, _job_type(first_text, gpu_type))
        alone.setdefault(gpu_type, {})
        pairs.setdefault(gpu_type, {})
        if second_text == "null":
            alone[gpu_type][first] = _number(value, where)
        else:
            second = known.get(second_text) or known.setdefault(second_text, _job_type(second_text, where))
            where = f"{where}, {second_text}"
            if not isinstance(value, list) or len(value) != 2:
                raise _WrongEntry(where, value, "must be the two jobs' steps per second")
            pairs[gpu_type][first, second] = _number(value[0], where), _number(value[1], where)
    return {
        gpu_type: TypeThroughputs(alone[gpu_type], alone.get(gpu_type + _SPREAD, {}), pairs[gpu_type])
        for gpu_type in alone
        if not gpu_type.endswith(_SPREAD)
    }


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for gpu_type, jobs in content.items():
        if not isinstance(jobs, Mapping):
            raise _WrongEntry(gpu_type, NOT_SHOWN, "must map job types to their throughputs")
        for job, partners in jobs.items():
            if not isinstance(partners, Mapping):
                raise _WrongEntry(f"{gpu_type}, {job}", NOT_SHOWN, 'must map partners, or "null", to throughputs')
            for partner, value in partners.items():
                yield gpu_type, job, partner, value


def _job_type(text: str, where: str) -> JobType:
    try:
        model, slots = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        model = slots = None
    if not (isinstance(model, str) and isinstance(slots, int) and slots > 0):
        raise _WrongEntry(where, text, "must be like ('ResNet-18 (batch size 16)', 1)")
    return model, slots


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _WrongEntry(where, value, "must be steps per second, zero or more")
    return float(value)
