"""Rules for what happens after a failure, by exit code or by what was printed: give the job up, or try it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from geminid.fields import InvalidInput, Problem, Reader, check_choice, check_integer, check_number, check_text
from geminid.units import Seconds, format_duration, parse_duration

#: The most rules that a job may have.
MAX_RULES: Final = 20

#: The largest exit code.
MAX_EXIT_CODE: Final = 255


class RetryAction(StrEnum):
    """What happens after a failure that a rule is about."""

    STOP = "stop"
    """The job has failed, whatever retries it has left."""
    RETRY = "retry"
    """It is tried again if it has retries left; ``wait`` is the first delay, which doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """A rule. It matches a failure with one of these exit codes, and a line of the log with this text, where given.

    A signal is 128 plus its number, as in a shell. In the text, ``*`` stands for anything.
    """

    then: RetryAction
    exit_codes: tuple[int, ...] = ()
    log: str = ""
    wait_s: Seconds | None = None

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    def _problems(self) -> Iterator[Problem]:
        yield from check_choice("then", self.then, RetryAction)
        for code in self.exit_codes:
            yield from check_integer("exit_codes", code, at_least=1, at_most=MAX_EXIT_CODE)
        yield from check_text("log", self.log, max_length=200)
        if not self.exit_codes and not self.log.strip("*"):
            yield Problem("retry", "", "must say when: exit_codes, log, or both")
        if self.wait_s is not None:
            yield from check_number("wait", self.wait_s, above=0)
            if self.then is RetryAction.STOP:
                yield Problem("wait", self.wait_s, "goes with retry: a job that is given up waits for nothing")

    def matches(self, exit_code: int | None, lines: Sequence[str]) -> bool:
        """Whether a failure with this exit code (None: not known), and with these lines in its log, is meant."""
        if self.exit_codes and exit_code not in self.exit_codes:
            return False
        return not self.log or any(_contains(line, self.log) for line in lines)

    @property
    def condition(self) -> str:
        """When it applies, in words."""
        codes = f"exit code {', '.join(map(str, self.exit_codes))}" if self.exit_codes else ""
        return " and ".join(filter(None, [codes, f"a line with {self.log!r}" if self.log else ""]))

    def to_dict(self) -> dict[str, Any]:
        """As in a job file."""
        plain = {
            "exit_codes": list(self.exit_codes) or None,
            "log": self.log or None,
            "then": self.then.value,
            "wait": None if self.wait_s is None else format_duration(self.wait_s),
        }
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def parse(cls, text: str) -> RetryRule:
        """Read ``exit=75,137:retry:5m`` or ``log=out of memory:stop``, as in a command line.

        Raises:
            InvalidInput: it is something else.
        """
        words = text.split(":")
        wait = words.pop() if len(words) > 2 and words[-2] in set(RetryAction) else None
        action = words.pop() if len(words) > 1 else ""
        name, _, value = ":".join(words).partition("=")
        try:
            codes = tuple(int(code) for code in value.split(",")) if name == "exit" else ()
            wait_s = None if wait is None else parse_duration(wait)
            if name not in ("exit", "log") or not value or action not in set(RetryAction):
                raise ValueError
        except ValueError:
            expected = "must look like exit=75,137:retry:5m or log=out of memory:stop"
            raise InvalidInput([Problem("retry", text, expected)]) from None
        return cls(exit_codes=codes, log=value if name == "log" else "", then=RetryAction(action), wait_s=wait_s)


def _contains(line: str, pattern: str) -> bool:
    """Whether a line has a text, in which ``*`` stands for anything; takes no longer than reading the line."""
    at = 0
    for piece in pattern.split("*"):
        at = line.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def matching(rules: Sequence[RetryRule], exit_code: int | None, lines: Sequence[str]) -> RetryRule | None:
    """The first rule that applies to a failure."""
    return next((rule for rule in rules if rule.matches(exit_code, lines)), None)


def check_rules(field: str, rules: object) -> list[Problem]:
    """What is wrong with the rules of a job."""
    if not isinstance(rules, tuple) or not all(isinstance(rule, RetryRule) for rule in rules):
        return [Problem(field, rules, "must be a tuple of rules")]
    return [Problem(field, len(rules), f"must be at most {MAX_RULES} rules")] if len(rules) > MAX_RULES else []


def read_rules(reader: Reader, field: str) -> tuple[RetryRule, ...] | None:
    """The rules of a job file; mistakes are reported to the reader."""
    if reader.raw(field) is None:
        return None
    found = [one.attempt(partial(_read, one)) for one in reader.nested_list(field)]
    return tuple(rule for rule in found if rule is not None)


def _read(reader: Reader) -> RetryRule:
    arguments: dict[str, Any] = {
        "exit_codes": reader.integers("exit_codes", None),
        "log": reader.text("log", None),
        "then": reader.choice("then", RetryAction),
        "wait_s": reader.duration("wait", None),
    }
    return RetryRule(**{name: value for name, value in arguments.items() if value is not None})
