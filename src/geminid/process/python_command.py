"""What a command that starts Python runs: a script or a module, and with which options of the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Options that take a value, which may follow at once (``-Wignore``) or as the next word; and what begins with ``--``.
WITH_VALUE = "WXmc-"

#: The commands that stand for the interpreter that there is.
PYTHONS = frozenset({"python", "python3"})

#: Options that a process in which Python runs already has to do nothing for: its output is never kept back.
WITHOUT_EFFECT = frozenset({"-u"})


@dataclass(frozen=True, slots=True)
class PythonLine:
    """A command that runs a ``script`` or a ``module``, one of both, with some options and arguments."""

    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str]) -> PythonLine | None:
        """None if the command does something else."""
        options: list[str] = []
        rest = iter(_after_python(command))
        for word in rest:
            if not word.startswith("-"):
                return cls(tuple(options), word, None, tuple(rest))
            flags, valued, value = _parted(word)
            options += [f"-{flag}" for flag in flags]
            if valued is None and flags:
                continue
            value = value or next(rest, "")
            if valued == "m" and value:
                return cls(tuple(options), None, value, tuple(rest))
            if valued not in ("W", "X"):  # a program in its own words, one from its input, --version and the like
                return None
            options.append(f"-{valued}{value}")
        return None

    @property
    def forks(self) -> bool:
        """Whether a warm process can run it as well as a fresh one."""
        return self.script is not None and self.script.endswith(".py") and set(self.options) <= WITHOUT_EFFECT

    def file_in(self, folder: Path) -> Path | None:
        """The file that it runs when started in a folder; None for a module that is not there: it may be installed."""
        if self.script is not None:
            return folder / self.script
        parts = (self.module or "").split(".")
        candidates = (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__main__.py"))
        return next((path for path in candidates if path.is_file()), None)


def runs_inline_code(command: Sequence[str]) -> bool:
    """Whether a command is ``python -c CODE``, with whatever options before the ``-c``."""
    rest = iter(_after_python(command))
    for word in rest:
        if not word.startswith("-"):
            return False
        flags, valued, value = _parted(word)
        if valued is None and flags:
            continue
        if valued not in ("W", "X"):
            return valued == "c"
        if not value:
            next(rest, "")
    return False


def is_this_python(program: str) -> bool:
    """Whether a program is the interpreter that this process runs in, with all that is installed for it.

    The interpreters of many virtual environments are links to one file: it is the folder that tells them apart.
    """
    folders = {os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in (program, sys.executable)}
    return len(folders) == 1 and os.path.samefile(program, sys.executable)


def _after_python(command: Sequence[str]) -> list[str]:
    """The words that follow the interpreter in a command that starts Python, also through ``env``; else none."""
    words = list(command)
    if words and Path(words[0]).name == "env":
        words = words[1:]
        while words and "=" in words[0] and not words[0].startswith("-"):
            words = words[1:]
    return words[1:] if words and Path(words[0]).name.startswith("python") else []


def _parted(word: str) -> tuple[str, str | None, str]:
    """Of an option such as ``-uWignore``: flags, the letter that takes a value, and as much of that as is there."""
    for at, letter in enumerate(word[1:], 1):
        if letter in WITH_VALUE:
            return word[1:at], letter, word[at + 1 :]
    return word[1:], None, ""
