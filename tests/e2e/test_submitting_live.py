"""Arrays, dependencies, time limits and retry rules, through the command line and from Python; also under SIGKILL."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from live import Live

import geminid
from geminid.serve.client import ServiceError
from receivers import http_receiver, smtp_receiver
from waiting import until

#: Says that it runs, and ends when a file tells it to.
ELEMENT = 'echo began >> "$0/ran_$GEMINID_ARRAY_INDEX"; until [ -e "$0/go_$GEMINID_ARRAY_INDEX" ]; do sleep 0.05; done'

GROUP = """
jobs:
  - name: report
    command: [sh, -c, 'cat "$0"/ran_* > "$0/report"', {home}]
    after: [sweep]
  - name: tidy
    command: ["true"]
    after: ["report:failed"]
  - name: sweep
    command: [sh, -c, '{element}', {home}]
    array: 3,5,7%1
    max_retries: 0
"""


def test_no_element_and_no_job_of_a_chain_is_lost_or_run_twice_when_the_service_is_killed():
    with Live(2, "fifo") as live:
        file = live.home / "group.yaml"
        file.write_text(GROUP.format(element=ELEMENT, home=live.home))
        report, tidy, sweep = (job["id"] for job in live.json("submit", file, "--key", "only-once"))
        for element in (3, 5, 7):
            live.kill()
            live.up()
            until(lambda element=element: (live.home / f"ran_{element}").exists())
            assert live.json("show", "report")["phase"] == "pending"
            (live.home / f"go_{element}").touch()
        live.kill()
        live.up()
        again = live.json("submit", file, "--key", "only-once")
        assert [job["id"] for job in again] == [report, tidy, sweep]
        done = live.run("wait", sweep, report, "--timeout", 60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert live.run("wait", tidy, "--timeout", 60).returncode == 1
        assert live.json("show", tidy)["reason"] == f"{report} must fail first, and it succeeded"
        assert [(live.home / f"ran_{element}").read_text() for element in (3, 5, 7)] == ["began\n"] * 3
        assert (live.home / "report").read_text() == "began\n" * 3


@pytest.fixture(scope="module")
def live():
    with Live(2, "fifo") as running:
        yield running


def test_ten_thousand_elements_are_one_line_and_are_cancelled_as_one(live):
    submitted = live.run("submit", "--array", "0-9999%2", "--name", "many", "--json", "--", "sleep", "1000")
    array = json.loads(submitted.stdout)["id"]
    until(lambda: live.json("show", "many")["array"]["running"] == 2)
    (listed,) = live.json("queue")
    assert (listed["id"], listed["phase"], listed["slots"], listed["array"]["total"]) == (array, "running", 2, 10_000)
    assert "running (2 of 10000)" in live.run("queue", "--wide").stdout
    assert len(live.json("queue", "--array", "many", "--all")) == 2  # the others are no jobs yet
    assert live.json("show", f"{array}_9999")["phase"] == "pending"
    assert live.run("cancel", f"{array}_9999").stdout.strip() == f"{array}_9999 is cancelled"
    assert "9997 not queued yet" in live.run("show", "many").stdout
    assert "not queued yet" in live.run("explain", "many").stdout
    live.run("cancel", "many")
    assert live.run("wait", array, "--timeout", 60).returncode == 1
    assert live.json("show", array)["array"]["cancelled"] == 10_000
    assert live.run("wait", f"{array}_5000").returncode == 1


def test_arrays_and_dependencies_from_python(live):
    cluster = geminid.connect(live.home)
    echo = ["sh", "-c", "echo element $GEMINID_ARRAY_INDEX"]
    array = cluster.submit(echo, array="1-3", name="echo", working_dir=live.home)
    after = cluster.submit(["true"], after=[array], name="after", working_dir=live.home)
    assert after.wait(60).state == "succeeded"
    assert array.wait(60).state == "succeeded"
    assert [job.id for job in array.elements()] == [f"{array.id}_{i}" for i in (1, 2, 3)]
    assert array.logs() == "element 1\nelement 2\nelement 3\n"
    assert cluster.job("echo_2").logs() == "element 2\n"
    printed = live.run("logs", "-f", "echo").stdout
    assert printed == "".join(f"==> {array.id}_{i} <==\nelement {i}\n" for i in (1, 2, 3))
    assert live.run("logs", "echo", "--download", live.home / "saved").returncode == 0
    assert (live.home / "saved" / f"{array.id}_2" / "out.log").read_text() == "element 2\n"
    for fields, why in (
        ({"after": ["nobody"]}, "there is no job nobody"),
        ({"after": ["echo:failed"]}, "can never be met"),
        ({"array": "1-"}, "must be numbers and ranges"),
    ):
        with pytest.raises(ServiceError, match=why):
            cluster.submit(["true"], **fields)
    cycle = live.home / "cycle.json"
    jobs = [{"name": one, "command": ["true"], "after": [other]} for one, other in (("a", "b"), ("b", "a"))]
    cycle.write_text(json.dumps({"jobs": jobs}))
    refused = live.run("submit", cycle)
    assert (refused.returncode, "a → b → a" in refused.stderr) == (2, True)


def test_time_limits_end_and_requeue_jobs_and_rules_give_failures_up(live):
    cluster = geminid.connect(live.home)
    ends = cluster.submit(["sleep", "1000"], time_limit="1s", working_dir=live.home)
    rule = [{"log": "no such*option", "then": "stop"}]
    fails = cluster.submit(["sh", "-c", "echo no such option; exit 2"], retry=rule, working_dir=live.home)
    assert fails.wait(60, check=False).state == "failed"
    assert "not tried again: a line with" in fails.reason
    assert fails.as_dict()["failures"] == 1
    assert live.run("wait", ends.id, "--timeout", 60).returncode == 6
    assert ends.refresh().reason == "its time limit of 1s is over"
    script = f'echo run >> "{live.home}/runs"; [ $(wc -l < "{live.home}/runs") -ge 2 ] || sleep 1000'
    again = cluster.submit(["sh", "-c", script], time_limit="1s", requeue=True, working_dir=live.home)
    again.wait(60)
    assert any("it is queued again" in line["text"] for line in again.history())


def test_notifications_arrive_by_mail_and_hook_although_the_first_attempt_fails(live):
    with http_receiver(statuses=(503,)) as (url, posted), smtp_receiver() as (port, mails):
        file = live.home / "notifications.yaml"
        file.touch(mode=0o600)
        channels = {
            "team": {"slack": url},
            "mail": {"smtp": f"127.0.0.1:{port}", "from": "g@here", "to": ["{owner}@here"]},
        }
        rules = [{"on": ["failure"], "to": ["team"]}]
        file.write_text(json.dumps({"channels": channels, "rules": rules, "for_jobs": ["mail"]}))
        cluster = geminid.connect(live.home)
        fails = cluster.submit(
            ["false"], name="breaks", max_retries=0, notify=["end", "failure"], working_dir=live.home
        )
        until(lambda: len(posted) >= 2 and mails)
        assert (
            posted[1][1]
            == posted[0][1]
            == {"text": f"geminid: {fails.id} (breaks) has failed: it ended with exit code 1"}
        )
        assert f"To: {fails.as_dict()['owner']}@here" in mails[0]
        assert "secret-path" not in (live.home / "service.log").read_text()
        file.unlink()


def test_top_shows_jobs_in_a_terminal_and_cancels_the_selected_one(live):
    job = geminid.connect(live.home).submit(["sleep", "1000"], name="watched", working_dir=live.home)
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-m", "geminid", "top"], {**live.env, "TERM": "xterm"})
    shown = bytearray()

    def shows(text: bytes) -> bool:
        while select.select([terminal], [], [], 0.05)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # it has ended
                break
            if not piece:
                break
            shown.extend(piece)
        return text in shown

    try:
        until(lambda: shows(b"watched"))
        os.write(terminal, b"/watched\rc")
        until(lambda: shows(b"y for yes"))
        os.write(terminal, b"y")
        until(lambda: live.json("show", job.id)["phase"] == "cancelled")
        os.write(terminal, b"q")
        until(lambda: shows(b"\x1b[?1049l"))
    finally:
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) in (0, -1)
    assert live.run("top").returncode == 2  # no terminal


def test_job_names_are_completed_and_lists_are_sorted_and_filtered(live):
    cluster = geminid.connect(live.home)
    names = ("finish-b", "finish-a")
    jobs = [cluster.submit(["true"], name=name, working_dir=live.home) for name in names]
    for job in jobs:
        job.wait(60)
    listed = live.json("queue", "--all", "--name", "FINISH", "--sort", "name")
    assert [job["name"] for job in listed] == ["finish-a", "finish-b"]
    listed = live.json("queue", "--all", "--name", "finish", "--sort", "-name")
    assert [job["name"] for job in listed] == ["finish-b", "finish-a"]
    assert live.run("queue", "--sort", "colour").returncode == 2
    for shell, asked in (
        ("bash", {"COMP_WORDS": "geminid show fini", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "geminid show fini"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "geminid show fini", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ):
        command = [Path(sys.executable).with_name("geminid")]
        env = {**live.env, "_GEMINID_COMPLETE": f"complete_{shell}", **asked}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert {"finish-a", "finish-b"} <= set(re.findall(r"finish-[ab]", done.stdout)), (shell, done)


def test_a_job_is_run_again_with_changes(live):
    cluster = geminid.connect(live.home)
    first = cluster.submit(["sh", "-c", "echo rate $LR"], name="first", env={"LR": "1"}, working_dir=live.home).wait(60)
    second = first.rerun(env={"LR": "2"}, name="second").wait(60)
    assert (second.name, second.logs()) == ("second", "rate 2\n")
    made = live.json("rerun", "second", "--set", "env.LR=3", "--set", "priority=-5")
    assert made["priority"] == -5
    assert cluster.job(made["id"]).wait(60).logs() == "rate 3\n"
    refused = live.run("rerun", first.id, "--set", "colour=red")
    assert "colour is not a known field" in refused.stderr


def test_the_commit_and_the_changes_of_a_job_are_kept_and_shown(live, tmp_path):
    settings = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    (tmp_path / "rate").write_text("1\n")
    for words in (["init", "-q", "-b", "main"], ["add", "rate"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *settings, "-C", str(tmp_path), *words], check=True, capture_output=True)
    (tmp_path / "rate").write_text("2\n")
    job = geminid.connect(live.home).submit(["cat", "rate"], array="0-1", name="coded", working_dir=tmp_path)
    assert job.wait(60).state == "succeeded"
    assert "of main, 1 file changed (--diff shows them)" in live.run("show", "coded").stdout
    assert "-1\n+2\n" in live.run("show", "--diff", "coded_1").stdout
    assert live.run("show", "--diff", "first").returncode == 5
