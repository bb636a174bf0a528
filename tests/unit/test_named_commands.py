"""Every `geminid …` command that a message, a help text or a docstring of ours names exists, with its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from geminid.cli.main import app

COMMANDS: Any = get_command(app)
SOURCE = Path(__file__).parents[2] / "src" / "geminid"

#: A command is in backticks, quotes or parentheses, or comes after a colon; elsewhere "geminid" is our name.
NAMED = re.compile(r"(?:[`'(]|: )geminid ([^`'),\n;]*)")


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts of a module; what is filled into one is a word X."""
    nodes = list(ast.walk(tree))
    threads = {id(word.value) for node in nodes if isinstance(node, ast.Call) for word in node.keywords}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in parts:
            continue
        elif id(node) not in threads or " " in node.value.removeprefix("geminid "):
            yield node.value


def named_commands() -> list[tuple[str, str]]:
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return [
        (str(path.relative_to(SOURCE)), found.strip().rstrip(".,…"))
        for path, module in modules.items()
        if "geminid " in module
        for text in texts(ast.parse(module))
        for found in NAMED.findall(text.replace("\n", " "))
    ]


def problem_of(command: str) -> str | None:
    """What is wrong with a command; None if it exists, with all options that are named."""
    words = command.split()
    found = COMMANDS
    while words and hasattr(found, "commands"):
        name = words.pop(0)
        if name.isupper() or name == "X":  # a placeholder for any command
            return None
        if name not in found.commands:
            return f"there is no command {name!r}"
        found = found.commands[name]
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    if "--" in words:
        words = words[: words.index("--")]
    options = [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)]
    missing = [option for option in options if option not in known]
    return f"{missing[0]} is not an option" if missing else None


def test_commands_that_are_named_exist() -> None:
    named = named_commands()
    assert len(named) > 30  # they are found at all
    wrong = [f"{where}: geminid {command}: {why}" for where, command in named if (why := problem_of(command))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["undrain a", "set j1 --prio 4", "bench nothing", "quota owner ann 4 --for ever"])
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert problem_of(command) is not None


@pytest.mark.parametrize("command", ["set j1 --priority 4", "bench service", "submit --dry-run -- x --mine", "up"])
def test_a_command_that_exists_is_not(command: str) -> None:
    assert problem_of(command) is None
