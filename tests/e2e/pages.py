"""The documentation as a program reads it: its pages, their command blocks, and every mention of a command."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from geminid.cli.main import app

ROOT = Path(__file__).parents[2]

#: Every page that shows commands.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"))
    if path.name != "CHANGELOG.md"
)

#: Languages of blocks that are meant to be typed.
SHELLS = ("sh", "bash", "shell", "console")

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(geminid [^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """The commands of one block of a page, comments removed and continued lines joined."""

    page: str
    commands: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """The blocks of a page that are meant to be typed, in their order."""
    found = [body for language, body in _fences(page) if language in SHELLS]
    return [Block(page, tuple(_commands(body))) for body in found]


def mentions(page: str) -> list[str]:
    """Every command of ours on a page: in blocks of any kind, and between backticks in the text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = [line for _, body in _fences(page) for line in _commands(body) if "geminid " in line]
    typed = [part.strip() for line in fenced for part in re.split(r";|&&|\|", line)]
    inline = [" ".join(match.split()) for match in _INLINE.findall(_FENCE.sub("", text))]
    return [words for words in (*typed, *inline) if re.match(r"(\.venv/bin/)?geminid\b(?!\s*=)", words)]


def _fences(page: str) -> list[tuple[str, str]]:
    return _FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


def _commands(body: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", body)
    lines = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def what_is_wrong(mention: str) -> str | None:
    """Which word of a command does not exist, or None."""
    try:
        words = shlex.split(mention)
    except ValueError:
        words = mention.split()
    command = get_command(app)
    words = words[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0).strip("…[]")
        if not name or name.isupper():  # a placeholder
            return None
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "-h", "--version", "--install-completion", "--show-completion"}
    for word in words:
        if word == "--":
            return None
        option = re.match(r"\[?(--?[a-z][a-z0-9-]*)", word)
        if option and option[1] not in known:
            return f"{command.name} has no option {option[1]}"
    return None
