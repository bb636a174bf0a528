"""Checkpoints outlive whoever writes them; a job whose checkpoints are all damaged waits for somebody to decide."""

import shutil
import subprocess
import sys
import time

from live import Live

from geminid.clock import Clock
from geminid.train.storage import CheckpointFolder
from waiting import until


def damage(folder):
    """Damage all checkpoints; how many there are."""
    paths = list(folder.glob("checkpoint-*.safetensors"))
    for path in paths:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    return len(paths)


def paused_and_damaged(live, job, intact=None):
    """Pause a job, keep a copy of its last checkpoint, and damage all of them; how many there are."""
    live.until(job, lambda job: job["durable_samples"] > 0)
    assert live.run("pause", job).returncode == 0
    live.until(job, lambda job: job["phase"] == "paused")
    folder = live.home / "jobs" / job / "checkpoints"
    if intact is not None:
        shutil.copy(max(folder.glob("*.safetensors")), intact)
    return damage(folder)


def test_a_job_whose_checkpoints_are_all_damaged_is_held_until_somebody_decides():
    with Live(slots=1) as live:
        job = live.patient("a", slots=1)
        folder = live.home / "jobs" / job / "checkpoints"
        count = paused_and_damaged(live, job)
        for _ in range(2):  # resuming changes nothing by itself
            assert live.run("resume", job).returncode == 0
            held = live.until(job, lambda job: job["phase"] == "paused" and "damaged" in job["reason"])
        assert held["failures"] == 0
        for words in (("explain", job), ("show", job)):
            told = " ".join(live.run(*words).stdout.split())
            assert f"geminid resume {job} --from-scratch" in told, (words, told)
        assert len(list(folder.glob("*.damaged"))) == count

        assert live.run("resume", job, "--from-scratch").returncode == 0
        live.until(job, lambda job: job["phase"] == "running" and job["samples"] > 0)
        refused = live.run("resume", job, "--from-scratch")
        assert refused.returncode != 0
        assert "only a paused job can begin from the beginning" in refused.stderr
        assert len(list((folder / "set-aside-1").iterdir())) == count

        intact = live.home / "intact"
        paused_and_damaged(live, job, intact)
        assert live.run("resume", job).returncode == 0
        live.until(job, lambda job: job["phase"] == "paused" and "damaged" in job["reason"])
        shutil.copy(intact, folder / "checkpoint-00000099.safetensors")
        assert live.run("resume", job).returncode == 0
        live.hurry(job, "a")
        assert "from its last checkpoint" in " ".join(live.run("show", job).stdout.split())


def test_a_job_whose_checkpoints_are_gone_is_held_until_somebody_decides():
    with Live(slots=1) as live:
        job = live.patient("a", slots=1)
        folder = live.home / "jobs" / job
        live.until(job, lambda job: job["durable_samples"] > 0)
        assert live.run("pause", job).returncode == 0
        live.until(job, lambda job: job["phase"] == "paused")
        kept = live.home / "kept"
        folder.rename(kept)
        assert live.run("resume", job).returncode == 0
        live.until(job, lambda job: job["phase"] == "paused" and "are gone" in job["reason"])
        told = " ".join(live.run("explain", job).stdout.split())
        assert f"geminid resume {job} --from-scratch" in told
        shutil.copytree(kept / "checkpoints", folder / "checkpoints")
        assert live.run("resume", job).returncode == 0
        again = live.until(job, lambda job: job["phase"] == "running" and job["samples"] > 0)
        assert any("from its last checkpoint" in line["text"] for line in again["story"])

        assert live.run("pause", job).returncode == 0
        live.until(job, lambda job: job["phase"] == "paused")
        shutil.rmtree(folder)
        assert live.run("resume", job, "--from-scratch").returncode == 0
        live.hurry(job, "a")


WRITE_FOR_EVER = """
import sys, itertools, pathlib, torch
from geminid.clock import Clock
from geminid.train.checkpoint import take_snapshot
from geminid.train.storage import CheckpointFolder
folder = CheckpointFolder(pathlib.Path(sys.argv[1]), Clock(), keep=2)
for step in itertools.count(int(sys.argv[2])):
    state = {"model": {"weight": torch.full((500_000,), float(step))}, "step": step}
    folder.save(take_snapshot(state, Clock(), step=step, samples=step))
"""


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    """A real process writes one checkpoint after the other and is killed at some moment, several times over."""
    for number in range(1, 4):
        first, before = 1000 * number, newest(tmp_path)
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), str(first)])
        until(lambda before=before: newest(tmp_path) > before, every_s=0.001)
        time.sleep(0.004 * number)
        writer.kill()
        writer.wait()
        found, path = CheckpointFolder(tmp_path, Clock(), keep=2).load()
        assert found["step"] >= first
        assert bool((found["model"]["weight"] == found["step"]).all())
        assert path.name == newest(tmp_path)
        assert not list(tmp_path.glob("*.damaged"))


def newest(folder):
    return max((path.name for path in folder.glob("*.safetensors")), default="")
