"""A log that is damaged, copied, put back or of an earlier version: what an operator sees, with real jobs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from pathlib import Path

from live import Live

sys.path.insert(0, str(Path(__file__).parents[1]))

from oldhome import PHASES, make_old_home


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def flip_in_the_middle(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def test_a_home_of_the_version_before_goes_on_with_its_jobs():
    """What was running goes on from its checkpoint, what waited waits, and new jobs get new numbers."""
    live = Live(slots=5, policy="fifo")  # for all three that want some: the widest has waited longest by now
    make_old_home(live.home)
    with live:
        phases = {job_id: live.job(job_id)["phase"] for job_id in PHASES}
        assert {name: phases[name] for name in ("j1", "j2", "j3", "j4")} == {
            name: PHASES[name] for name in ("j1", "j2", "j3", "j4")
        }
        elastic = live.until("j5", lambda job: job["phase"] == "running" and job["samples"] > 640)
        assert any("from its last checkpoint" in line["text"] for line in elastic["story"])
        for job_id in ("j6", "j7"):
            live.until(job_id, lambda job: job["phase"] == "running")
            live.client.post(f"jobs/{job_id}/cancel")
        assert live.submit("true") == "j8"
        assert live.over("j8")["phase"] == "succeeded"
        (live.home / "hurry").touch()
        live.client.post("jobs/j4/resume")
        for job_id, name in (("j5", "elastic"), ("j4", "paused")):
            assert live.over(job_id)["phase"] == "succeeded"
            assert live.exactly_once(f"{name}.out", 40, 200)


def test_a_damaged_log_is_refused_while_jobs_run_on_and_recover_continues():
    with Live(slots=2) as live:
        first = live.submit("true")
        live.over(first)
        second = live.submit("sleep", "600", slots=1)
        elastic = live.patient("a", min_slots=1, max_slots=1)
        live.until(elastic, lambda job: job["samples"] > 0)
        live.until(second, lambda job: job["phase"] == "running")
        pids = {*live.worker_pids(elastic), json.loads((live.home / "jobs" / second / "plain.json").read_text())["pid"]}
        live.kill()
        flip_in_the_middle(live.home / "geminid.db-wal")
        refused = live.run("up", "--detach", *live.options)
        assert refused.returncode == 1
        told = refused.stderr
        assert "are lost" in told
        assert "`geminid recover`" in told
        assert all(map(alive, pids)), "nothing is ended before somebody has decided"
        seen = json.loads(live.run("recover", "--dry-run", "--json").stdout)
        assert first in seen["jobs"]
        assert all(map(alive, pids))
        done = live.run("recover", "--yes")
        assert done.returncode == 0, done.stderr
        (aside,) = (live.home / "aside").iterdir()
        assert {"geminid.db", "geminid.db-wal", "geminid.seq"} <= {path.name for path in aside.iterdir()}
        assert {path.name for path in (aside / "jobs").glob("*")} == set(seen["unknown_folders"])
        live.up()
        number = int(live.submit("true").removeprefix("j"))
        assert number > int(elastic.removeprefix("j"))
        assert any("was recovered" in note["text"] for note in live.client.get("status")["notes"])


def test_a_backup_of_a_running_service_is_restored_elsewhere(tmp_path):
    copy = tmp_path / "copy.tar"
    # Not below tmp_path, which can be too long for the sockets in a home.
    with tempfile.TemporaryDirectory(prefix="gmd-") as short, Live(slots=2, policy="fifo") as live:
        other = Path(short) / "other"
        done = live.submit("true", name="done")
        live.over(done)
        running = live.submit("sleep", "600", slots=1, name="running")
        live.until(running, lambda job: job["phase"] == "running")
        paused = live.patient("a", min_slots=1, max_slots=1)
        live.until(paused, lambda job: job["samples"] > 200)
        live.client.post(f"jobs/{paused}/pause")
        live.until(paused, lambda job: job["phase"] == "paused")
        made = live.run("backup", copy, "--checkpoints")
        assert made.returncode == 0, made.stderr
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert "is there already" in live.run("backup", copy).stderr
        assert "a service runs on" in live.run("restore", copy, "--replace").stderr
        later = live.submit("true", name="later")
        live.over(later)
        live.run("down")
        before = live.home
        live.home, live.env = other, {**live.env, "GEMINID_HOME": str(other)}
        try:
            restored = live.json("restore", copy)
            assert restored["jobs"] == 3
            assert live.run("restore", copy).returncode == 1
            live.up()
            phases = {job_id: live.job(job_id)["phase"] for job_id in (done, paused)}
            assert phases == {done: "succeeded", paused: "paused"}
            live.until(running, lambda job: job["phase"] == "running")
            (before / "hurry").touch()
            live.client.post(f"jobs/{paused}/resume")  # from the checkpoint that was in the copy
            story = live.over(paused)["story"]
            assert any("from its last checkpoint" in line["text"] for line in story)
            live.client.post(f"jobs/{running}/cancel")
            live.run("down")
        finally:
            live.home, live.env = before, {**live.env, "GEMINID_HOME": str(before)}
        replaced = live.json("restore", copy, "--replace")
        assert Path(replaced["aside"], "geminid.db").exists()
        assert Path(replaced["aside"], "jobs", later).is_dir()
        live.up()
        assert int(live.submit("true").removeprefix("j")) == int(later.removeprefix("j")) + 1


def test_a_job_started_after_a_backup_runs_on_when_that_is_restored(tmp_path):
    """Neither a restore nor files that were put back by hand end a job, or begin it from zero, without a word."""
    copy = tmp_path / "copy.tar"
    with Live(slots=1, policy="fifo") as live:
        blocker = live.submit("sleep", "600", slots=1)
        live.until(blocker, lambda job: job["phase"] == "running")
        job = live.patient("a", slots=1)
        assert live.run("backup", copy).returncode == 0
        live.client.post(f"jobs/{blocker}/cancel")
        saved = live.until(job, lambda job: job["durable_samples"] > 200)["durable_samples"]
        pids = live.worker_pids(job)
        live.kill()
        with tarfile.open(copy) as tar:  # as if somebody had put the files back by hand
            for path in live.home.glob("geminid.db-*"):
                path.unlink()
            for name in ("geminid.db", "geminid.seq"):
                (live.home / name).write_bytes(tar.extractfile(name).read())
        refused = live.run("up", "--detach", *live.options)
        assert refused.returncode == 1
        assert f"{job} (runs, has checkpoints)" in refused.stderr
        assert "`geminid recover`" in refused.stderr
        seen = json.loads(live.run("recover", "--dry-run", "--json").stdout)
        assert (seen["jobs_ahead"], seen["taken_over"], seen["running"]) == ([], [job], [])
        assert all(map(alive, pids)), "nothing is ended before somebody has decided"
        done = live.run("restore", copy, "--replace")
        assert done.returncode == 0, done.stderr
        assert f"{job}: started after the log was written; their processes run on" in done.stdout
        assert all(map(alive, pids)), "nor after that, if they can be taken over"
        live.up()
        live.client.post(f"jobs/{blocker}/cancel")
        again = live.until(job, lambda job: job["samples"] > saved)
        assert live.worker_pids(job) == pids
        assert any("they are taken over" in line["text"] for line in again["story"]), again["story"]
        live.hurry(job, "a")


def test_a_backup_that_is_damaged_or_something_else_changes_nothing(tmp_path):
    with Live(slots=1, policy="fifo") as live:
        live.over(live.submit("true"))
        assert live.run("backup", tmp_path / "copy.tar").returncode == 0
    env = {**os.environ, "GEMINID_HOME": str(tmp_path / "other")}
    live.env = env
    for name, content in (("cut", 10_240), ("flipped", None), ("text", 0)):
        raw = bytearray((tmp_path / "copy.tar").read_bytes())
        if content is None:
            raw[len(raw) // 2] ^= 1
        bad = tmp_path / name
        bad.write_bytes(b"no copy" * 1000 if content == 0 else raw[:content])
        done = live.run("restore", bad)
        assert done.returncode == 1, name
        assert "damaged" in done.stderr
        assert not [path for path in (tmp_path / "other").iterdir() if path.name != "service.lock"]
    shutil.rmtree(tmp_path / "other")
