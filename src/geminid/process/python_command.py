"""Commands that start Python: which script or module they run, and with which options of the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Options that take a value, in the same word (``-Wignore``) or as the next one; and ``-``, for those with ``--``.
WITH_VALUE = "WXmc-"

#: Commands that mean this interpreter if the search path has none of that name.
PYTHONS = frozenset({"python", "python3"})

#: Options that change nothing in a fork: output of workers is never buffered.
WITHOUT_EFFECT = frozenset({"-u"})


@dataclass(frozen=True, slots=True)
class PythonLine:
    """A command that runs either a ``script`` or a ``module``, with its options and arguments."""

    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str]) -> PythonLine | None:
        """Read a command; None if it does something else."""
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
            if valued not in ("W", "X"):  # inline code, standard input, --version and the like
                return None
            options.append(f"-{valued}{value}")
        return None

    @property
    def forks(self) -> bool:
        """Whether a fork of a running interpreter can run it."""
        return self.script is not None and self.script.endswith(".py") and set(self.options) <= WITHOUT_EFFECT

    def file_in(self, folder: Path) -> Path | None:
        """The file that it runs in a folder; None for a module that is not there, and may be installed."""
        if self.script is not None:
            return folder / self.script
        parts = (self.module or "").split(".")
        candidates = (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__main__.py"))
        return next((path for path in candidates if path.is_file()), None)


def inline_code(command: Sequence[str]) -> str | None:
    """The code of ``python -c CODE``, with any options before the ``-c``; None for other commands."""
    rest = iter(_after_python(command))
    for word in rest:
        if not word.startswith("-"):
            return None
        flags, valued, value = _parted(word)
        if valued is None and flags:
            continue
        if valued not in ("W", "X"):
            return value or next(rest, "") if valued == "c" else None
        if not value:
            next(rest, "")
    return None


def is_this_python(program: str) -> bool:
    """Whether a program is the interpreter that this process runs in, with the same packages.

    The interpreters of many virtual environments are links to one file; their folders tell them apart.
    """
    folders = {os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in (program, sys.executable)}
    return len(folders) == 1 and os.path.samefile(program, sys.executable)


def _after_python(command: Sequence[str]) -> list[str]:
    """The words after the interpreter in a command that starts Python, also through ``env``; otherwise none."""
    words = list(command)
    if words and Path(words[0]).name == "env":
        words = words[1:]
        while words and "=" in words[0] and not words[0].startswith("-"):
            words = words[1:]
    return words[1:] if words and Path(words[0]).name.startswith("python") else []


def _parted(word: str) -> tuple[str, str | None, str]:
    """The parts of an option such as ``-uWignore``: flags, the letter that takes a value, and the value, if any."""
    for at, letter in enumerate(word[1:], 1):
        if letter in WITH_VALUE:
            return word[1:at], letter, word[at + 1 :]
    return word[1:], None, ""
