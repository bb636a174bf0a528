"""What operators set, and what users may do with it: queues, priorities, names, drains, ports and retries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import Live

from geminid.serve.client import Client, ServiceError


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(slots=2, grace_s=2.0) as running:
        yield running


@pytest.fixture(scope="module")
def ann(live) -> Client:
    return Client(live.client.url, live.run("token", "ann").stdout.strip())


def as_ann(live: Live, ann: Client, *words: object) -> tuple[int, str]:
    """A command of ann's: its exit code, and what it prints."""
    live.env["GEMINID_TOKEN"] = ann._token
    try:
        done = live.run(*words)
    finally:
        del live.env["GEMINID_TOKEN"]
    return done.returncode, done.stdout + done.stderr


def test_users_may_lower_their_priority_and_raise_it_as_far_as_their_queue_allows(live, ann, tmp_path):
    (tmp_path / "urgent.yaml").write_text("name: urgent\ncommand: [sleep, '60']\npriority: 1\n")
    asked = (["--priority", 1, "--", "true"], ["--priority", 1, "--dry-run", "--", "true"], [tmp_path / "urgent.yaml"])
    for words in asked:
        code, told = as_ann(live, ann, "submit", *words)
        assert code == 4
        assert "priority 1 is above 0, the highest that users of queue default may choose: an admin can raise" in told
    assert not [job for job in live.json("queue", "--all") if job["owner"] == "ann"]
    job = ann.post("jobs", {"name": "low", "command": ["sleep", "60"], "priority": -5})["id"]
    assert as_ann(live, ann, "set", job, "--priority", 0)[0] == 0
    code, told = as_ann(live, ann, "set", job, "--priority", 7)
    assert code == 4
    assert "`geminid queue-priority default 7`" in told
    assert live.job(job)["priority"] == 0
    assert as_ann(live, ann, "queue-priority", "default", 7)[0] == 4  # that is for admins
    assert live.json("queue-priority", "default", 7) == [
        {"queue": "default", "max_priority": 7, "members": [], "open": True}
    ]
    assert as_ann(live, ann, "set", job, "--priority", 7)[0] == 0
    live.run("queue-priority", "default", 0)
    assert live.job(job)["priority"] == 7  # what there is stays
    assert as_ann(live, ann, "set", job, "--priority", 6)[0] == 0  # and can be lowered
    assert as_ann(live, ann, "set", job, "--priority", 7)[0] == 4
    assert live.run("set", job, "--priority", 900).returncode == 0  # admins are not limited
    live.client.post(f"jobs/{job}/cancel")
    assert live.json("queue-priority") == []


def test_a_queue_with_members_takes_their_jobs_only(live, ann):
    body = {"name": "x", "command": ["true"], "queue": "research"}
    ann.post("jobs", body)
    told = live.run("queue-members", "research", "--add", "bob", "--add", "eve").stdout
    assert "bob, eve" in told
    for words in (["--", "true"], ["--dry-run", "--", "true"]):
        code, told = as_ann(live, ann, "submit", "--queue", "research", *words)
        assert code == 4
        assert "queue research takes jobs of its members only, and ann is not one: an admin can" in told
    live.client.post("jobs", body)  # admins may
    assert as_ann(live, ann, "queue-members", "research", "--add", "ann")[0] == 4
    assert live.json("queue-members", "research", "--add", "ann", "--remove", "eve") == [
        {"queue": "research", "max_priority": 0, "members": ["ann", "bob"], "open": False}
    ]
    ann.post("jobs", body)
    assert live.run("queue-members", "research", "--remove", "eve").returncode == 5
    for words in (["queue-members", "re search", "--add", "bob"], ["queue-members", "research", "--add", "b b"]):
        wrong = live.run(*words)
        assert wrong.returncode == 2
        assert "must be a name" in wrong.stderr
    told = live.run("queue-members", "research", "--remove", "ann", "--remove", "bob").stdout
    assert "admins only" in told  # it stays closed until somebody opens it
    assert as_ann(live, ann, "submit", "--queue", "research", "--", "true")[0] == 4
    assert live.run("queue-members", "research", "--open", "--add", "ann").returncode == 2
    assert "everybody" in live.run("queue-members", "research", "--open").stdout
    ann.post("jobs", body)


