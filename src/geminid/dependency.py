"""Dependencies between jobs, as a person writes them: ``after: [prepare, train:any]``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from geminid.fields import A_NAME, InvalidInput, Problem, Reader, check_name

#: The most jobs that one job may wait for.
MAX_DEPENDENCIES: Final = 100


class When(StrEnum):
    """How a job must end for one that waits for it."""

    OK = "ok"
    """It succeeded; of an array, all elements."""
    ANY = "any"
    """It is over, however it ended."""
    FAILED = "failed"
    """It failed; of an array, at least one element."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job, by its name or identifier, that must end in a certain way before another one may start."""

    job: str
    when: When = When.OK

    @classmethod
    def parse(cls, text: str) -> Dependency:
        """Read ``NAME_OR_ID[:ok|any|failed]``.

        Raises:
            InvalidInput: it is something else.
        """
        job, _, when = text.rpartition(":") if ":" in text else (text, "", When.OK)
        if check_name("after", job) or when not in set(When):
            options = ", ".join(When)
            expected = f"must be {A_NAME}, and may end in a colon and one of {options}, such as prepare:any"
            raise InvalidInput([Problem("after", text, expected)])
        return cls(job, When(when))

    def __str__(self) -> str:
        return self.job if self.when is When.OK else f"{self.job}:{self.when}"


def check_dependencies(field: str, after: object) -> list[Problem]:
    """What is wrong with the dependencies of a job."""
    if not isinstance(after, tuple) or not all(isinstance(one, Dependency) for one in after):
        return [Problem(field, after, "must be a tuple of dependencies")]
    if len(after) > MAX_DEPENDENCIES:
        return [Problem(field, len(after), f"must name at most {MAX_DEPENDENCIES} jobs")]
    return []


def read_dependencies(reader: Reader, field: str) -> tuple[Dependency, ...] | None:
    """The dependencies of a job file: a text, or a list of them."""
    value = reader.raw(field)
    texts = (value,) if isinstance(value, str) else reader.texts(field, None)
    if texts is None:
        return None
    found = []
    for text in texts:
        try:
            found.append(Dependency.parse(text))
        except InvalidInput as problem:
            reader.report(field, text, problem.problems[0].expected)
    return tuple(found)


def find_cycle(after: Mapping[str, Iterable[str]]) -> list[str]:
    """Names of jobs that wait for each other in a circle, the first one again at the end; empty if there are none.

    ``after`` has the names that each job waits for; names that are not among its keys are of other jobs.
    """
    done: set[str] = set()
    for start in after:
        path: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(after[start]))]
        while stack:
            name, rest = stack[-1]
            if len(path) < len(stack):
                path.append(name)
            following = next((one for one in rest if one in after and one not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                path.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                stack.append((following, iter(after[following])))
    return []
