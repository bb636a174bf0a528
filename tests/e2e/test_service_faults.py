"""What the service must survive, with real processes; the table in docs/faults.md says which fault is tested where.

After every fault the invariants hold (``live.check_invariants``, with which every service here ends), and every job
completes with each sample taken exactly once an epoch.
To be quick, downtimes are short here and not every write point is tried with real jobs (``test_service_loop.py`` tries
them all with an executor that pretends): ``GEMINID_TEST_DOWNTIME_S=60`` and ``GEMINID_TEST_WRITE_POINTS=20`` try more.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from live import SCRIPTS, Live, ServiceError, check_invariants

from geminid.serve.client import Client
from geminid.serve.store import Store
from waiting import until

DOWNTIME_S = float(os.environ.get("GEMINID_TEST_DOWNTIME_S", "2"))

#: Write points at which a service with real jobs is killed, one service after the other: in its first four batches, or
#: at all up to a number.
THOROUGH = int(os.environ.get("GEMINID_TEST_WRITE_POINTS", "0"))
WRITE_POINTS = range(1, THOROUGH + 1) if THOROUGH else (1, 5, 9, 12)


#: How long the jobs are that live through these.
EPOCHS = round(40 + 4 * DOWNTIME_S + 8 * THOROUGH)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def pid_of(live: Live, job_id: str) -> int:
    """The process of a plain command, once it has said who it is."""
    process = live.home / "jobs" / job_id / "plain.json"
    until(lambda: "pid" in json.loads(process.read_text()))
    return int(json.loads(process.read_text())["pid"])


def test_a_service_killed_at_every_write_point_loses_nothing_and_runs_nothing_twice():
    """Row 1, and 8: one service after the other dies at its n-th write point, while jobs run and others are submitted.

    Whoever gets no answer asks again, with the same key.
    """
    with Live(slots=2) as live:
        elastic = live.patient("a", "--max-batch", 32, epochs=EPOCHS)
        live.client.put("quotas/queue/narrow", slots=1)
        live.until(elastic, lambda job: job["samples"] > 0)
        live.kill()
        wanted: dict[str, str | None] = {}
        for n in WRITE_POINTS:
            command = [sys.executable, str(SCRIPTS / "mortal_service.py"), "2", str(n)]
            with (live.home / "mortal.out").open("ab") as out:
                service = subprocess.Popen(command, env=live.env, stdout=out, stderr=out, start_new_session=True)
            wanted[f"n{n}"] = None

            def ends_while_jobs_are_submitted(service: subprocess.Popen[bytes] = service) -> bool:
                for key in [key for key, job_id in wanted.items() if job_id is None]:
                    with contextlib.suppress(ServiceError, OSError):
                        wanted[key] = submit_once(live, key)
                return service.poll() is not None

            until(ends_while_jobs_are_submitted)
            assert service.wait(10) == -signal.SIGKILL, (live.home / "mortal.out").read_text()[-2000:]
            (live.home / "service.json").unlink(missing_ok=True)
        deaths = Counter(line.split(" ", 1)[1] for line in (live.home / "deaths").read_text().splitlines())
        assert sum(deaths.values()) == len(WRITE_POINTS)
        assert set(deaths) >= {"begin", "commit", "committed"}
        live.up()
        for key in wanted:
            wanted[key] = submit_once(live, key)
        jobs = {key: live.over(str(job_id)) for key, job_id in wanted.items()}
        assert {job["phase"] for job in jobs.values()} == {"succeeded"}
        assert len({job["id"] for job in jobs.values()}) == len(wanted)
        assert sorted((live.home / "ran").read_text().split()) == sorted(wanted)  # each exactly once
        done = live.hurry(elastic, "a", epochs=EPOCHS)
        assert done["failures"] == 0, "\n".join(line["text"] for line in done["story"])
        assert len(check_invariants(live.home).jobs) == len(wanted) + 1


def test_a_service_killed_while_it_starts_a_worker_leaves_no_stray():
    """Rows 1 and 4: one service after the other dies at a moment of a worker's start; of the first, and of one more.

    Nothing runs twice at once, and whatever nobody has written down never runs.
    """
    with Live(slots=2) as live:
        live.kill()
        first, more, job = ("asked", "written", "begun"), ("asked", "begun"), ""
        for moments in (first, more):
            for moment in moments:
                command = [sys.executable, str(SCRIPTS / "mortal_starter.py"), "2", moment]
                with (live.home / "service.out").open("ab") as out:
                    service = subprocess.Popen(command, env=live.env, stdout=out, stderr=out, start_new_session=True)
                if not job:
                    until(lambda: (live.home / "service.json").exists())
                    job = live.patient("a", "--max-batch", 16, script="witness.py", min_slots=1, max_slots=1)
                assert service.wait(60) == -signal.SIGKILL, (live.home / "service.out").read_text()[-2000:]
                (live.home / "service.json").unlink(missing_ok=True)
            live.up()
            if moments is first:
                live.until(job, lambda job: job["samples"] > 0)
                live.client.patch(f"jobs/{job}", {"min_slots": 2, "max_slots": 2})
                live.kill()
        live.until(job, lambda job: (job["slots"], job["phase"]) == (2, "running"))
        assert (live.home / "deaths").read_text().split() == [*first, *more]
        begun = {int(line.split()[0]) for line in (live.home / "begun").read_text().splitlines()}
        until(lambda: {pid for pid in begun if not gone(pid)} == live.worker_pids(job))
        assert live.hurry(job, "a")["failures"] == 0
        assert all(map(gone, begun))
        assert not (live.home / "twice").exists()
        assert (live.home / "service.out").read_text().count("refused") < 10


def submit_once(live: Live, key: str) -> str:
    body = {
        "name": key,
        "command": ["sh", "-c", f"echo {key} >> ran"],
        "working_dir": str(live.home),
        "queue": "narrow",
    }
    return str(live.client.post("jobs", body, headers={"Idempotency-Key": key})["id"])


def test_workers_train_on_while_the_service_is_away_and_are_taken_over():
    """Rows 2 and 4: down for a while, nobody restarts; then everything dies, and what nobody wants is ended."""
    with Live(slots=2) as live:
        elastic = live.patient("a", "--max-batch", 16, epochs=EPOCHS, min_slots=2)
        live.until(elastic, lambda job: job["samples"] > 100 and (job["slots"], job["phase"]) == (2, "running"))
        pids, before = live.worker_pids(elastic), live.job(elastic)
        live.kill()
        time.sleep(DOWNTIME_S)
        live.up()
        after = live.until(elastic, lambda job: job["samples"] > before["samples"])
        assert live.worker_pids(elastic) == pids
        assert after["failures"] == 0
        story = [line["text"] for line in after["story"]]
        assert sum(line.startswith("starting") for line in story) == 1
        orphan = live.submit("sleep", "1000", slots=1, max_retries=0, priority=1000)
        live.client.patch(f"jobs/{elastic}", {"min_slots": 1, "max_slots": 1})
        live.until(orphan, lambda job: job["phase"] == "running")
        pid = pid_of(live, orphan)
        live.kill()
        shutil.copytree(live.home / "jobs" / orphan, live.home / "jobs" / "j0")  # of a job that the log does not know
        live.up()
        until(lambda: gone(pid))
        live.hurry(elastic, "a", epochs=EPOCHS)


def test_crashes_are_named_counted_and_given_up():
    """Row 11: a segmentation fault, a kill as by the system's memory keeper, an exit code; of commands and workers."""
    with Live(2, "geminid:gap=1,refresh=5", 2.0, "--slot-memory", "3GiB") as live:
        segfault = live.submit("sh", "-c", "kill -SEGV $$", max_retries=0)
        memory = live.submit("sh", "-c", "kill -KILL $$", max_retries=1)
        script = live.home / "crash.py"
        script.write_text("import ctypes\nimport geminid\ngeminid.init()\nctypes.string_at(0)\n")
        worker = live.submit(sys.executable, str(script), max_retries=1)
        assert live.over(segfault)["reason"] == "it was ended by SIGSEGV"
        told = live.over(memory)
        assert (told["phase"], told["failures"]) == ("failed", 2)
        assert told["reason"] == "it was killed (SIGKILL)"
        told = live.over(worker)
        assert told["phase"] == "failed"
        assert "SIGSEGV" in told["reason"]
        script.write_text("import geminid\ngeminid.init()\nbytearray(8 << 30)\n")
        greedy = [
            live.submit(sys.executable, "-c", "bytearray(8 << 30)", max_retries=0),
            live.submit(sys.executable, str(script), max_retries=0),
        ]
        for job in greedy:
            told, log = live.over(job), live.run("logs", job).stdout
            assert (told["phase"], "MemoryError" in log) == ("failed", True), f"{told['story']}\n{log}"
        assert live.over(live.submit(sys.executable, "-c", "bytearray(1 << 30)"))["phase"] == "succeeded"