def test_where_queues_are_managed_users_cannot_make_up_one_to_escape_its_quota(live, ann):
    unheard = {"name": "x", "command": ["true"], "queue": "zzz"}
    ann.post("jobs", unheard)  # no queue is managed
    live.run("quota", "queue", "default", 1)
    live.run("queue-members", "research", "--open")
    try:
        for words in (["--", "true"], ["--dry-run", "--", "true"]):
            code, told = as_ann(live, ann, "submit", "--queue", "zzz", *words)
            assert code == 4
            assert "there is no queue zzz, only default, research: an admin can add it with" in " ".join(told.split())
        ann.post("jobs", unheard | {"queue": "default"})
        live.client.post("jobs", unheard)  # admins may
        live.run("queue-members", "zzz", "--open")
        ann.post("jobs", unheard)
    finally:
        live.run("quota", "queue", "default", "none")
    ann.post("jobs", unheard | {"queue": "yyy"})


def test_a_name_means_the_one_job_of_that_name_that_is_not_over(live, ann):
    over = live.submit("echo", "first", name="twice")
    assert live.run("wait", "twice").stdout.startswith(f"{over} succeeded")
    assert live.run("logs", "twice").stdout == "first\n"
    job = live.submit("sleep", "1000", name="twice")
    assert live.json("show", "twice")["id"] == job
    assert live.json("explain", "twice")["id"] == job
    assert live.run("set", "twice", "--priority", 3).stdout == f"changed {job}\n"
    assert {entry["job_id"] for entry in live.json("events", "--job", "twice") if "job_id" in entry} == {job}
    assert live.run("pause", "twice").stdout.startswith(f"{job} is ")
    assert live.run("resume", "twice").stdout.startswith(f"{job} is ")
    theirs = ann.post("jobs", {"name": "twice", "command": ["sleep", "1000"]})["id"]
    assert ann.get("jobs/twice")["id"] == theirs  # everybody's own go first
    assert live.json("show", "twice")["id"] == job
    third = live.submit("sleep", "1000", name="twice")
    for command in ("show", "logs", "explain", "wait", "cancel", "pause", "resume"):
        told = live.run(command, "twice")
        assert told.returncode == 2
        assert f"twice is the name of 2 jobs, so give an id: {third} (" in told.stderr
        assert f", {job} (" in told.stderr
    assert live.run("set", "twice", "--priority", 9).returncode == 2
    assert live.run("events", "--job", "twice").returncode == 2
    assert [live.job(one)["priority"] for one in (job, third)] == [3, 0]
    for name in (job, "j99999"):  # an identifier is always that job
        posing = live.run("submit", "--name", name, "--", "true")
        assert posing.returncode == 2
        assert f"name is '{name}', but must not look like a job's identifier" in posing.stderr
    assert live.run("cancel", job).stdout.startswith(f"{job} is ")
    assert live.over(job)["phase"] == "cancelled"
    assert live.run("cancel", "j99999").returncode == 5
    assert live.run("show", "no-such-name").returncode == 5
    for one in (third, theirs):
        live.client.post(f"jobs/{one}/cancel")


def test_events_leave_progress_out_unless_all_are_asked_for(live):
    (live.home / "hurry").unlink(missing_ok=True)
    job = live.patient("events-out", name="talkative")
    reports = []
    live.until(job, lambda job: job["samples"] > 0)
    live.over(live.submit("true"))
    while not reports:
        reports = [entry for entry in live.json("events", "--all", "--limit", 1000) if entry["kind"] == "JobProgressed"]
    shown = live.json("events", "--limit", 5)
    assert len(shown) == 5
    assert "JobProgressed" not in {entry["kind"] for entry in shown}
    assert "JobProgressed" not in live.run("events", "--job", job).stdout
    told, last = live.client.get_counted("events", count="X-Last-Seq", after=shown[-1]["seq"], progress=False)
    assert last >= max(entry["seq"] for entry in [reports[-1], *told])  # whoever follows does not read them again
    live.hurry(job, "events-out")


