"""What a command that starts Python runs."""

import os
import sys
from pathlib import Path

import pytest

from geminid.job import JobKind, JobSpec
from geminid.process.python_command import PythonLine, is_this_python
from geminid.serve.executors.kinds import kind_of, uses_library


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
    assert uses_library(command.split(), str(tmp_path)) is elastic


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


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["python", "-c", "import geminid"], "the code of python -c is not looked at"),
        (["env", "A=1", "python3", "-uW", "ignore", "-c", "import geminid"], "the code of python -c is not looked at"),
        (["python", "train.py", "-c", "x"], "train.py does not import geminid"),
        (["python", "-m", "train", "-c", "x"], "train does not import geminid"),
        (
            ["sleep", "-c"],
            "its command names no Python script; if it calls geminid.init(), submit it with --kind elastic",
        ),
        (["bash", "-c", "exec python train.py"], "its command names no Python script; if it calls geminid.init()"),
        (["python", "-X", "-c", "train.py"], "train.py does not import geminid"),
        (["python", "-"], "its command names no Python script"),
    ],
)
def test_the_reason_for_a_plain_kind_says_what_was_looked_at(command, why):
    found = kind_of(JobSpec.from_dict({"name": "a", "command": command}))
    assert found.kind is JobKind.PLAIN
    assert found.reason.startswith(why)
    assert "if it calls geminid.init(), submit it with --kind elastic" in found.reason
