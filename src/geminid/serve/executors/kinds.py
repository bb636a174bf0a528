"""Which kind a job is: as its submitter says, or as far as its command and its script show.

Whether a script really calls ``geminid.init()`` shows only when it runs: an import may be guarded, or skipped by a
flag. So a job that may be elastic is of unknown kind until it has called it, and runs as one process until then. A job
may be elastic if its script or a module beside it imports geminid, and if it runs code that is not looked at: a module
that is installed, or Python that a shell starts (``visible_code.py``). Everything else is plain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from geminid.job import FoundKind, JobKind, JobSpec
from geminid.process.python_command import PythonLine, inline_code
from geminid.serve.executors.visible_code import Findings, look_at_program, look_at_python, read_text

#: What to do about a job that is taken for plain although something that it runs uses the training library.
IF_ELASTIC = "if it calls geminid.init(), submit it with --kind elastic"

#: What follows from an unknown kind.
UNTIL_INIT = "it becomes elastic when it calls geminid.init()"

#: What to do about a job of unknown kind that may never call it.
IF_PLAIN = "--kind plain if it never does"


def kind_of(spec: JobSpec) -> FoundKind:
    """How a job is to be launched, and why."""
    if spec.kind is not None:
        return FoundKind(spec.kind, f"--kind {spec.kind}")
    seen = look_at(spec.command, spec.working_dir, dict(spec.env).get("PATH"))
    if seen.uses_library:
        return FoundKind(JobKind.UNKNOWN, f"{seen.why}; {UNTIL_INIT}")
    if spec.max_slots is not None and not spec.has_fixed_size:
        sizes = f"{spec.min_slots} to {spec.max_slots} slots were asked for"
        return FoundKind(JobKind.UNKNOWN, f"{sizes}; {UNTIL_INIT}")
    if seen.is_opaque and spec.has_fixed_size and spec.min_slots > 1:
        why = f"{seen.why}, and it has {spec.min_slots} slots at once, as launchers such as torchrun need them"
        return FoundKind(JobKind.PLAIN, f"{why}; {IF_ELASTIC}")
    if seen.is_opaque:
        return FoundKind(JobKind.UNKNOWN, f"{seen.why}; {UNTIL_INIT} ({IF_PLAIN})")
    return FoundKind(JobKind.PLAIN, f"{seen.why}; {IF_ELASTIC}")


def look_at(command: Sequence[str], working_dir: str | None, search_path: str | None = None) -> Findings:
    """What the code that a command runs shows. ``search_path`` is that of the job."""
    folder = Path(working_dir or ".")
    if (code := inline_code(command)) is not None:
        return look_at_python("the code of python -c", code, folder)
    line = PythonLine.of(command)
    if line is None:
        return look_at_program(command, folder, search_path)
    name, file = line.module or Path(line.script or "").name, line.file_in(folder)
    if file is None:
        return _installed_module(line.module or "")
    source = read_text(file)
    if source is None:
        return Findings(f"{name} cannot be read")
    return look_at_python(name, source, folder if line.module else file.parent)


def _installed_module(module: str) -> Findings:
    """What can be said of ``python -m MODULE`` if the module is not in the job's folder."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return Findings(f"{module} is a module of Python")
    if module in ("torch.distributed.run", "torch.distributed.launch"):
        return Findings("torchrun starts processes of its own")
    return Findings(f"the code of {module} is not in its folder, and is not looked at", is_opaque=True)
