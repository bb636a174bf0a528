"""What a job finds and leaves: nothing of the service's environment, and no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zlib
from pathlib import Path

import pytest
from live import Live

from geminid.process.disk_full import meeting_folder
from geminid.process.logfiles import MAX_LOG_BYTES
from waiting import until

SECRET = "hunter2-of-the-operator"

#: Writes down its environment, and what the system says of it and of a process that it starts.
LOOK = """
import json, os, pathlib, subprocess, sys
if {init}:
    import geminid
    geminid.init()
seen = pathlib.Path("/proc/self/environ").read_text()
inner = subprocess.run(["sh", "-c", "cat /proc/self/environ"], capture_output=True, text=True).stdout
pathlib.Path("seen.json").write_text(json.dumps({{"environ": dict(os.environ), "proc": seen + inner}}))
"""

#: Leaves a process behind that has forked twice, in a session of its own, without its parent's environment.
LEAVE = """
import os, sys, time
if {init}:
    import geminid
    geminid.init()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{seconds}"], {{}})
    os._exit(0)
os.wait()
open("left", "w").write("x")
time.sleep(600)
"""

#: Leaves a process behind in a session of its own, and kills the process that would end it.
ORPHAN = """
import os, signal, time
if {init}:
    import geminid
    geminid.init()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{seconds}"], dict(os.environ))
    os._exit(0)
os.wait()
open("left", "w").write("x")
while not os.path.exists("go"):
    time.sleep(0.05)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""

#: Every way to be launched: the options of submit, the words before the script, and whether it calls init().
LAUNCHES = {
    "elastic, forked": (("--kind", "elastic"), (), True),
    "elastic, afresh": (("--kind", "elastic"), ("-B",), True),
    "unknown, forked": ((), (), False),
    "unknown, afresh": ((), ("-B",), False),
    "plain": (("--kind", "plain"), (), False),
}


@pytest.fixture(scope="module")
def live():
    made = Live()
    made.env |= {"AWS_SECRET_ACCESS_KEY": SECRET, "PYTHONPATH": "/nowhere"}
    with made:
        for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH"):
            del made.env[name]
        yield made


def submit(live: Live, folder: Path, script: str, launch: str, *options: object) -> str:
    given, words, init = LAUNCHES[launch]
    (folder / "train.py").write_text(
        "if False: import geminid\n" + script.format(init=init, seconds=seconds_of(folder))
    )
    command = ("submit", "--working-dir", folder, *given, *options, "--", "python", *words, "train.py")
    done = live.run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_job_has_what_its_submitter_has_and_nothing_of_the_services(live, tmp_path, launch):
    live.env |= {"VIRTUAL_ENV": "/my/venv", "CONDA_PREFIX": "/my/conda", "LANG": "C.UTF-8", "MINE": "too"}
    live.env["PATH"] = f"/my/bin:{os.environ['PATH']}"
    job = live.over(submit(live, tmp_path, LOOK, launch, "--env", "MINE", "--env", "LR=0.1"))
    assert job["phase"] == "succeeded", job
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert SECRET not in str(seen)
    has = seen["environ"]
    assert {name: has.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "MINE", "LR", "PATH")} == {
        "VIRTUAL_ENV": "/my/venv",
        "CONDA_PREFIX": "/my/conda",
        "LANG": "C.UTF-8",
        "MINE": "too",
        "LR": "0.1",
        "PATH": live.env["PATH"],
    }
    assert (has["HOME"], "PYTHONPATH" in has) == (
        os.path.expanduser("~root") if os.getuid() == 0 else has["HOME"],
        False,
    )


def seconds_of(folder: Path) -> int:
    """For how long processes of the job in a folder sleep: no other job's do, of tests that run at the same time."""
    return 10_000_000 + zlib.crc32(bytes(folder)) % 10_000_000


def sleepers(folder: Path) -> list[str]:
    """Processes that the job in a folder has left behind."""
    name = f"^sleep {seconds_of(folder)}$"
    return subprocess.run(["pgrep", "-f", name], capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("how", ["cancel", "killed"])
def test_no_process_of_a_job_is_left_when_its_slots_are_free(live, tmp_path, launch, how):
    job_id = submit(live, tmp_path, LEAVE, launch, "--retries", 0)
    live.until(job_id, lambda job: (tmp_path / "left").exists())
    assert len(sleepers(tmp_path)) == 1
    if how == "cancel":
        live.run("cancel", job_id)
    else:
        for pid in live.job_pids(job_id):
            os.kill(pid, signal.SIGKILL)
    live.until(job_id, lambda job: job["slots"] == 0)
    assert not sleepers(tmp_path)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_nor_is_one_of_a_job_that_killed_its_shim(live, tmp_path, launch):
    job_id = submit(live, tmp_path, ORPHAN, launch, "--retries", 0)
    live.until(job_id, lambda job: (tmp_path / "left").exists())
    assert len(sleepers(tmp_path)) == 1
    (tmp_path / "go").touch()
    live.until(job_id, lambda job: job["slots"] == 0)
    assert not sleepers(tmp_path)


@pytest.mark.parametrize("launch", ["elastic, forked", "plain"])
def test_nor_is_one_after_the_service_was_killed_and_came_back(live, tmp_path, launch):
    job_id = submit(live, tmp_path, LEAVE, launch)
    live.until(job_id, lambda job: (tmp_path / "left").exists())
    live.kill()
    live.up()
    assert len(sleepers(tmp_path)) == 1
    live.until(job_id, lambda job: job["slots"] == 1)
    live.run("cancel", job_id)
    live.until(job_id, lambda job: job["slots"] == 0)
    assert not sleepers(tmp_path)


def test_a_job_that_ends_while_the_service_is_away_has_all_of_its_samples(live):
    """The service hears nothing of its last epochs; and nothing of it is left in memory."""
    job_id = live.patient("away", epochs=20, kind="elastic")
    live.until(job_id, lambda job: job["samples"] > 0)
    folder = live.home / "jobs" / job_id
    shared = set(Path("/dev/shm").glob("geminid-*"))
    meeting = meeting_folder(folder, json.loads((folder / "supervisor.json").read_text())["token"])
    assert meeting in shared
    live.kill()
    (live.home / "hurry").touch()
    until(lambda: list(folder.glob("*.exit")))
    live.up()
    job = live.over(job_id)
    assert (job["phase"], job["samples"], job["epoch"]) == ("succeeded", 20 * 200, 20), job
    assert live.exactly_once("away", 200, 20)
    assert not meeting.exists()


def test_the_log_of_a_job_that_is_over_keeps_to_its_size(live):
    """It printed all of it within its last second, when nobody looked any more."""
    job_id = live.submit("sh", "-c", f"head -c {4 * MAX_LOG_BYTES} /dev/zero", kind="plain")
    assert live.over(job_id)["phase"] == "succeeded"
    logs = list((live.home / "jobs" / job_id / "logs").iterdir())
    assert 0 < sum(512 * path.stat().st_blocks for path in logs) <= 2 * MAX_LOG_BYTES