def test_a_job_whose_workers_cannot_reach_each_other_stays_as_it_is_and_says_why():
    """With a network interface that there is none of; one that needs two slots waits, or if it never ran fails."""
    with Live(2, "geminid:gap=1,refresh=5,fill=true") as live:
        nowhere = {"GLOO_SOCKET_IFNAME": "no-such-interface"}
        job_id = live.patient("out", env=nowhere, min_slots=1, max_slots=2)
        live.until(job_id, lambda job: "stays on 1 slot for 30 s" in json.dumps(job["story"]))
        (story,) = [line["text"] for line in live.job(job_id)["story"] if "stays on" in line["text"]]
        assert "could not go on to" in story
        assert "no-such-interface" in story
        assert "tried again in 30 s" in " ".join(live.run("status").stdout.split())
        job = live.hurry(job_id, "out")
        assert (job["slots"], job["failures"]) == (0, 0)
        (live.home / "hurry").unlink()
        grows = live.patient("grows", env=nowhere, min_slots=1, max_slots=1)
        live.until(grows, lambda job: job["samples"] > 0)
        live.client.patch(f"jobs/{grows}", {"min_slots": 2, "max_slots": 2})
        waits = live.until(grows, lambda job: job["phase"] == "pending")
        assert waits["failures"] == 0
        assert "it waits for 30 s: it could not go on to" in json.dumps(waits["story"])
        wide = live.counting("wide", env=nowhere, min_slots=2, max_slots=2, max_retries=0)
        assert "could not work together" in live.over(wide)["reason"]


