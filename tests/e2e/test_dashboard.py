"""The web page in a real browser, on a real service with real jobs. Everything shown is what the interface says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from browsing import EXPECTED_WHILE_AWAY, Tab, chromium
from live import Live
from playwright.sync_api import expect

import geminid
from geminid.serve.client import Client
from waiting import until

pytestmark = pytest.mark.needs_chromium

HOSTILE = "<img src=x onerror=document.title='pwned'>"

#: Prints and reports hostile text, and goes on until it is told to end.
NASTY = f"""
import time, pathlib, torch, geminid
print({HOSTILE!r}, flush=True)
run = geminid.init()
data = torch.utils.data.TensorDataset(torch.ones(512, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = torch.nn.Linear(1, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader, max_batch_size=32)
for epoch in run.epochs(10_000):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        run.report(**{{"<b>loss</b>": float(loss)}})
        time.sleep(0.02)
    print("epoch", epoch, flush=True)
    if pathlib.Path("enough").exists():
        break
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    """Two slots: an elastic job that reports hostile names, a command that failed, and one that waits."""
    with Live(2, "geminid:gap=1,refresh=5", 5.0) as running:
        folder = tmp_path_factory.mktemp("nasty")
        (folder / "train.py").write_text(NASTY)
        command = [sys.executable, "train.py"]
        running.client.post(
            "jobs", {"name": "nasty", "command": command, "working_dir": str(folder), "min_slots": 1, "max_slots": 2}
        )
        running.submit("sh", "-c", "echo no; exit 3", name="failing", max_retries=0, slots=1)
        running.until("j2", lambda job: job["finished_at_s"] is not None)
        running.until("j1", lambda job: job["samples"] > 0)
        running.submit("sleep", "1000", name="waiting", slots=2)
        yield running


def log_in(live: Live, browser, path: str = "/", **options: object) -> Tab:
    """A tab of somebody who followed a one-time link, at an address of the page."""
    tab = Tab(browser.new_context(**options))
    enter(live, tab)
    if path != "/":
        tab.page.goto(live.client.url + path)
    return tab


def enter(live: Live, tab: Tab, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "geminid", "open", "--json"]
    done = subprocess.run(command, env={**live.env, **(env or {})}, capture_output=True, text=True, check=True)
    tab.page.goto(json.loads(done.stdout)["url"])
    expect(tab.page.get_by_role("heading", name="Now", exact=True)).to_be_visible()


def rows(tab: Tab, label: str) -> list[dict[str, str]]:
    """A table of the page, as it can be read."""
    read = """table => ({
      names: [...table.querySelectorAll("thead th")].map(cell => cell.innerText),
      rows: [...table.querySelectorAll("tbody tr:not([aria-hidden])")].map(
        row => [...row.querySelectorAll("td")].map(cell => cell.innerText.trim())),
    })"""
    found = tab.page.get_by_role("region", name=label, exact=True).evaluate(read)
    names = [text.strip(" ▲▼\n") for text in found["names"]]
    return [dict(zip(names, row, strict=True)) for row in found["rows"]]


def facts(tab: Tab) -> dict[str, str]:
    """What stands in short at the top of a page."""
    read = "list => [...list.children].map(one => [...one.children].map(part => part.innerText.trim()))"
    return dict(tab.page.locator("dl.facts").evaluate(read))


def number(text: str) -> float | None:
    """A number as the page writes it; None for one that is not there."""
    return None if text == "–" else float(text.replace(",", "").replace("M", "e6").split(" ")[0])


# --- Logging in ---


def test_a_link_logs_in_once_and_leaves_no_code_behind(live, browser):
    link = live.json("open")["url"]
    tab = Tab(browser.new_context())
    tab.page.goto(link)
    expect(tab.page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    assert "#" not in tab.page.url
    (cookie,) = tab.page.context.cookies()
    assert cookie["name"].startswith("__Host-geminid-")
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    tab.check()
    other = Tab(browser.new_context())
    other.page.goto(link)
    expect(other.page.get_by_role("alert")).to_contain_text("was used already, or is older than a minute")
    other.check("401")
    other.page.get_by_label("Or with a token").fill("wrong")
    other.page.get_by_role("button", name="Log in").click()
    expect(other.page.get_by_role("alert")).to_contain_text("this token is not known here")
    other.page.get_by_label("Or with a token").fill((live.home / "token").read_text())
    other.page.get_by_role("button", name="Log in").click()
    expect(other.page.get_by_role("heading", name="Now", exact=True)).to_be_visible()


def test_strangers_see_the_log_in_and_come_back_to_where_they_wanted(live, browser):
    tab = Tab(browser.new_context())
    tab.page.goto(f"{live.client.url}/jobs/j1")
    expect(tab.page.get_by_role("heading", name="Log in to Geminid")).to_be_visible()
    tab.check_accessible()
    tab.page.get_by_label("Or with a token").fill((live.home / "token").read_text())
    tab.page.get_by_role("button", name="Log in").click()
    expect(tab.page.get_by_role("heading", name="j1 nasty")).to_be_visible()
    tab.page.get_by_role("button", name="Log out").click()
    expect(tab.page.get_by_role("heading", name="Log in to Geminid")).to_be_visible()
    tab.page.goto(f"{live.client.url}/nodes")
    expect(tab.page.get_by_role("heading", name="Log in to Geminid")).to_be_visible()
    tab.page.goto(live.json("open")["url"])  # the page is open already: the browser does not load it again
    expect(tab.page.get_by_role("heading", name="Nodes")).to_be_visible()
    tab.check("401")


def close(shown: float | None, told: float | None, within: float = 0.01) -> bool:
    """Whether a number on the page is a rounded one of the interface."""
    return shown == told if shown is None or told is None else abs(shown - told) <= within * abs(told) + 1e-9


def slot_range(job: dict[str, Any]) -> str:
    least, most = job["min_slots"], job["max_slots"]
    return f"{least}" if most == least else f"{least} or more" if most is None else f"{least}–{most}"


def ask(live: Live, method: str, path: str, headers: dict[str, str], body: bytes = b"{}") -> int:
    request = urllib.request.Request(f"{live.client.url}{path}", method=method, headers=headers, data=body)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return int(problem.code)


def test_a_cookie_alone_reads_and_changes_nothing(live, browser):
    """It reaches every port of this machine; what the page sends in headers does not."""
    tab = log_in(live, browser)
    (cookie,) = tab.page.context.cookies()
    alone = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    secret = tab.page.evaluate("localStorage.getItem('geminid-session')")
    assert ask(live, "GET", "/api/v1/rows", alone) == 401
    assert ask(live, "GET", "/api/v1/stream", {**alone, "X-Geminid-Session": "guess"}) == 401
    sent = {**alone, "X-Geminid-Session": secret}
    assert ask(live, "GET", "/api/v1/rows", sent) == 200
    own = {"Origin": live.client.url, "X-Geminid-Page": "1"}
    assert ask(live, "POST", "/api/v1/jobs/j1/resume", {**alone, **own}) == 401
    path = "/api/v1/jobs/j1/resume"
    assert ask(live, "POST", path, sent) == 403
    assert ask(live, "POST", path, {**sent, "Origin": live.client.url}) == 403
    assert ask(live, "POST", path, {**sent, "X-Geminid-Page": "1"}) == 403
    assert ask(live, "POST", path, {**sent, **own, "Origin": "http://evil.example"}) == 403
    assert ask(live, "POST", path, {**sent, **own, "Host": "evil.example"}) == 403
    assert ask(live, "POST", path, {**sent, **own}) == 200
    assert ask(live, "POST", path, {**sent, **own, "Origin": live.client.url.replace("127.0.0.1", "localhost")}) == 200
    assert ask(live, "POST", "/api/v1/session", {"X-Geminid-Page": "1"}) == 401


def noted(live: Live) -> list[str]:
    """What the service has noted for its operator."""
    return [one["text"] for one in live.client.get("events", limit=1000) if one["kind"] == "Noted"]


def test_failed_log_ins_are_noted_and_limited_and_links_work_nevertheless():
    with Live(1, "fifo", 5.0) as live:
        headers = {"Origin": live.client.url, "X-Geminid-Page": "1", "Content-Type": "application/json"}

        def log_in_with(secret: dict[str, str]) -> int:
            return ask(live, "POST", "/api/v1/session", headers, json.dumps(secret).encode())

        assert log_in_with({"token": "guess"}) == 401
        until(lambda: log_in_with({"token": "guess"}) == 429)
        assert log_in_with({"code": live.json("open")["url"].partition("#")[2]}) == 201
        until(lambda: any("401 for nobody" in text and "/api/v1/session" in text for text in noted(live)))
        until(lambda: any("logged in with a browser" in text for text in noted(live)))
        token = (live.home / "token").read_text().strip()
        request = urllib.request.Request(f"{live.client.url}/api/v1/rows", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request) as answer:
            assert (answer.headers["Cache-Control"], answer.headers["X-Content-Type-Options"]) == (
                "no-store",
                "nosniff",
            )


def test_a_stream_ends_when_its_token_is_revoked(live):
    token = live.run("token", "rita", "--role", "viewer").stdout.strip()
    request = urllib.request.Request(f"{live.client.url}/api/v1/stream", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as stream:
        stream.read1(1 << 16)
        assert live.run("token", "rita", "--revoke").returncode == 0
        while stream.read1(1 << 16):  # to its end, which comes with the next change at the latest
            pass


def test_a_log_that_is_followed_ends_when_its_token_is_revoked(live):
    token = live.run("token", "ruth", "--role", "admin").stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{live.client.url}/api/v1/jobs/j1/logs?follow=true", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.read1(1 << 16)
        assert live.run("token", "ruth", "--revoke").returncode == 0
        while stream.read1(1 << 16):
            pass


def test_viewers_look_and_change_nothing(live, browser):
    token = live.run("token", "vera", "--role", "viewer").stdout.strip()
    tab = Tab(browser.new_context())
    enter(live, tab, {"GEMINID_TOKEN": token, "GEMINID_URL": live.client.url})
    expect(tab.page.get_by_text("vera (viewer)")).to_be_visible()
    tab.page.goto(f"{live.client.url}/jobs/j1")
    expect(tab.page.get_by_text("Viewers change nothing.")).to_be_visible()
    tab.page.goto(f"{live.client.url}/nodes")
    expect(tab.page.get_by_text("Only admins drain nodes")).to_be_visible()
    assert tab.page.get_by_role("button", name="Drain").count() == 0
    done = subprocess.run(
        [sys.executable, "-m", "geminid", "cancel", "j1"],
        env={**live.env, "GEMINID_TOKEN": token, "GEMINID_URL": live.client.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "has role viewer, which may only read" in done.stderr


# --- Pages ---


def test_the_queue_shows_what_the_interface_says(live, browser):
    tab = log_in(live, browser)
    expect(tab.page.get_by_role("link", name="j3").first).to_be_visible()

    def agrees() -> bool:
        shown = {row["job"]: row for row in rows(tab, "Jobs that run or wait")}
        told = {job["id"]: job for job in live.client.get("jobs")}
        assert shown.keys() == told.keys()
        return any(job["reason"] for job in told.values()) and all(
            (row["name"], row["owner"], row["priority"]) == (job["name"], job["owner"], str(job["priority"]))
            and row["state"].endswith(job["phase"])
            and row["slots"].split(" ")[0] == str(job["slots"])
            and row["position"] == ("" if job["position"] is None else str(job["position"]))
            and number(row["batch"]) == job["batch"]
            and row["may have"] == slot_range(job)
            and row["reason"] == job["reason"]
            and (row["done"] == "–") == (job["done"] is None)
            and (row["finishes in"] == "–") == (job["eta"] is None)
            for job_id, job in told.items()
            for row in (shown[job_id],)
        )

    until(agrees)

    def glance_agrees() -> bool:
        status, jobs, shown = live.client.get("status"), live.client.get("jobs"), facts(tab)
        running = sum(job["slots"] > 0 for job in jobs)
        return (
            shown["policy"] == status["policy"]
            and shown["slots in use"] == f"{sum(job['slots'] for job in jobs)} of {status['slots']}"
            and shown["jobs"] == f"{running} running job{'' if running == 1 else 's'}, {len(jobs) - running} waiting"
            and number(shown["decisions"]) == status["decisions"]
            and "of the optimum" in shown["certificate"]
            and "cpu" in shown["price of a slot"]
        )

    until(glance_agrees)
    tab.page.get_by_text("The same as a table").first.click()

    def lanes_agree() -> bool:
        shown = [
            (row["to"] == "now", row["job"].split(" ")[0], row["slot"], number(row["slots of the job"]))
            for row in rows(tab, "Jobs on slots")
        ]
        told = [  # very short ones are left out of long times
            (end is None, job, f"{node}/{slot}", size)
            for job, node, slot, begin, end, size, _, _ in live.client.get("lanes")["stints"]
            if end is None or end > begin + 5.0
        ]
        return set(told) <= set(shown) and {one for one in shown if one[0]} == {one for one in told if one[0]}

    until(lanes_agree)
    tab.page.reload()
    events = tab.page.get_by_role("list", name="Recent events")
    expect(events).to_contain_text("j2 failed")  # also after the page was loaded again
    tab.page.get_by_role("button", name="name", exact=True).click()
    tab.page.get_by_role("button", name="1 h", exact=True).click()
    expect(tab.page).to_have_url(re.compile("sort=name.*span=3600"))
    tab.page.reload()
    expect(tab.page.get_by_role("columnheader", name="name")).to_have_attribute("aria-sort", "ascending")
    expect(tab.page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")
    tab.check_accessible()
    tab.check()


def test_a_job_shows_its_curves_explanation_output_and_history(live, browser):
    tab = log_in(live, browser, "/jobs/j1")
    page = tab.page
    expect(page.get_by_role("heading", name="j1 nasty")).to_be_visible()
    for title in ("Slots", "Goodput, useful samples/s", "Throughput, samples/s", "Batch", "Noise scale, samples"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="<b>loss</b>", exact=True)).to_be_visible()
    page.locator("section.chart", has_text="Throughput").get_by_text("The same as a table").click()
    expect(page.get_by_role("region", name="Throughput, samples/s").locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text(HOSTILE)
    page.get_by_label("search").fill("onerror")
    expect(page.get_by_text("1 line", exact=True)).to_be_visible()
    expect(page.get_by_role("log").locator("mark")).to_have_text("onerror")

    def explanation_agrees() -> bool:
        shown = [number(row["useful samples/s"]) for row in rows(tab, "Predicted goodput of every size")]
        told = [size["goodput"] for size in live.client.get("jobs/j1/explain")["sizes"]]
        return len(shown) == len(told) > 0 and all(map(close, shown, told))

    until(explanation_agrees)

    def curve_agrees() -> bool:
        shown = [number(row["throughput"]) for row in rows(tab, "Throughput, samples/s")]
        told = live.client.get("jobs/j1/series")["throughput"]
        kept = min(len(shown), len(told)) - 3  # the last points still grow
        return kept > 0 and all(map(close, shown[:kept], told[:kept]))

    until(curve_agrees)

    def facts_agree() -> bool:
        shown, job = facts(tab), live.job("j1")
        return (
            shown["state"].endswith(job["phase"])
            and shown["owner, queue"] == f"{job['owner']}, {job['queue']}"
            and shown["kind"] == job["kind"]
            and shown["slots"].endswith(f"of {slot_range(job)}")
            and number(shown["batch"]) == job["batch"]
            and shown["resizes, failures"] == f"{job['rescales']}, {job['failures']}"
        )

    until(facts_agree)
    expect(page.locator("ul.lines").last).to_contain_text("elastic: the script called geminid.init()")
    assert page.title() == "j1 · Geminid"
    tab.check_accessible()
    tab.check()


def test_actions_ask_first_and_name_the_command(live, browser):
    tab = log_in(live, browser, "/jobs/j3")
    page = tab.page
    page.get_by_role("button", name="Priority").click()
    dialog = page.get_by_role("dialog", name="Priority")
    dialog.get_by_label("priority").fill("7")
    expect(dialog).to_contain_text("geminid set j3 --priority 7")
    dialog.get_by_role("button", name="Leave it").click()
    assert live.job("j3")["priority"] == 0
    page.get_by_role("button", name="Priority").click()
    expect(dialog.get_by_label("priority")).to_have_value("0")  # what it is, not what was typed before
    dialog.get_by_label("priority").fill("7")
    dialog.get_by_role("button", name="Priority").click()
    until(lambda: live.job("j3")["priority"] == 7)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog", name="Pause").get_by_role("button", name="Pause").click()
    live.until("j3", lambda job: job["phase"] == "paused")
    expect(page.get_by_role("button", name="Resume")).to_be_enabled()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog", name="Resume").get_by_role("button", name="Resume").click()
    live.until("j3", lambda job: job["phase"] != "paused")
    page.goto(f"{live.client.url}/jobs/j1")
    page.get_by_role("button", name="Size limits").click()
    sizes = page.get_by_role("dialog", name="Size limits")
    sizes.get_by_label("at most").fill("0")
    sizes.get_by_role("button", name="Size limits").click()
    expect(sizes.get_by_role("alert")).to_contain_text("max_slots")
    for most in (1, 2):
        sizes.get_by_label("at most").fill(str(most))
        expect(sizes).to_contain_text(f"geminid set j1 --min-slots 1 --max-slots {most}")
        sizes.get_by_role("button", name="Size limits").click()
        live.until("j1", lambda job, most=most: job["max_slots"] == most)
        expect(sizes).to_be_hidden()
        page.reload()  # the dialog begins with what is so
        page.get_by_role("button", name="Size limits").click()
        expect(sizes.get_by_label("at most")).to_have_value(str(most))
    tab.check("422")


def test_jobs_are_cancelled_from_the_page_and_move_to_the_history(live, browser):
    job = live.submit("sleep", "1000", name="unwanted", slots=2)
    tab = log_in(live, browser, f"/jobs/{job}")
    tab.page.get_by_role("button", name="Cancel job").click()
    tab.page.get_by_role("dialog", name="Cancel job").get_by_role("button", name="Cancel job").click()
    live.until(job, lambda job: job["phase"] == "cancelled")
    expect(tab.page.get_by_text("cancelled").first).to_be_visible()
    tab.page.goto(f"{live.client.url}/history?state=cancelled")
    expect(tab.page.get_by_role("link", name=job)).to_be_visible()
    assert {row["end"].split(" ")[-1] for row in rows(tab, "Jobs that are over")} == {"cancelled"}
    tab.page.get_by_label("end", exact=True).select_option("failed")
    expect(tab.page.get_by_role("link", name="j2")).to_be_visible()
    (row,) = rows(tab, "Jobs that are over")
    told = live.job("j2")
    assert (row["name"], row["owner"], row["queue"]) == (told["name"], told["owner"], told["queue"])
    assert (row["reason"], row["failures"], row["resizes"]) == (told["reason"], str(told["failures"]), "0")
    assert close(number(row["slot-hours"]), told["gpu_s"] / 3600)
    assert tab.page.get_by_text("geminid history --state failed", exact=True).count() == 1
    assert [one["id"] for one in live.json("history", "--state", "failed")] == ["j2"]
    assert "failing" in live.run("history", "--state", "failed", "--days", 1).stdout
    with tab.page.expect_download() as saved:
        tab.page.get_by_role("button", name="Export CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith("id,name,owner,queue,phase")
    assert lines[1].startswith("j2,failing,")
    assert live.run("history", "--state", "failed", "--csv", live.home / "kept.csv").returncode == 0
    assert (live.home / "kept.csv").read_text().splitlines() == lines
    tab.check_accessible()
    tab.check()


def test_nodes_are_drained_and_slots_cordoned_from_the_page(live, browser):
    tab = log_in(live, browser, "/nodes")
    page = tab.page
    slots = page.get_by_role("region", name="Slots of local")
    slots.get_by_role("button", name="Cordon").nth(1).click()
    dialog = page.get_by_role("dialog", name="Cordon").locator("visible=true")
    expect(dialog).to_contain_text("geminid cordon local/1")
    dialog.get_by_role("button", name="Cordon").click()
    until(lambda: live.json("nodes")[0]["cordoned"] == [1])
    page.get_by_role("button", name="Uncordon").first.click()
    page.get_by_role("dialog", name="Uncordon").get_by_role("button", name="Uncordon").click()
    until(lambda: live.json("nodes")[0]["cordoned"] == [])

    def node_agrees() -> bool:
        shown, (node,) = rows(tab, "Slots of local"), live.client.get("nodes")
        head = page.get_by_role("region", name="Node local").locator(".bar").first.inner_text()
        return (
            [(row["slot"], row["job"]) for row in shown]
            == [(f"local/{slot}", job or "free") for slot, job in enumerate(node["jobs"])]
            and f"{node['slots']} slots of {node['gpu_type']}" in head
            and f"agent {geminid.__version__}" in head
            and node["agent_version"] == geminid.__version__
        )

    until(node_agrees)
    page.get_by_role("button", name="Drain").click()
    drain = page.get_by_role("dialog", name="Drain")
    expect(drain).to_contain_text("geminid drain local --yes")
    drain.get_by_role("button", name="Leave it").click()
    assert live.json("nodes")[0]["drained"] is False
    page.get_by_role("button", name="Drain").click()
    drain.get_by_role("button", name="Drain").click()
    until(lambda: live.json("nodes")[0]["drained"])
    page.get_by_role("button", name="Undrain").click()
    page.get_by_role("dialog", name="Undrain").get_by_role("button", name="Undrain").click()
    until(lambda: not live.json("nodes")[0]["drained"])
    expect(page.get_by_role("region", name="Node local")).to_contain_text("in service")
    tab.check_accessible()
    tab.check()


def test_users_and_what_if(live, browser):
    live.run("quota", "owner", "root", "8")
    tab = log_in(live, browser, "/users")
    page = tab.page
    expect(page.get_by_role("region", name="Quotas")).to_contain_text("owner root")

    def shares_agree() -> bool:
        (shown,), (told,), (used,) = rows(tab, "Shares of users"), live.client.get("fairness"), live.client.get("usage")
        return (
            (shown["owner"], number(shown["slots now"])) == (told["owner"], told["slots"])
            and close(number(shown["equal share"]), told["entitled_slots"])
            and (number(shown["running"]), number(shown["waiting"])) == (used["running"], used["waiting"])
            and number(shown["jobs ended"]) == told["jobs_ended"]
        )

    until(shares_agree)
    (quota,) = rows(tab, "Quotas")
    assert (quota["of"], quota["slots"], quota["may borrow"]) == ("owner root", "8", "no")

    def periods_agree() -> bool:
        zone_s = time.localtime().tm_gmtoff  # days are those of the browser's time zone
        shown, told = rows(tab, "Slot-hours by period"), live.client.get("usage/periods", zone_s=zone_s)
        hours = [sum(owner[i] for owner in told["slot_hours"].values()) for i in range(14)]
        return len(shown) == 14 and close(number(shown[0]["together"]), hours[-1], 0.1) and hours[-1] > 0

    until(periods_agree)
    tab.check_accessible()
    page.goto(f"{live.client.url}/what-if")
    page.get_by_label("another policy").fill("nonsense")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_contain_text("nonsense")
    page.get_by_label("another policy").fill("fifo")
    page.get_by_label("one job more, of").fill("1")
    page.get_by_role("button", name="Simulate").click()
    compared = page.get_by_role("region", name="Before and after", exact=True)
    expect(compared).to_contain_text("fifo")
    assert live.client.get("status")["policy"] in compared.inner_text()
    assert {row["job"] for row in rows(tab, "Jobs, before and after")} >= {"j1", "j3", "new"}
    command = "geminid simulate --from-live --policy fifo --extra-job 1x10m"
    expect(page.get_by_text(command, exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_label("another policy")).to_have_value("fifo")
    expect(page.get_by_label("one job more, of")).to_have_value("1")
    simulated = live.run(*command.split(" ")[1:])
    assert "new" in simulated.stdout, simulated.stderr
    tab.check_accessible()
    tab.check("422")
    live.run("quota", "owner", "root", "--lift")


def test_a_lost_worker_is_marked_and_the_pointer_shows_what_is_on_a_slot(live, browser):
    live.client.post("jobs/j3/pause")  # it has the higher priority
    live.until("j1", lambda job: job["slots"] > 0 and job["phase"] == "running")
    os.kill(max(live.worker_pids("j1")), signal.SIGKILL)
    until(lambda: any("was killed" in fault[2] for fault in live.client.get("lanes")["faults"]))
    live.until("j1", lambda job: job["slots"] > 0 and job["phase"] == "running")
    tab = log_in(live, browser)
    expect(tab.page.get_by_text("was killed (SIGKILL)").first).to_be_visible()
    canvas = tab.page.locator("canvas.lanes")

    def shows_the_job() -> bool:
        box = canvas.bounding_box()
        tab.page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 12)
        return "j1" in (tab.page.locator(".tip").text_content(timeout=1000) if tab.page.locator(".tip").count() else "")

    until(shows_the_job)
    box = canvas.bounding_box()
    tab.page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 12)
    expect(tab.page.get_by_role("heading", name="j1 nasty")).to_be_visible()
    tab.check()


def test_a_what_if_runs_no_file_of_anybody(live, tmp_path):
    """A policy in a file is code: it would run as the service's own user, for viewers too."""
    marker = tmp_path / "ran"
    (tmp_path / "policy.py").write_text(f"open({str(marker)!r}, 'w')\nclass X: pass\n")
    token = live.run("token", "victor", "--role", "viewer").stdout.strip()
    for change in (
        {"policy": f"{tmp_path / 'policy.py'}:X"},
        {"policy": ["fifo"]},
        {"policy": "x" * 1000},
        {"job": 3},
        {"cluster": "nonsense"},
        {"surprise": 1},
    ):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        assert ask(live, "POST", "/api/v1/what-if", headers, json.dumps(change).encode()) == 422, change
    assert not marker.exists()


# --- Live updates ---


def test_browsers_without_shared_workers_are_live_too(live, browser):
    context = browser.new_context()
    context.add_init_script("delete window.SharedWorker")
    tab = Tab(context)
    enter(live, tab)
    job = live.submit("sleep", "1000", name="late", slots=2)
    expect(tab.page.get_by_role("link", name=job).first).to_be_visible()
    live.client.post(f"jobs/{job}/cancel")
    table = tab.page.get_by_role("region", name="Jobs that run or wait")
    expect(table.get_by_role("link", name=job)).to_be_hidden()
    tab.check()


def test_a_public_address_is_accepted_and_named_in_links():
    with Live(1, "fifo", 5.0, "--public-url", "http://127.0.0.1:9") as live:
        assert live.json("open")["url"].startswith("http://127.0.0.1:9/login#")
        headers = {"X-Geminid-Page": "1", "Content-Type": "application/json"}
        assert ask(live, "POST", "/api/v1/session", {**headers, "Origin": "http://127.0.0.1:9"}) == 422
        assert ask(live, "POST", "/api/v1/session", {**headers, "Origin": "http://127.0.0.1:8"}) == 403


def test_seven_tabs_are_all_live_and_keys_lead_through_the_pages(live, browser):
    context = browser.new_context()
    first = Tab(context)
    enter(live, first)
    tabs = [first] + [Tab(context) for _ in range(6)]
    for tab in tabs[1:]:
        tab.page.goto(live.client.url)
        expect(tab.page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    job = live.submit("sleep", "1000", name="newcomer", slots=2)
    for tab in tabs:
        expect(tab.page.get_by_role("link", name=job).first).to_be_visible()
        tab.check()
    page = first.page
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.go_back()
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("newcomer")
    expect(page.get_by_text("1 job", exact=True)).to_be_visible()
    assert "find=newcomer" in page.url
    live.client.post(f"jobs/{job}/cancel")
    for tab in tabs[1:]:
        table = tab.page.get_by_role("region", name="Jobs that run or wait")
        expect(table.get_by_role("link", name=job)).to_be_hidden()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_usable_on_a_phone_in_both_colour_schemes(live, browser, scheme):
    tab = log_in(live, browser, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    for path in ("/", "/jobs/j1", "/nodes", "/users", "/history", "/what-if"):
        tab.page.goto(live.client.url + path)
        expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        tab.check_accessible()
    tab.check()


def test_a_page_reconnects_after_a_restart_and_misses_nothing(browser):
    with Live(1) as live:
        before = live.submit("sleep", "1000", name="before", slots=1)
        tab = log_in(live, browser)
        expect(tab.page.get_by_role("link", name=before).first).to_be_visible()
        expect(tab.page.get_by_text("live", exact=True)).to_be_visible()
        live.kill()
        expect(tab.page.get_by_text("reconnecting")).to_be_visible()
        live.up()
        during = live.submit("sleep", "1000", name="during", slots=1)
        live.client.post(f"jobs/{before}/cancel")
        expect(tab.page.get_by_role("link", name=during).first).to_be_visible()
        expect(tab.page.get_by_text("live", exact=True)).to_be_visible()
        table = tab.page.get_by_role("region", name="Jobs that run or wait")
        expect(table.get_by_role("link", name=before, exact=True)).to_be_hidden()
        tab.check(*EXPECTED_WHILE_AWAY)


def test_a_thousand_jobs_are_shown_sorted_and_found(browser):
    with Live(1) as live:
        client = Client.here(live.home)
        body = {"command": ["sleep", "1000"], "working_dir": str(live.home), "slots": 1}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: client.post("jobs", {**body, "name": f"n{i}", "priority": -(i % 7)}), range(1000)))
        tab = log_in(live, browser)
        expect(tab.page.get_by_text("1,000 jobs", exact=True)).to_be_visible()
        table = tab.page.get_by_role("region", name="Jobs that run or wait")
        assert table.locator("tbody tr").count() < 100  # only what is in sight is in the document
        table.evaluate("box => { box.scrollTop = box.scrollHeight }")
        expect(table.locator("tr[aria-rowindex='1001']")).to_be_visible()
        tab.page.get_by_role("button", name=re.compile("^priority")).click()
        table.evaluate("box => { box.scrollTop = 0 }")
        expect(table.locator("tr[aria-rowindex='2']")).to_contain_text("-6")
        tab.page.get_by_label("find").fill("n999")
        expect(tab.page.get_by_text("1 job", exact=True)).to_be_visible()
        for path in ("/nodes", "/users", "/history", "/what-if", "/jobs/j1000"):
            tab.page.goto(live.client.url + path)
            expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
        tab.check()
        os.kill(live.pid, 9)  # a thousand jobs need not be cancelled one by one
