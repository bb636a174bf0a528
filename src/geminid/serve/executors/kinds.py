"""Which kind a job is: as its submitter says, or as far as its command and its script show.

Whether a script really calls ``geminid.init()`` shows only when it runs: an import may be guarded, or skipped by a
flag. So a job that may be elastic is of unknown kind until it has called it, and runs as one process until then.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from geminid.job import FoundKind, JobKind, JobSpec
from geminid.process.python_command import PythonLine, runs_inline_code

#: Scripts are read up to this size to see whether they use the training library.
MOST_SCRIPT_BYTES = 1 << 20

#: What to do about a job that is taken for plain although something that it runs uses the training library.
IF_ELASTIC = "if it calls geminid.init(), submit it with --kind elastic"

#: What follows from an unknown kind.
UNTIL_INIT = "it becomes elastic when it calls geminid.init()"


def kind_of(spec: JobSpec) -> FoundKind:
    """How a job is to be launched, and why."""
    if spec.kind is not None:
        return FoundKind(spec.kind, f"--kind {spec.kind}")
    if uses_library(spec.command, spec.working_dir):
        return FoundKind(JobKind.UNKNOWN, f"{_script(spec.command)} imports geminid; {UNTIL_INIT}")
    if spec.max_slots is not None and not spec.has_fixed_size:
        sizes = f"{spec.min_slots} to {spec.max_slots} slots were asked for"
        return FoundKind(JobKind.UNKNOWN, f"{sizes}; {UNTIL_INIT}")
    return FoundKind(JobKind.PLAIN, _why_plain(spec.command))


def _why_plain(command: Sequence[str]) -> str:
    """Why nothing in a command shows that it uses the training library."""
    if runs_inline_code(command):
        return f"the code of python -c is not looked at; {IF_ELASTIC}"
    script = _script(command)
    seen = "its command names no Python script" if script is None else f"{script} does not import geminid"
    return f"{seen}; {IF_ELASTIC}"


def _script(command: Sequence[str]) -> str | None:
    """What to call the script or module of a command, if it runs one."""
    line = PythonLine.of(command)
    return None if line is None else line.module or Path(line.script or "").name


def uses_library(command: Sequence[str], working_dir: str | None) -> bool:
    """Whether a command runs a Python script or module that imports geminid, as far as its own text shows."""
    line = PythonLine.of(command)
    script = None if line is None else line.file_in(Path(working_dir or "."))
    if script is None:
        return False
    try:
        with script.open("rb") as file:
            tree = ast.parse(file.read(MOST_SCRIPT_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name == "geminid" or name.startswith("geminid.") for name in names):
            return True
    return False