def test_a_drain_lists_what_it_stops_and_needs_a_yes(live):
    plain = live.submit("sleep", "1000", name="plain")
    live.until(plain, lambda job: job["phase"] == "running")
    (live.home / "hurry").unlink(missing_ok=True)
    moving = live.patient("drain-out", max_slots=1, name="moving")
    live.until(moving, lambda job: job["phase"] == "running")
    refused = live.run("drain", "local")
    assert refused.returncode == 1
    assert f"draining local stops {plain} (" in refused.stderr
    assert "it starts again from its beginning when local is back: there are too few slots elsewhere" in refused.stderr
    assert "nothing was changed; confirm with --yes" in refused.stderr
    assert not live.json("nodes")[0]["drained"]
    with pytest.raises(ServiceError) as told:
        live.client.post("nodes/local/drain")
    assert told.value.status == 409
    cordoned = live.run("cordon", f"local/{live.job(plain)['placement']['local'][0]}")  # that stops nothing
    assert f"{plain} stays on it until it ends" in cordoned.stdout
    live.run("cordon", f"local/{live.job(plain)['placement']['local'][0]}", "--undo")
    assert live.job(plain)["phase"] == "running"
    done = live.run("drain", "local", "--yes")
    assert (
        done.stdout
        == f"local takes no more work; {plain} is stopped, to begin again; {moving} saves, and waits for slots\n"
    )
    live.until(plain, lambda job: job["slots"] == 0)
    live.until(moving, lambda job: job["slots"] == 0)
    assert live.run("drain", "local").returncode == 0  # nothing is left that could be stopped
    assert live.run("drain", "local", "--undo").returncode == 0
    live.client.post(f"jobs/{plain}/cancel")
    live.hurry(moving, "drain-out")


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_failing_command_runs_once_and_once_more_for_every_retry(live, retries):
    ran = live.home / f"ran-{retries}"
    sent = live.run("submit", "--retries", retries, "--", "sh", "-c", f"echo ran >> {ran}; exit 3")
    job = sent.stdout.split()[1]
    assert live.run("wait", job).returncode == 1
    assert ran.read_text() == "ran\n" * (1 + retries)
    assert live.job(job)["failures"] == 1 + retries


FAILING = """
import os, sys, torch, geminid
from torch.utils.data import DataLoader, TensorDataset
with open(sys.argv[1], "a") as file:
    file.write("ran\\n")
run = geminid.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=8)
model, optimizer, data = run.prepare(model, optimizer, data)
for epoch in run.epochs(3):
    for batch in data:
        raise SystemExit("a bug that every worker has")
"""


@pytest.mark.parametrize(("slots", "retries"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_a_bug_of_all_workers_is_one_failure_of_the_job(live, slots, retries):
    script = live.home / "failing.py"
    script.write_text(FAILING)
    ran = live.home / f"ran-{slots}-{retries}"
    size = {"min_slots": slots, "max_slots": slots}
    job = live.submit(sys.executable, str(script), str(ran), max_retries=retries, **size)
    told = live.over(job)
    assert (told["phase"], told["failures"]) == ("failed", 1 + retries)
    assert ran.read_text() == "ran\n" * slots * (1 + retries), told["story"]


def test_the_service_keeps_its_port_where_that_is_free():
    with Live(slots=1) as live:
        url = live.client.url
        assert live.run("down").returncode == 0
        live.up()
        assert live.client.url == url
        live.kill()
        live.up()
        assert live.client.url == url
        assert live.run("down").returncode == 0
        port = int(url.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            elsewhere = live.run("up", "--detach", *live.options)
            assert elsewhere.returncode == 0, elsewhere.stderr
            assert f"port {port}, where the last service was, cannot be used now" in elsewhere.stdout
            moved = live.client.url
            assert moved != url
            assert live.run("down").returncode == 0
            taken = live.run("up", "--detach", "--port", port, *live.options)
            assert taken.returncode == 1
            assert "cannot be listened at" in taken.stderr
        live.up()
        assert live.client.url == moved  # the last one counts


def refusal(home: Path, *words: str) -> str:
    """Why a service does not start on a home."""
    command = [sys.executable, "-m", "geminid", "up", "--slots", "1", *words]
    env = {**os.environ, "GEMINID_HOME": str(home)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_home_that_others_can_write_is_refused(tmp_path, mode, detach):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    assert f"(mode {mode:04o}): `chmod go-w {home}` first" in refusal(home, *detach)
    assert not list(home.iterdir())


@pytest.mark.parametrize("name", ["token", "tokens.json", "geminid.db"])
def test_secrets_that_others_can_read_are_refused(tmp_path, name):
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0o640)
    assert f"`chmod 600 {tmp_path / name}` first" in refusal(tmp_path, "--detach")


@pytest.mark.needs_root
def test_a_home_of_somebody_else_is_refused(tmp_path):
    os.chown(tmp_path, 12345, -1)
    assert "belongs to user 12345" in refusal(tmp_path, "--detach")
