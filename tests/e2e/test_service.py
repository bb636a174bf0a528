"""The service with real processes: from `geminid up` to `geminid down`, and what must survive a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from live import Live, is_asking
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter

from geminid.cli.service import _Watcher
from geminid.serve import schemas
from geminid.serve.client import Client, ServiceError, address
from waiting import until


@pytest.fixture(scope="module")
def live():
    with Live(slots=2, grace_s=4.0) as running:
        yield running


def answer(url: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body of whatever a service answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as told:
            return told.status, told.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def test_the_mistakes_have_one_sentence_and_an_exit_code_each(live, tmp_path):
    again = live.run("up", "--detach")
    assert again.returncode == 1
    assert "a service runs on" in again.stderr
    assert "already" in again.stderr
    (tmp_path / "bad.yaml").write_text("name: x\ncommand: python train.py\n")
    bad = live.run("submit", tmp_path / "bad.yaml")
    assert bad.returncode == 2
    assert "there is no shell to split it" in bad.stderr
    missing = live.run("submit", "--", "python", "missing.py")
    assert missing.returncode == 2
    assert "missing.py" in missing.stderr
    elsewhere = {**live.env, "GEMINID_HOME": str(tmp_path)}
    live.env, before = elsewhere, live.env
    nobody = live.run("queue")
    live.env = before
    assert nobody.returncode == 3
    assert nobody.stderr.startswith("error: no service is running on")
    assert live.run("show", "j999").returncode == 5
    for nothing in ("", "j1/explain", ".."):
        unnamed = live.run("show", nothing)
        assert unnamed.returncode == 2
        assert "is not a name" in unnamed.stderr
    job = live.submit("sleep", "1000")
    several = live.run("cancel", "j998", job, "j999")
    assert several.returncode == 5
    assert "j998" in several.stderr
    assert "j999" in several.stderr
    assert several.stdout.startswith(f"{job} is ")
    both = live.run("wait", "j999", job)
    assert both.returncode == 5
    assert f"{job} cancelled" in both.stdout
    assert live.run("events", "--job", "j999").returncode == 5
    rigid = live.run("submit", "--min-slots", 1, "--max-slots", 2, "--", "sleep", "1")
    assert rigid.returncode == 2
    assert "max_slots is 2, but must be 1, as min_slots: sleep runs no Python script" in rigid.stderr
    live.env = {**live.env, "GEMINID_TOKEN": "gmd_secret\nmore"}
    broken = live.run("queue")
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: GEMINID_TOKEN has characters that no token has")
    assert "secret" not in broken.stderr + broken.stdout
    live.env = {**live.env, "GEMINID_HOME": str(tmp_path / ("x" * 100))}
    long = live.run("up", "--slots", 1)
    live.env = before
    assert long.returncode == 1
    assert "set GEMINID_HOME to a shorter one" in long.stderr


def test_elastic_jobs_and_plain_commands_run_to_their_end(live):
    first = live.counting("a", "--samples", 200, "--epochs", 12, "--max-batch", 64, name="first")
    second = live.counting("b", "--samples", 200, "--epochs", 12, "--max-batch", 64, name="second")
    submitted = live.run("submit", "--name", "hello", "--env", "WORD=secret", "--", "sh", "-c", 'echo "word is $WORD"')
    plain = submitted.stdout.split()[1]
    said = "echo $GEMINID_ADDRESSES $GEMINID_NODE_RANK $GEMINID_SLOT_COUNT $MASTER_ADDR $MASTER_PORT"
    where = live.submit("sh", "-c", said, min_slots=2, max_slots=2)
    failing = live.submit("sh", "-c", "exit 3", max_retries=0)
    waited = live.run("wait", first, second, plain, "--timeout", 90)
    assert waited.returncode == 0, waited.stderr + live.run("status").stdout + live.run("show", first).stdout
    assert live.exactly_once("a", 200, 12)
    assert live.exactly_once("b", 200, 12)
    assert live.run("logs", plain).stdout == "word is secret\n"
    assert live.run("wait", where, "--timeout", 60).returncode == 0
    *named, port = live.run("logs", where).stdout.split()
    assert (named, port.isdigit()) == (["127.0.0.1", "0", "2", "127.0.0.1"], True)
    assert live.run("wait", failing, "--timeout", 60).returncode == 1
    told = live.job(failing)
    assert (told["phase"], told["reason"]) == ("failed", "it ended with exit code 3")
    assert "secret" not in str(live.job(plain)) + str(live.json("events", "--limit", 1000))
    shown = live.run("show", first).stdout
    assert "training on 1 slot" in shown
    assert "succeeded" in shown
    assert "ratio nan" in shown  # whoever diverges must not look healthy
    assert live.job(first)["metrics"]["ratio"] == "nan"
    assert {job["id"] for job in live.json("queue", "--all")} >= {first, second, plain, failing}
    newest = live.run("queue", "--all", "--limit", 1).stdout
    assert failing in newest
    assert f"more are not shown: --limit {len(live.json('queue', '--all'))} shows all" in newest
    assert len(live.json("queue", "--state", "succeeded", "--limit", 1)) == 1
    assert sum(row["gpu_hours"] for row in live.json("usage")) > 0


def test_only_those_with_a_token_get_in_and_only_to_their_own(live):
    url = live.client.url
    for _ in range(20):
        assert answer(f"{url}/api/v1/jobs", {"Authorization": "Bearer nonsense"})[0] == 401
    for headers in ({}, {"Authorization": "Bearer nonsense"}):
        assert answer(f"{url}/api/v1/jobs", headers)[0] == 401
    token = (live.home / "token").read_text().strip()
    assert stat.S_IMODE((live.home / "token").stat().st_mode) == 0o600
    for name, value in (("Host", "evil.example"), ("Origin", "http://evil.example")):
        assert answer(f"{url}/api/v1/jobs", {"Authorization": f"Bearer {token}", name: value})[0] == 403
    job = live.submit("sleep", "60")
    made = live.run("token", "ann").stdout.strip()
    ann = Client(url, made)
    live.env["GEMINID_TOKEN"] = made
    refused = live.run("token", "ann", "--role", "admin")
    del live.env["GEMINID_TOKEN"]
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "the token in GEMINID_TOKEN is that of ann, who is no admin" in refused.stderr
    with pytest.raises(ServiceError, match=r"belongs to .*, and only") as refused:
        ann.post(f"jobs/{job}/cancel")
    assert refused.value.code == 4
    with pytest.raises(ServiceError, match="only an admin"):
        ann.post("nodes/local/drain")
    with pytest.raises(ServiceError, match=r"and only .* and admins may read its logs") as refused:
        list(ann.frames(f"jobs/{job}/logs"))
    assert refused.value.code == 4
    assert [row["id"] for row in ann.get("jobs")] == [job]  # everybody sees the queue
    shown = ann.get(f"jobs/{job}")
    assert shown["spec"]["name"] == "test"
    told = [shown["spec"], *(event["spec"] for event in ann.get("events", job=job) if "spec" in event)]
    assert not [spec for spec in told if {"command", "working_dir", "env"} & set(spec)]
    assert ann.get("snapshot")["jobs"][-1]["state"]["spec"]["command"] == ["hidden"]
    live.env["GEMINID_TOKEN"] = made
    assert "only" in live.run("show", job).stdout
    del live.env["GEMINID_TOKEN"]
    assert live.job(job)["spec"]["command"] == ["sleep", "60"]
    mine = ann.post("jobs", {"name": "mine", "command": ["true"], "owner": "bob"})
    assert mine["owner"] == "ann"
    assert ann.get(f"jobs/{mine['id']}")["spec"]["command"] == ["true"]
    assert not b"".join(piece for _, _, piece in ann.frames(f"jobs/{mine['id']}/logs"))
    assert live.json("status")["pid"] == live.pid
    expired = Client(url, live.run("token", "bob", "--days", "0").stdout.strip())
    with pytest.raises(ServiceError, match="a valid token is needed"):
        expired.get("jobs")
    assert live.client.post(f"jobs/{job}/cancel")["wish"] == "cancel"
    assert live.over(job)["phase"] == "cancelled"
    noted = [entry.get("text", "") for entry in live.json("events", "--limit", 1000)]
    assert sum("401 for nobody" in text for text in noted) == 10
    assert sum("403 for ann" in text for text in noted) == 3  # whatever nobody does
    assert all(text in (live.home / "service.log").read_text() for text in noted if "403 for ann" in text)


def test_job_files_metrics_and_the_description_of_the_interface(live, tmp_path):
    (tmp_path / "job.yaml").write_text("name: filed\ncommand: [sh, -c, pwd]\nslots: 2\nqueue: night\n")
    submitted = live.json("submit", tmp_path / "job.yaml", "--priority", 7)
    assert (submitted["name"], submitted["queue"], submitted["priority"], submitted["max_slots"]) == (
        "filed",
        "night",
        7,
        2,
    )
    assert live.over(submitted["id"])["phase"] == "succeeded"
    assert live.run("logs", submitted["id"]).stdout == f"{tmp_path}\n"
    dry = live.json("submit", tmp_path / "job.yaml", "--dry-run")
    assert dry["dry_run"]
    assert dry["finish_s"][0] <= dry["finish_s"][1]
    headers = {"Authorization": f"Bearer {(live.home / 'token').read_text().strip()}"}
    metrics = answer(f"{live.client.url}/metrics", headers)[1]
    samples = {sample.name: sample.value for one in text_string_to_metric_families(metrics) for sample in one.samples}
    assert 'geminid_jobs{phase="succeeded"}' in metrics
    assert {name for name in samples if name.endswith("_seconds_count")} == {
        "geminid_decision_seconds_count",
        "geminid_wait_seconds_count",
    }
    assert min(samples["geminid_decision_seconds_count"], samples["geminid_wait_seconds_count"]) > 0
    assert samples["geminid_decisions_total"] == samples["geminid_decision_seconds_count"]
    described = live.client.get("openapi.json")
    assert described["security"] == [{"token": []}]
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert {"/api/v1/jobs", "/api/v1/jobs/{job_id}/explain", "/api/v1/nodes"} <= set(described["paths"])
    (tmp_path / "bad.py").write_text("import sys\nprint(sys.executable)\nraise ValueError('the data is gone')\n")
    (tmp_path / "python.yaml").write_text("name: bad\ncommand: [python, bad.py]\nmax_retries: 0\n")
    failed = live.over(live.json("submit", tmp_path / "python.yaml")["id"])
    assert (failed["last_lines"][0], failed["last_lines"][-1]) == (sys.executable, "ValueError: the data is gone")
    assert "ValueError: the data is gone" in live.run("show", failed["id"]).stdout
    live.client.put("quotas/queue/night", slots=4)
    live.client.post("jobs", {"name": "waits", "command": ["sleep", "60"], "slots": 2})
    kinds = {"Job": "jobs", "Node": "nodes", "QuotaLine": "quotas", "Usage": "usage", "Event": "events"}
    answers = {name: live.client.get(path)[0] for name, path in kinds.items()} | {
        "JobDetails": live.client.get(f"jobs/{submitted['id']}"),
        "Explained": live.json("explain", live.client.get("jobs")[0]["id"]),
        "StoryLine": live.client.get(f"jobs/{submitted['id']}/story")[0],
        "Status": live.client.get("status"),
        "Snapshot": live.client.get("snapshot"),
        "DryRun": dry,
    }
    for name, told in answers.items():  # what is answered is what is described
        model = getattr(schemas, name)
        TypeAdapter(model).validate_python(told)
        assert name == "Event" or set(told) == set(get_type_hints(model))
        assert set(described["components"]["schemas"][name]["properties"]) == set(get_type_hints(model))
    live.client.put("quotas/queue/night")
    for job in live.client.get("jobs"):
        live.client.post(f"jobs/{job['id']}/cancel")


def test_what_is_typed_goes_before_what_the_file_says_and_environments_add_up(live, tmp_path):
    text = "name: filed\ncommand: [sh, -c, 'echo $A $B $C']\nmin_slots: 1\nmax_slots: 2\nenv: {A: file, B: file}\n"
    (tmp_path / "job.yaml").write_text(text)
    live.env["C"] = "mine"
    told = live.json("submit", tmp_path / "job.yaml", "--slots", 1, "--env", "B=typed", "--env", "C")
    assert (told["min_slots"], told["max_slots"]) == (1, 1)
    live.over(told["id"])
    assert live.run("logs", told["id"]).stdout == "file typed mine\n"
    missing = live.run("submit", "--env", "NOBODY_HAS_THIS", "--", "true")
    assert missing.returncode == 2
    assert "NOBODY_HAS_THIS" in missing.stderr
    counting = live.submit("sh", "-c", "seq 100; printf end", slots=1)
    live.over(counting)
    assert live.run("logs", "--tail", 3, counting).stdout == "99\n100\nend"
    kinds = {entry["kind"] for entry in live.json("events", "--job", counting)}
    assert {"JobSubmitted", "Planned", "JobStarting", "JobEnded"} <= kinds
    assert live.json("events", "--after", (1 << 63) - 1) == []
    again = live.json("replay", "--policy", "fifo")
    assert again["jobs"][0].keys() >= {"slots", "decided_then", "decided_now"}
    assert f"Record {again['seq']}" in live.run("replay").stdout
    with pytest.raises(ServiceError, match="after is") as refused:
        live.client.get("events", after=10**30)
    assert refused.value.code == 2


def test_all_that_a_plain_job_file_can_say_has_a_flag(live, tmp_path):
    (tmp_path / "there.py").write_text("print('here')")
    flags = {"--deadline": "12h", "--gpu-time-budget": "2h", "--min-runtime": "1m", "--checkpoint-interval": "5m"}
    words = [word for pair in flags.items() for word in pair]
    types = ("--gpu-type", "cpu", "--working-dir", tmp_path)
    dry = live.run("submit", "--dry-run", "--json", *words, *types, "--", "python", "there.py")
    told = json.loads(dry.stdout)["spec"]
    assert told["working_dir"] == str(tmp_path)
    assert told["gpu_types"] == {"any_of": ["cpu"]}
    for name in flags:
        assert told[name.removeprefix("--").replace("-", "_")]
    assert live.run("submit", "--dry-run", "--", "python", "there.py").returncode == 2
    bad = live.run("submit", "--dry-run", "--deadline", "soon", "--", "true")
    assert (bad.returncode, "deadline is 'soon'" in bad.stderr) == (2, True)
    sent = " ".join(live.run("submit", "--", "true").stdout.split())
    again = "if it fails, it is started again from the beginning, up to 3 times (--retries 0 turns that off)"
    assert again in sent
    assert "started again" not in live.run("submit", "--retries", 0, "--", "true").stdout


def test_hostile_requests_are_refused(live):
    bad: list[dict[str, object]] = [
        {"name": "x", "command": ["true"], "working_dir": "../../etc"},
        {"name": "../x", "command": ["true"]},
        {"name": "x", "command": "true; rm -rf /"},
        {"name": "x", "command": ["no-such-program"]},
        {"name": "x", "command": ["true"], "min_slots": 99},
        {"name": "x", "command": ["true"], "surprise": 1},
    ]
    for body in bad:
        with pytest.raises(ServiceError) as refused:
            live.client.post("jobs", body)
        assert refused.value.code == 2
    with pytest.raises(ServiceError) as refused:
        live.client.post("jobs", {"name": "x", "command": ["true"] * 600_000})
    assert "at most" in str(refused.value)
    for name in ("a\x1b[2J", "x" * 300, "-"):
        with pytest.raises(ServiceError) as refused:
            live.client.put(address("quotas", "owner", name), slots=1)
        assert refused.value.code == 2
    assert answer(f"{live.client.url}/api/v1/status", {"Host": "["})[0] == 403
    assert answer(f"{live.client.url}/api/v1/a%1b%5b2Jb", {})[0] == 401
    assert "\x1b" not in "".join(record.get("text", "") for record in live.client.get("events"))
    key = {"Idempotency-Key": "once"}
    body = {"name": "x", "command": ["true"]}
    once = live.client.post("jobs", body, headers=key)["id"]
    assert live.client.post("jobs", body, headers=key)["id"] == once
    with pytest.raises(ServiceError, match=f"was used for another job before, {once}"):
        live.client.post("jobs", {**body, "priority": 1}, headers=key)


def test_pausing_resuming_cordoning_and_ignoring_sigterm(live):
    deaf = live.submit("sh", "-c", "trap '' TERM; while true; do sleep 0.1; done")
    (slot,) = live.until(deaf, lambda job: job["phase"] == "running")["placement"]["local"]
    assert live.run("cordon", f"local/{1 - slot}").returncode == 0
    job = live.counting("p", "--samples", 200, "--epochs", 30, "--max-batch", 32)
    told = live.json("explain", job)
    assert "held by 1 other job" in told["explanation"] or "in service" in told["explanation"]
    assert any("1 of 2 slots are not in service" in number for number in told["numbers"])
    assert "is being cancelled: its processes are ending" in live.run("cancel", deaf).stdout
    assert live.client.get(f"jobs/{deaf}/explain")["explanation"].startswith("it is being cancelled")
    told = live.client.get(f"jobs/{job}/explain")  # not by a command: its processes are there for as long as the grace
    assert any(f"still hold 1 more: {deaf}" in number for number in told["numbers"])
    assert live.over(deaf)["phase"] == "cancelled"
    live.until(job, lambda job: job["samples"] > 100)
    live.client.post(f"slots/local/{1 - slot}/uncordon")
    for _ in range(3):  # it is to go on before it has stopped
        live.client.post(f"jobs/{job}/pause")
        live.client.post(f"jobs/{job}/resume")
        live.until(job, lambda job: job["phase"] == "running")
    live.client.post(f"jobs/{job}/pause")
    paused = live.until(job, lambda job: job["phase"] == "paused")
    assert paused["slots"] == 0
    assert live.run("set", job, "--priority", 5).returncode == 0
    assert live.run("resume", job).returncode == 0
    done = live.over(job)
    assert (done["phase"], done["priority"], done["failures"]) == ("succeeded", 5, 0)
    assert live.exactly_once("p", 200, 30)


def test_a_what_if_writes_its_report_and_knows_what_is_in_service(live, tmp_path):
    job = live.submit("sleep", "1000")
    live.until(job, lambda told: told["phase"] == "running")
    files = ("--json", tmp_path / "told.json", "--report", tmp_path / "page.html", "--no-timings", "--rescale", "live")
    done = live.run("simulate", "--from-live", "--policy", "fifo,las", *files)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert [(run["policy"], run["jobs"], run["wall_s"]) for run in told] == [("fifo", 1, None), ("las", 1, None)]
    assert "stints" not in told[0]["per_job"][0]
    page = (tmp_path / "page.html").read_text()
    assert 'id="timelines-1"' in page
    assert "the live jobs" in page
    live.client.post("nodes/local/drain", yes=True)
    idle = live.run("simulate", "--from-live")
    assert idle.returncode == 1
    assert idle.stderr.startswith("error: nothing of the cluster is in service")
    assert len(idle.stderr.splitlines()) == 1
    elsewhere = live.run("simulate", "--from-live", "--cluster", "cpu:1x3")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert "1 jobs on 3 slots" in elsewhere.stdout
    live.client.post("nodes/local/undrain")
    live.client.post(f"jobs/{job}/cancel")
    live.over(job)


def test_while_the_service_waits_for_a_deaf_job_every_command_says_so():
    with Live(slots=1, grace_s=12.0) as live:
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
        once = "open('deaf', 'x')"  # whoever ends the service after this test does not wait, too
        job_id = live.submit(sys.executable, "-c", f"{once}; {deaf}; time.sleep(600)", max_retries=0)
        live.until(job_id, lambda job: job["phase"] == "running")
        until(lambda: "deaf" in live.run("logs", job_id).stdout)
        command = [sys.executable, "-m", "geminid", "down"]
        with subprocess.Popen(command, env=live.env, stderr=subprocess.PIPE, text=True) as down:
            until(lambda: live.client.get("status")["awaited"])
            assert live.json("status")["awaited"] == [job_id]
            up = live.run("up", "--detach", *live.options)
            assert (up.returncode, "is ending, and waits for its jobs" in up.stderr) == (1, True)
            with pytest.raises(ServiceError, match=f"the service is ending: it waits for {job_id} to stop") as told:
                live.submit("true")
            assert told.value.code == 3
            assert [job["phase"] for job in live.client.get("jobs")] == ["stopping"]
            assert live.client.get(f"jobs/{job_id}/explain")["explanation"]
            assert live.run("down").returncode == 0  # waits, too
            assert down.stderr.read() == f"waiting for {job_id} to stop\n"
        assert down.returncode == 0
        assert live.run("queue").returncode == 3
        live.up()


def test_a_service_in_the_foreground_says_where_it_is_and_that_it_is_ending(tmp_path):
    live, out, error = Live(1), tmp_path / "out", tmp_path / "error"
    command = [sys.executable, "-m", "geminid", "up", *live.options, "--json"]
    with out.open("wb") as printed, error.open("wb") as told:
        service = subprocess.Popen(command, env=live.env, stdout=printed, stderr=told)
    try:
        until(lambda: out.read_text().endswith("}\n"))
        place = json.loads(out.read_text())
        assert (place["pid"], place["url"]) == (service.pid, live.client.get("status")["url"])
        job = live.submit("sleep", "600")
        live.until(job, lambda job: job["phase"] == "running")
        service.send_signal(signal.SIGINT)
        assert service.wait(60) == 0
        assert error.read_text() == f"the service is ending: it waits for {job} to stop\n"
    finally:
        service.kill()
        live.__exit__(None)


def test_what_a_service_in_the_foreground_prints(capsys):
    place = {"url": "http://127.0.0.1:1", "pid": 7}
    _Watcher(as_json=True).started(place)
    assert json.loads(capsys.readouterr().out) == place
    watcher = _Watcher(as_json=False)
    watcher.started(place)
    watcher.ending(["j1", "j2"], detach=True)
    watcher.ending([], detach=False)
    printed = capsys.readouterr()
    assert printed.out == "service at http://127.0.0.1:1 (process 7); Ctrl-C or `geminid down` ends it\n"
    assert printed.err == "the service is ending: j1, j2 go on without it\nthe service is ending\n"


def test_whoever_follows_or_waits_is_told_in_one_sentence_that_the_service_is_gone():
    with Live(2) as live:
        job = live.submit("sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        live.until(job, lambda job: job["phase"] == "running")
        words = [[sys.executable, "-m", "geminid", *command] for command in (("logs", "-f", job), ("wait", job))]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {**live.env, "GEMINID_AWAY": "1"}
        with (
            subprocess.Popen(words[0], env=env, **pipes) as logs,
            subprocess.Popen(words[1], env=env, **pipes) as wait,
        ):
            assert logs.stdout is not None
            assert logs.stdout.readline() == "ready\n"
            is_asking(wait)
            live.kill()
            for process in (logs, wait):
                _, told = process.communicate(timeout=60)
                assert process.returncode == 3
                away, gone = told.splitlines()
                assert away == "the service is away; waiting for 1 s for it to come back"
                assert gone.startswith("error: ")
        live.up()  # the command was left alone, and has not succeeded by ending well when it is told to
        assert live.run("pause", job).returncode == 0
        live.until(job, lambda job: job["phase"] == "paused")
        live.run("resume", job)
        live.until(job, lambda job: job["phase"] == "running")
        live.run("cancel", job)
        assert live.over(job)["phase"] == "cancelled"


def test_whoever_follows_goes_on_when_the_service_is_back():
    with Live(2) as live:
        script = "i=0; while [ ! -e done ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo $i lines"
        job = live.submit("sh", "-c", script)
        follow = [sys.executable, "-m", "geminid", "logs", "-f", job]
        live.until(job, lambda job: job["phase"] == "running")
        wait = [sys.executable, "-m", "geminid", "wait", job]
        with (
            subprocess.Popen(follow, env=live.env, stdout=subprocess.PIPE, text=True) as logs,
            subprocess.Popen(wait, env=live.env, stdout=subprocess.PIPE, text=True) as waiting,
        ):
            assert logs.stdout is not None
            first = [logs.stdout.readline() for _ in range(20)]
            is_asking(waiting)
            live.kill()
            live.up()
            time.sleep(1.0)
            live.run("down", "--detach")
            live.up()
            (live.home / "done").touch()
            rest = logs.stdout.read()
            assert logs.wait(timeout=60) == 0
            assert waiting.wait(timeout=60) == 0
        *lines, last = "".join([*first, rest]).splitlines()
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
        assert last == f"{len(lines)} lines"


def test_jobs_outlive_the_service_and_nothing_runs_twice():
    with Live(slots=2) as live:
        elastic = live.patient("a", slots=1)
        plain = live.submit("sh", "-c", "echo begin >> log; sleep 6; echo end >> log", name="plain")
        live.until(elastic, lambda job: job["samples"] > 100)
        pids = live.worker_pids(elastic)
        live.kill()
        time.sleep(1.0)
        for pid in pids:
            os.kill(pid, 0)  # still there
        live.up()
        assert live.worker_pids(elastic) == pids
        assert live.over(plain)["phase"] == "succeeded"
        assert (live.home / "log").read_text() == "begin\nend\n"
        before = live.until(elastic, lambda job: job["durable_samples"] > 0)
        live.kill()
        for pid in live.worker_pids(elastic):
            os.kill(pid, signal.SIGKILL)
        live.up()
        after = live.job(elastic)
        assert after["progress_samples"] <= before["progress_samples"] + 200 * 40
        done = live.hurry(elastic, "a")
        assert done["failures"] == 0
        assert any("gone when the service came back" in line["text"] for line in done["story"])


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def test_a_service_with_fewer_slots_takes_over_whoever_fits_and_queues_the_others():
    with Live(slots=3) as live:
        elastic = live.patient("a", "--max-batch", 64, min_slots=2, max_slots=2)
        live.until(elastic, lambda job: job["phase"] == "running" and job["samples"] > 50)
        command = "echo begin >> log; until [ -e hurry ]; do sleep 0.1; done; echo end >> log"
        plain = live.submit("sh", "-c", command, name="plain")
        live.until(plain, lambda job: job["phase"] == "running" and job["placement"] == {"local": [2]})
        wide = live.submit("true", name="wide", min_slots=3, max_slots=3)
        live.client.patch(f"jobs/{elastic}", {"min_slots": 1})
        pids = live.worker_pids(elastic)

        live.kill()
        live.options[1] = "1"
        live.up()
        live.until(elastic, lambda job: sum(map(lives, pids)) == 1)  # it goes on from memory
        queued = live.until(plain, lambda job: job["phase"] == "pending")
        assert "slot local/2 is gone" in queued["reason"]
        (note,) = [note["text"] for note in live.json("status")["notes"] if note["level"] == "warning"]
        assert "slots local/1, local/2;" in note
        logged = [json.loads(line) for line in (live.home / "service.log").read_text().splitlines()]
        for kind in ("JobSubmitted", "Planned", "JobStarting", "JobFormed", "JobStopping", "JobEnded"):
            assert any(line.get("event") == kind and line["level"] == "info" for line in logged), kind
        assert any(line.get("job") == plain and line["text"].startswith(f"{plain}: stopping") for line in logged)

        # What needs more slots than there are says so, and is not counted among those that can start.
        waiting = {job["id"]: job["position"] for job in live.json("queue") if job["phase"] == "pending"}
        assert waiting == {plain: 1, wide: None}
        told = live.json("explain", wide)
        assert told["explanation"] == "it needs 3 slots, and there is 1: it cannot start"
        assert any("offer 2 more" in hint for hint in told["suggestions"])
        assert any("submit it for at most 1" in hint for hint in told["suggestions"])

        done = live.hurry(elastic, "a")
        assert done["failures"] == 0
        assert any("planned: 2 → 1 slots (slot local/1 is gone" in line["text"] for line in done["story"])
        assert live.over(plain)["phase"] == "succeeded"
        assert (live.home / "log").read_text() == "begin\nbegin\nend\n"


def test_an_elastic_job_that_ends_while_the_service_is_away_is_over_and_not_run_again():
    with Live(1) as live:
        job = live.counting("a", "--samples", 50, "--epochs", 2, "--conclude", 4)
        live.until(job, lambda job: job["samples"] == 100)
        live.kill()
        until(lambda: list((live.home / "jobs" / job).glob("*.ended")))
        written = (live.home / "a").stat().st_mtime_ns
        live.up()
        assert live.over(job)["phase"] == "succeeded"
        assert (live.home / "a").stat().st_mtime_ns == written
        assert live.exactly_once("a", 50, 2)


def test_tries_of_a_command_are_apart_in_its_log_and_a_spent_budget_is_told(live):
    failing = live.submit("sh", "-c", "printf once; exit 3", max_retries=1)
    spent = live.submit("sleep", "60", gpu_time_budget="1s")
    assert live.over(failing)["failures"] == 2
    first, between, second = live.run("logs", failing).stdout.splitlines()
    assert (first, second) == ("once", "once")
    assert between.startswith("==> started again at 2")
    waited = live.run("wait", spent)
    why = "its gpu_time_budget of 1 slot-seconds is used up"
    assert waited.returncode == 6
    assert why in waited.stdout
    assert why in live.run("explain", spent).stdout
    assert why in live.run("show", spent).stdout
    assert "cancelled (over budget)" in live.run("queue", "--all").stdout.replace("\n", " ")
    told = live.job(spent)
    assert (told["over_budget"], told["reason"], told["budget_gpu_s"]) == (True, why, 1.0)


def test_free_slots_are_given_at_once_wide_jobs_have_their_turn_and_a_cordon_shrinks_live():
    """Under a policy that looks at the whole only every hour: a job that waits for that is waited for in vain."""
    with Live(2, "geminid:gap=3600,refresh=3600,fill=true", 10.0, "--patience", "1") as live:
        narrow = [live.submit("sleep", "0.8", slots=1) for _ in range(6)]
        wide = live.submit("sleep", "0.1", slots=2)
        narrow += [live.submit("sleep", "0.8", slots=1) for _ in range(6)]
        started = {job_id: live.over(job_id)["started_at_s"] for job_id in (*narrow, wide)}
        assert started[wide] < max(started[job_id] for job_id in narrow[6:])
        elastic = live.patient("a", "--max-batch", 32, min_slots=2, max_slots=2)
        # Its size can change once its script has called geminid.init().
        live.until(elastic, lambda job: (job["elastic"], job["slots"], job["phase"]) == (True, 2, "running"))
        live.client.patch(f"jobs/{elastic}", {"min_slots": 1})
        live.run("cordon", "local/1")
        job = live.until(elastic, lambda job: (job["slots"], job["phase"]) == (1, "running"))
        assert not [line for line in job["story"] if line["text"].startswith("stopping")]
        assert any("slot local/1 is cordoned" in line["text"] for line in job["story"])
        live.hurry(elastic, "a")
