"""What a command that starts Python runs."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from geminid.job import JobKind, JobSpec
from geminid.process.python_command import PythonLine, is_this_python
from geminid.serve.executors.kinds import kind_of, look_at


@pytest.mark.parametrize(
    ("command", "script", "module", "arguments", "forks"),
    [
        ("python train.py --lr 1", "train.py", None, ("--lr", "1"), True),
        ("/opt/bin/python3.12 -u train.py -m x", "train.py", None, ("-m", "x"), True),
        ("python -uB train.py", "train.py", None, (), False),
        ("python -W ignore -Xdev train.py", "train.py", None, (), False),
        ("python -Xcpu_count=2 -OO train.py", "train.py", None, (), False),
        ("python -m pkg.train --lr 1", None, "pkg.train", ("--lr", "1"), False),
        ("python -um pkg.train", None, "pkg.train", (), False),
        ("/usr/bin/env LR=1 python3 train.py", "train.py", None, (), True),
        ("python train", "train", None, (), False),
    ],
)
def test_a_script_or_a_module_is_found(command, script, module, arguments, forks):
    line = PythonLine.of(command.split())
    assert line is not None
    assert (line.script, line.module, line.arguments, line.forks) == (script, module, arguments, forks)


@pytest.mark.parametrize(
    "command",
    ["", "sh train.py", "python", "python -c print(1)", "python -", "python --version", "python -m", "env A=1"],
)
def test_everything_else_is_something_else(command):
    assert PythonLine.of(command.split()) is None


@pytest.mark.parametrize(
    ("command", "elastic"),
    [
        ("python -u train.py", True),
        ("python -m pkg.train", True),
        ("python -m pkg", True),
        ("python -m other", False),
        ("python -m json.tool", False),
        ("env python3 train.py", True),
        ("python -c pass", False),
    ],
)
def test_what_imports_the_library_is_elastic_however_it_is_started(tmp_path, command, elastic):
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "pkg/train.py", "pkg/__main__.py"):
        (tmp_path / name).write_text("import geminid\n")
    (tmp_path / "other.py").write_text("import os\n")
    assert look_at(command.split(), str(tmp_path)).uses_library is elastic


def test_the_interpreter_of_another_environment_is_another_one_though_it_is_the_same_file(tmp_path):
    """Virtual environments have links to one interpreter; what can be imported depends on the folder of the link."""
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python"
    other.symlink_to(os.path.realpath(sys.executable))
    assert not is_this_python(str(other))
    (tmp_path / "venv").symlink_to(Path(sys.executable).parent)
    assert is_this_python(str(tmp_path / "venv" / Path(sys.executable).name))
    assert is_this_python(sys.executable)
    assert not is_this_python("/bin/sh")


FILES = {
    "train.py": "import torch, helper\n",
    "helper.py": "from pathlib import Path\n",
    "deep.py": "from pkg import inner\n",
    "pkg/__init__.py": "",
    "pkg/inner.py": "from . import training\n",
    "pkg/training.py": "def main():\n    import geminid\n",
    "theirs.py": "import numpy, mylab.models\n",
    "loop.py": "import other\n",
    "other.py": "import loop\n",
    "broken.py": "def\n",
    "run.sh": "#!/bin/sh\nset -e\n# not python\necho hello\n",
    "train.sh": "#!/bin/bash\nexec python train.py\n",
    "tool": "#!/usr/bin/env python3\nimport os\n",
    "entry": "#!/venv/bin/python\nfrom mylab.cli import main\nmain()\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python -c 'import os'", "the code of python -c does not import geminid"),
        ("python train.py -c x", "train.py does not import geminid"),
        ("python -m train -c x", "train does not import geminid"),
        ("python -X -c train.py", "train.py does not import geminid"),
        ("python loop.py", "loop.py does not import geminid"),
        ("python broken.py", "broken.py does not import geminid"),
        ("python missing.py", "missing.py cannot be read"),
        ("python -m http.server", "http.server is a module of Python"),
        ("python -", "python runs no script"),
        ("sleep -c", "sleep is not Python"),
        ("torchrun train.py", "torchrun starts processes of its own"),
        ("sh -c 'echo $HOME; i=$((1+1)); sleep 1'", "sh -c runs no Python"),
        ("bash run.sh", "run.sh runs no Python"),
        ("./run.sh", "run.sh runs no Python"),
        ("./tool", "tool does not import geminid"),
    ],
)
def test_what_clearly_does_not_use_the_library_is_plain_and_the_reason_says_what_was_looked_at(folder, command, why):
    spec = {"name": "a", "command": shlex.split(command), "working_dir": str(folder)}
    found = kind_of(JobSpec.from_dict(spec))
    assert (found.kind, found.reason.partition(";")[0]) == (JobKind.PLAIN, why)
    assert "if it calls geminid.init(), submit it with --kind elastic" in found.reason


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python -c 'import geminid'", "the code of python -c imports geminid"),
        ("env A=1 python3 -uW ignore -c 'import geminid'", "the code of python -c imports geminid"),
        ("python deep.py", "training.py, which deep.py imports, imports geminid"),
        ("python theirs.py", "theirs.py imports mylab, whose code is not looked at"),
        ("python -m mylab.train", "the code of mylab.train is not in its folder, and is not looked at"),
        ("bash -c 'exec python train.py'", "bash -c may run Python (python), which is not looked at"),
        ("bash -e train.sh", "train.sh may run Python (python), which is not looked at"),
        ("./train.sh", "train.sh may run Python (python), which is not looked at"),
        ("sh -c 'exec \"$@\"' sh train", 'sh -c may run Python (exec "$@), which is not looked at'),
        ("uv run train", "what uv starts is not looked at"),
        ("./entry", "entry imports mylab, whose code is not looked at"),
    ],
)
def test_what_may_use_the_library_is_of_unknown_kind_until_it_runs(folder, command, why):
    spec = {"name": "a", "command": shlex.split(command), "working_dir": str(folder)}
    found = kind_of(JobSpec.from_dict(spec))
    assert (found.kind, found.reason.partition(";")[0]) == (JobKind.UNKNOWN, why)
    assert "it becomes elastic when it calls geminid.init()" in found.reason


def test_several_slots_at_once_for_code_that_is_not_seen_are_for_one_command():
    spec = {"name": "a", "command": ["sh", "-c", "exec python train.py"], "slots": 4}
    found = kind_of(JobSpec.from_dict(spec))
    assert (found.kind, "has 4 slots at once, as launchers such as torchrun" in found.reason) == (JobKind.PLAIN, True)
