"""The report in a real browser: it loads without a complaint, and a click on a job opens its details.

Chromium is driven through a pair of pipes with its own protocol, so that nothing but the browser is needed.
"""

import contextlib
import json
import os
import select
import subprocess
import time
from itertools import count

import pytest

from geminid.cluster import Cluster
from geminid.sim.report import write_report
from geminid.sim.workload import TraceJob, Workload
from requirements import CHROMIUM

PATIENCE_S = 30
HOSTILE = "</script><script>document.title='broken'</script>"

pytestmark = pytest.mark.needs_chromium


class Browser:
    """One page in a headless Chromium; ``complaints`` are the errors and warnings of its console."""

    def __init__(self, profile):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out, self._ids, self._rest, self.complaints = ours_in, ours_out, count(1), b"", []
        # The protocol is spoken on descriptors 3 and 4 of the browser.
        redirect = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1200,900", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, str(CHROMIUM), *flags],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = None
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._until(lambda m: m.get("id") == number)["result"]

    def _until(self, wanted):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" in self._rest:
                line, self._rest = self._rest.split(b"\0", 1)
                message = json.loads(line)
                self._note(message)
                assert "error" not in message, message
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._in, 1 << 16)
            assert received, "the browser has ended"
            self._rest += received

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(parameters["args"])

    def open(self, path):
        self.complaints.clear()
        self.call("Page.navigate", url=path.as_uri())
        self._until(lambda m: m.get("method") == "Page.loadEventFired")
        self.settle()

    def settle(self):
        """Wait until what was asked for has been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, kind, x, y):
        pressed = kind != "mouseMoved"
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button="left" if pressed else "none",
            clickCount=int(pressed),
        )

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)
        self.settle()

    def close(self):
        self._session = None
        with contextlib.suppress(AssertionError, OSError):  # it may end before it answers
            self.call("Browser.close")
        self._process.kill()
        self._process.wait(PATIENCE_S)
        os.close(self._in)
        os.close(self._out)


def results():
    """Twelve jobs, one of them unfinished, under two policies; every job is rescaled once."""
    names = [HOSTILE, *(f"job-{i}" for i in range(1, 12))]
    workload = Workload(
        "twelve jobs",
        tuple(
            TraceJob(name=name, submit_s=60.0 * i, requested_slots=2, application="bert")
            for i, name in enumerate(names)
        ),
    )
    runs = []
    for policy, length_s in (("fifo", 900.0), ("sia", 600.0)):
        jobs = []
        for i, trace in enumerate(workload.jobs):
            start_s, done = trace.submit_s + 30.0, i != 11
            stints = [
                {
                    "start_s": start_s + k * length_s / 2,
                    "works_from_s": start_s + k * length_s / 2 + 20.0,
                    "end_s": start_s + (k + 1) * length_s / 2,
                    "gpu_type": "v100",
                    "slots": 2 + 2 * k,
                    "nodes": [i % 4],
                    "slots_per_node": [2 + 2 * k],
                    "total_batch": 64 * (k + 1),
                    "per_slot_batch": 32,
                    "accumulation_steps": 0,
                    "useful_share": 0.6,
                    "lost_to_scaling_share": 0.3,
                    "lost_to_statistics_share": 0.1,
                }
                for k in range(2)
            ]
            jobs.append(
                {
                    "name": trace.name,
                    "application": "bert",
                    "submission_s": trace.submit_s,
                    "start_s": start_s,
                    "completion_s": start_s + length_s if done else None,
                    "jct_s": 30.0 + length_s if done else None,
                    "queued_s": 30.0,
                    "paused_s": 40.0,
                    "gpu_s": 3.0 * length_s,
                    "rescales": 1,
                    "ftf": 1.0 if done else None,
                    "stints": stints,
                }
            )
        runs.append({"policy": policy, "avg_jct_s": 30.0 + length_s, "makespan_s": 2000.0, "per_job": jobs})
    return workload, runs


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def report(browser, tmp_path):
    workload, runs = results()
    path = tmp_path / "report.html"
    write_report(path, workload=workload, cluster=Cluster.parse("v100:4x4"), results=runs)
    browser.open(path)
    return browser


def test_the_page_loads_without_a_complaint_and_shows_every_policy(report):
    rows = report.evaluate("[...document.querySelectorAll('#policies tbody th')].map(e => e.textContent)")
    assert rows == ["fifo", "sia"]
    assert report.evaluate("document.title").startswith("twelve jobs")  # the hostile name did nothing
    assert report.evaluate("document.querySelectorAll('#use figure svg').length") == 2
    assert report.evaluate("document.querySelectorAll('#cdf path').length") == 2
    assert report.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert report.complaints == []


def test_a_click_on_a_job_opens_its_panel_and_escape_closes_it(report):
    box = report.evaluate(
        "(() => { const c = document.getElementById('gantt'); c.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const r = c.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )
    x, y = box[0] + box[2] / 2, box[1] + 10
    report.mouse("mouseMoved", x, y)
    report.settle()
    assert HOSTILE in report.evaluate("document.getElementById('tip').textContent")
    for kind in ("mousePressed", "mouseReleased"):
        report.mouse(kind, x, y)
    report.settle()
    assert report.evaluate("document.getElementById('detail-title').textContent") == HOSTILE
    assert "under sia" in report.evaluate("document.getElementById('detail').textContent")
    assert report.evaluate("document.querySelectorAll('#job-chart path').length") == 1
    report.evaluate("document.getElementById('detail').focus()")
    report.key("Escape")
    assert report.evaluate("document.getElementById('detail').hidden") is True
    assert report.complaints == []


def test_jobs_are_reachable_by_keyboard_and_follow_the_chosen_policy(report):
    report.evaluate("document.getElementById('gantt').focus()")
    for _ in range(3):
        report.key("ArrowDown")
    assert report.evaluate("document.getElementById('detail-title').textContent") == "job-2"
    report.evaluate("document.querySelector('.choose[data-policy=\"0\"]').click()")
    report.settle()
    assert "under fifo" in report.evaluate("document.getElementById('detail').textContent")
    report.evaluate(
        "const f = document.getElementById('filter'); f.value = 'job-1'; f.dispatchEvent(new Event('input'))"
    )
    report.settle()
    assert report.evaluate("document.getElementById('jobs-shown').textContent") == "3 of 12 jobs"
    assert report.complaints == []


def test_a_column_sorts_the_table(report):
    names = "[...document.querySelectorAll('#policies tbody th')].map(e => e.textContent)"
    report.evaluate("document.querySelectorAll('#policies .sort')[1].click()")
    assert report.evaluate(names) == ["sia", "fifo"]
    report.evaluate("document.querySelectorAll('#policies .sort')[1].click()")
    assert report.evaluate(names) == ["fifo", "sia"]


def test_an_empty_page_is_no_mistake(browser, tmp_path):
    path = tmp_path / "empty.html"
    write_report(path, workload=Workload("empty", ()), cluster=Cluster.parse("v100:1x1"), results=[])
    browser.open(path)
    assert browser.complaints == []