def test_flapping_slots_and_sizes_do_not_make_a_storm_of_resizes():
    """Row 18: a slot comes and goes many times a second; a job that has changed is left alone for a while."""
    with Live(slots=2) as live:
        job = live.patient("a", "--max-batch", 16, min_slots=2)
        before = live.until(job, lambda job: job["slots"] == 2 and job["samples"] > 0)["rescales"]
        live.client.patch(f"jobs/{job}", {"min_slots": 1})
        for number in range(40):
            live.client.post(f"slots/local/1/{'uncordon' if number % 2 else 'cordon'}")
            live.client.patch(f"jobs/{job}", {"max_slots": 1 + number % 2, "priority": number})
        assert live.json("nodes")[0]["cordoned"] == []
        live.client.patch(f"jobs/{job}", {"max_slots": 2})
        live.until(job, lambda job: (job["slots"], job["phase"]) == (2, "running"))
        assert live.hurry(job, "a")["rescales"] - before < 20  # of at least 40 occasions


class Hostile(Exception):
    """Would run a command if it were unpickled."""

    def __init__(self, witness: Path) -> None:
        super().__init__()
        self.witness = witness

    def __reduce__(self):
        return (os.system, (f"touch {self.witness}",))


def test_pickles_are_never_unpickled_and_metacharacters_mean_nothing():
    """Rows 23 and 26: on the workers' line, in the place of a checkpoint, as a request; and there is no shell."""
    with Live(slots=2) as live:
        witness = live.home / "pwned"
        bomb = pickle.dumps(Hostile(witness))
        job = live.patient("a", slots=1)
        folder = live.home / "jobs" / job
        until((folder / "control").exists)
        payloads = (bomb, bomb + b"\n", b'{"kind":"hello","token":"guess","worker":"w1","pid":1}\n' + bomb)
        with contextlib.ExitStack() as lines:  # at once: whoever does not end its first line is heard for a while
            strangers = [lines.enter_context(socket.socket(socket.AF_UNIX)) for _ in payloads]
            for stranger, payload in zip(strangers, payloads, strict=True):
                stranger.connect(str(folder / "control"))
                with contextlib.suppress(OSError):
                    stranger.sendall(payload)
            live.until(job, lambda job: job["durable_samples"] > 0)
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    assert stranger.recv(100) in (b"", b'{"kind":"refused","job":"%s"}\n' % job.encode())
        request = urllib.request.Request(f"{live.client.url}/api/v1/jobs", bomb)
        request.add_header("Authorization", f"Bearer {(live.home / 'token').read_text().strip()}")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as answer:
            assert answer.code == 422
        live.client.post(f"jobs/{job}/pause")
        live.until(job, lambda job: job["phase"] == "paused")
        newest = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
        newest.write_bytes(bomb)
        live.client.post(f"jobs/{job}/resume")
        words = f"$(touch {witness}) `touch {witness}` ; touch {witness} && | > {witness}"
        quoted = live.submit("echo", words)
        assert live.over(quoted)["phase"] == "succeeded"
        assert live.run("logs", quoted).stdout == words + "\n"
        deep, huge, link = live.home / "deep.yaml", live.home / "huge.yaml", live.home / "link.yaml"
        deep.write_text("name: x\ncommand: " + "[" * 5000 + "]" * 5000 + "\n")
        huge.write_text("name: x\ncommand: [true]\n#" + "x" * (2 << 20))
        link.symlink_to("/etc/shadow")
        for file in (deep, huge, link):
            done = live.run("submit", file)
            assert (done.returncode, done.stderr.count("Traceback")) == (2, 0), done.stderr
        live.hurry(job, "a")
        assert not witness.exists()


