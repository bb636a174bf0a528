"""The parent of every process of a job: what it ends, what it writes down, and control groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from geminid.cli.torchrun import processes_asked_for
from geminid.process import shim
from geminid.process.environment import clean_environment
from geminid.process.launch import Launch, PlainLauncher, adopted
from waiting import until

#: Forks twice and leaves its session, so that nobody is its parent but a subreaper; what it runs has no environment.
ESCAPE = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "4321"], {})
    os._exit(0)
"""


def launch(folder: Path, *command: str) -> Launch:
    return Launch(command, clean_environment(), folder, folder / "log", exit_file=folder / "w1.exit")


def ended(process) -> int:
    """The exit code of a process that ends within a while."""
    until(lambda: process.exit_code() is not None)
    code = process.exit_code()
    process.close()
    return code


@pytest.mark.parametrize(("words", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_how_a_process_ended_is_known_to_its_parent_and_to_whoever_comes_after(tmp_path, words, code):
    process = PlainLauncher().start(launch(tmp_path, sys.executable, "-c", f"import time; time.sleep(0.5); {words}"))
    other = adopted(json.loads(json.dumps(process.identity)))
    assert other is not None
    assert ended(other) == ended(process) == code


def test_a_process_that_does_not_exist_is_told_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        PlainLauncher().start(launch(tmp_path, "/no/such/program"))


@pytest.mark.parametrize("how", ["it ends", "it is ended"])
def test_what_has_escaped_from_a_process_ends_with_it(tmp_path, how):
    wait = "" if how == "it ends" else "\ntime.sleep(600)"
    script = f"import time\n{ESCAPE}\nos.wait()\ntime.sleep(0.3){wait}"
    process = PlainLauncher().start(launch(tmp_path, sys.executable, "-c", script))
    above = process.identity["shim"]["pid"]
    until(lambda: any(_command(pid) == "sleep 4321" for pid in shim.descendants(above)))
    (escaped,) = (pid for pid in shim.descendants(above) if _command(pid) == "sleep 4321")
    assert os.getsid(escaped) != os.getsid(process.pid)
    if how == "it is ended":
        process.signal(signal.SIGKILL)
    ended(process)
    assert not Path(f"/proc/{escaped}").exists()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


@pytest.fixture
def tree(tmp_path):
    """A control group of this process in a folder, as the system would show it, in a file system of files."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    own = root / "user" / "service"
    own.mkdir(parents=True)
    (own / "cgroup.procs").touch()
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mounts").write_text(f"tmpfs / tmpfs rw 0 0\ncgroup2 {root} cgroup2 rw 0 0\n")
    (proc / "self" / "cgroup").write_text("4:memory:/other\n0::/user/service\n")
    return own, str(proc)


def test_what_is_started_is_in_a_control_group_of_its_own_which_is_killed_as_one(tree):
    own, proc = tree
    group = shim.make_group(proc)
    assert group is not None
    assert Path(group).parent == own
    shim.enter_group(group)
    assert (Path(group) / "cgroup.procs").read_text() == str(os.getpid())
    shim.end_group(group)
    assert (Path(group) / "cgroup.kill").read_text() == "1"


def test_control_groups_whose_shim_was_killed_are_ended_and_others_are_not(tree):
    own, proc = tree
    with subprocess.Popen(["true"]) as gone:
        pass
    left, used, others = own / f"geminid-{gone.pid}-123", Path(shim.make_group(proc) or ""), own / "something"
    for folder in (left, others):
        folder.mkdir()
    shim.end_left_groups(proc)
    assert (left / "cgroup.kill").read_text() == "1"
    assert not (used / "cgroup.kill").exists()
    assert not (others / "cgroup.kill").exists()


@pytest.mark.parametrize("lacks", ["mounts", "cgroup", "cgroup.procs"])
def test_without_control_groups_it_does_without(tree, lacks):
    own, proc = tree
    (own / lacks if lacks == "cgroup.procs" else Path(proc, "self", lacks)).unlink()
    assert shim.make_group(proc) is None
    shim.enter_group(None)
    shim.end_group(None)
    shim.remove_group(None)


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("torchrun --nproc-per-node 2 train.py", "2"),
        ("/opt/bin/torchrun --standalone --nproc_per_node=4 train.py --epochs 3", "4"),
        ("python -m torch.distributed.run --nproc-per-node gpu train.py", "gpu"),
        ("python3 -m torch.distributed.launch --nproc_per_node 8 train.py", "8"),
        ("torchrun --nnodes 2 --nproc-per-node 2 train.py", None),
        ("torchrun train.py --nproc-per-node 2", None),
        ("python train.py --nproc-per-node 2", None),
        ("torchrun", None),
    ],
)
def test_how_many_processes_a_command_has_torchrun_start(command, asked):
    assert processes_asked_for(command.split()) == asked
