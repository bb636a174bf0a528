"""A real service in a folder of its own, driven through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from geminid.serve.client import Client, ServiceError
from geminid.serve.livejob import LiveJob
from geminid.serve.records import JobFormed, JobWished, Noted, Planned
from geminid.serve.state import ServiceState
from geminid.serve.store import last_entries
from waiting import until

SCRIPTS = Path(__file__).parent / "scripts"


class Live:
    """One service at a time, in one home."""

    def __init__(
        self, slots: int = 2, policy: str = "geminid:gap=1,refresh=5", grace_s: float = 10.0, *options: str
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gmd-"))
        self.options = ["--slots", str(slots), "--policy", policy, "--grace", str(grace_s), *options]
        self.env = {**os.environ, "GEMINID_HOME": str(self.home)}
        for name in ("GEMINID_URL", "GEMINID_TOKEN"):
            self.env.pop(name, None)

    def __enter__(self) -> Live:
        self.up()
        return self

    def __exit__(self, *problem: object) -> None:
        with contextlib.suppress(Exception):
            for job in self.client.get("jobs"):
                self.client.post(f"jobs/{job['id']}/cancel")
            self.run("down")
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.pid, signal.SIGKILL)
        if not any(problem):
            check_invariants(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    def up(self) -> None:
        done = self.run("up", "--detach", *self.options)
        assert done.returncode == 0, done.stderr

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """A command, as a user would give it."""
        command = [sys.executable, "-m", "geminid", *map(str, words)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def json(self, *words: object):
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def client(self) -> Client:
        return Client.here(self.home)

    @property
    def pid(self) -> int:
        return int(json.loads((self.home / "service.json").read_text())["pid"])

    def kill(self) -> None:
        """SIGKILL, and nothing else."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        stat = Path(f"/proc/{pid}/stat")
        until(lambda: not stat.exists() or " Z " in stat.read_text())
        (self.home / "service.json").unlink()

    def submit(self, *command: str, **fields: object) -> str:
        body = {"name": "test", "command": list(command), "working_dir": str(self.home), **fields}
        return str(self.client.post("jobs", body)["id"])

    def counting(self, out: str, *args: object, script: str = "counting.py", **fields: object) -> str:
        return self.submit(sys.executable, str(SCRIPTS / script), str(self.home / out), *map(str, args), **fields)

    def patient(self, out: str, *args: object, epochs: int = 40, **fields: object) -> str:
        """A job over 200 samples that takes its time, with a checkpoint every second, until ``hurry``."""
        slow = ("--samples", 200, "--epochs", epochs, "--every", 1, "--pause", 0.05, "--until", self.home / "hurry")
        return self.counting(out, *slow, *args, **fields)

    def hurry(self, job_id: str, out: str, *, epochs: int = 40) -> dict:
        """Have a patient job come to its end, where everything must have been right."""
        (self.home / "hurry").touch()
        job = self.over(job_id)
        assert job["phase"] == "succeeded", job
        assert self.exactly_once(out, 200, epochs)
        return job

    def job(self, job_id: str) -> dict:
        return dict(self.client.get(f"jobs/{job_id}"))

    def until(self, job_id: str, reached, timeout_s: float = 180.0) -> dict:
        """Wait until a job is such."""
        seen: list[dict] = []

        def look() -> bool:
            seen[:] = [self.job(job_id)]
            return bool(reached(seen[0]))

        until(look, timeout_s, every_s=0.1, seen=lambda: seen)
        return seen[0]

    def over(self, job_id: str, timeout_s: float = 240.0) -> dict:
        return self.until(job_id, lambda job: job["finished_at_s"] is not None, timeout_s)

    def worker_pids(self, job_id: str) -> set[int]:
        saved = json.loads((self.home / "jobs" / job_id / "supervisor.json").read_text())
        return {entry["pid"] for entry in saved["workers"].values()}

    def job_pids(self, job_id: str) -> set[int]:
        """The processes in which a job runs its command, not those that watch over them."""
        folder = self.home / "jobs" / job_id
        if (folder / "plain.json").exists():
            shim = json.loads((folder / "plain.json").read_text())["pid"]
            found = subprocess.run(["pgrep", "-P", str(shim), "python"], capture_output=True, text=True, check=False)
            return {int(pid) for pid in found.stdout.split()}
        return self.worker_pids(job_id)

    def exactly_once(self, name: str, samples: int, epochs: int) -> bool:
        """Whether every sample took part in every epoch, once."""
        least, most, total, *_ = map(float, (self.home / name).read_text().split())
        return least == most == -epochs and total == -samples * epochs


def check_invariants(home: Path) -> ServiceState:
    """Replay the whole log, and look after every record whether all is as it must be; every test ends with it.

    What plans must keep to is counted here anew, not by what the service itself keeps bad plans away with; and where
    the service had to do that, there is an alert.
    """
    state = ServiceState()
    for entry in last_entries(home, -1, 0):
        assert not (isinstance(entry.record, Noted) and entry.record.level == "alert"), entry.record.text
        before, used = dict(state.jobs), _used(state)
        state.apply(entry.seq, entry.at_s, entry.record)
        state.check()
        if isinstance(entry.record, Planned):
            for name, slots in _used(state).items():
                limit = state.quotas.get(name)
                kept = limit is None or name in state.borrowers or slots <= max(limit, used[name])
                assert kept, f"{slots} slots are planned for {name}, whose quota is {limit}"
            for job_id in entry.record.targets:
                new = _planned(state.jobs[job_id]) - _planned(before[job_id])
                assert not [slot for slot in new if slot in state.cordoned or slot[0] in state.drained], (job_id, new)
        for job_id, job in before.items():
            after = state.jobs[job_id]
            assert not job.phase.is_terminal or after == job, "an end is final"
            damaged = isinstance(entry.record, JobFormed) and (entry.record.samples or 0) < job.saved_samples
            again = isinstance(entry.record, JobWished) and entry.record.from_scratch
            if not (again or (damaged and entry.record.restored and entry.record.job_id == job_id)):
                assert after.state.progress_samples >= min(job.state.progress_samples, job.state.durable_samples)
            if after.target is not None and after.target != job.target:  # also where nodes have gone
                most, slots = after.spec.max_slots, after.target.num_slots
                assert after.spec.min_slots <= slots and (most is None or slots <= most)  # noqa: PT018
    return state


def _planned(job: LiveJob) -> set[tuple[str, int]]:
    return set(job.target.slots()) if job.target else set()


def _used(state: ServiceState) -> Counter[tuple[str, str]]:
    """How many slots are planned for every owner and every queue."""
    used: Counter[tuple[str, str]] = Counter()
    for job in state.jobs.values():
        for name in (("owner", job.spec.owner or ""), ("queue", job.spec.queue)):
            used[name] += len(_planned(job))
    return used


def is_asking(process: subprocess.Popen[str]) -> None:
    """Wait until a command has a connection to the service, and keeps it: it waits for its answer."""
    looks: list[bool] = []

    def has_had_one_for_a_while() -> bool:
        assert process.poll() is None
        opened = []
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                opened.append(os.readlink(entry))
        looks.append(any(name.startswith("socket:") for name in opened))
        return len(looks) >= 5 and all(looks[-5:])

    until(has_had_one_for_a_while, every_s=0.1)


__all__ = ["SCRIPTS", "Live", "ServiceError", "check_invariants", "is_asking"]