def test_secrets_are_nowhere_to_be_read():
    """Rows 24 and 27: not in answers, events, metrics, logs or what-ifs; and a token that is revoked opens nothing.

    No process of a job inherits a token or an open file of the service, either.
    """
    live = Live(slots=2)
    live.env["GEMINID_TOKEN"] = "hunter2-of-whoever-starts-the-service"
    with live:
        del live.env["GEMINID_TOKEN"]
        patient = live.patient("b", "--max-batch", 16, slots=1)
        sleeping = live.submit("sleep", "1000", slots=1)
        live.until(patient, lambda job: job["samples"] > 0)
        live.until(sleeping, lambda job: job["phase"] == "running")
        for pid in (*live.worker_pids(patient), pid_of(live, sleeping)):
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
            opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [name for name in opened if name.startswith(str(live.home)) and "/jobs/" not in name], opened
        live.hurry(patient, "b")
        live.client.post(f"jobs/{sleeping}/cancel")
        plain = live.submit("sh", "-c", "true", env={"API_KEY": "hunter2-plain"})
        elastic = live.counting("a", "--samples", 50, "--epochs", 2, env={"API_KEY": "hunter2-elastic"})
        with pytest.raises(ServiceError) as refused:
            live.submit("true", env={"API_KEY": "hunter2-refused", "bad name": "hunter2-too"})
        told = [str(refused.value)]
        for job in (plain, elastic):
            live.over(job)
            told += [json.dumps(live.client.get(f"jobs/{job}{path}")) for path in ("", "/story", "/explain")]
            told.append(live.run("show", job).stdout)
        asked = ("jobs", "events", "snapshot", "status", "usage", "nodes")
        told += [json.dumps(live.client.get(path)) for path in asked]
        headers = {"Authorization": f"Bearer {(live.home / 'token').read_text().strip()}"}
        with urllib.request.urlopen(urllib.request.Request(f"{live.client.url}/metrics", headers=headers)) as metrics:
            told.append(metrics.read().decode())
        told += [(live.home / name).read_text() for name in ("service.log", "service.out", "service.json")]
        assert not [text for text in told if "hunter2" in text or "digest" in text]
        assert (live.home / "geminid.db").stat().st_mode & 0o077 == 0
        ann = Client(live.client.url, live.run("token", "ann").stdout.strip())
        ann.verify()
        assert ann.get("jobs") == []
        live.run("token", "ann", "--revoke")
        with pytest.raises(ServiceError, match="a valid token is needed"):
            ann.get("jobs")
        for text in ("made a token for ann with role user", "a token of ann was revoked"):
            until(lambda text=text: text in json.dumps(live.client.get("events", limit=1000)))
        assert [row["revoked_at_s"] is None for row in live.json("token")] == [True, False]


def refusal(live: Live) -> ServiceError | None:
    """Why nothing can be submitted."""
    try:
        live.submit("true")
    except ServiceError as trouble:
        return trouble
    return None


@pytest.mark.needs_mounts
def test_a_full_disk_is_told_and_everything_goes_on_when_there_is_room_again():
    """Row 17, on a file system of its own of 6 MiB that is filled and emptied."""
    live = Live(slots=2)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", live.home], check=True)
    try:
        with live:
            job = live.patient("a", "--talk", slots=2)
            live.until(job, lambda job: job["samples"] > 50)
            workers = live.worker_pids(job)
            ballast = live.home / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            until(lambda: refusal(live) is not None)
            assert "the disk is full" in str(refusal(live))
            assert "the disk is full" in live.json("status")["trouble"]
            assert live.json("queue")  # reading goes on
            os.kill(max(workers), signal.SIGKILL)  # its place is taken by another, though nobody can write that down
            time.sleep(5.0)
            ballast.unlink()
            until(lambda: live.worker_pids(job) > {min(workers)})
            until(lambda: not live.json("status")["trouble"])
            other = live.submit("true")  # when there are slots for it
            ended = live.hurry(job, "a")
            assert ended["failures"] == 0
            assert live.over(other)["phase"] == "succeeded"
            live.run("down")
            with Store(live.home) as store:
                assert store.load().jobs[job].phase == "succeeded"
    finally:
        subprocess.run(["umount", "-l", live.home], capture_output=True, check=False)
        shutil.rmtree(live.home, ignore_errors=True)
