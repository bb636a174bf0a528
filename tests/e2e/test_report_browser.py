"""The report in a real browser: it loads without a complaint, and a click on a job opens its details."""

import pytest
from browsing import Tab, chromium

from geminid.cluster import Cluster
from geminid.sim.report import write_report
from geminid.sim.workload import TraceJob, Workload

HOSTILE = "</script><script>document.title='broken'</script>"

pytestmark = pytest.mark.needs_chromium


class ReportTab(Tab):
    """A tab with a report in it."""

    def open(self, path):
        self.complaints.clear()
        self.page.goto(path.as_uri())
        self.settle()

    def settle(self):
        """Wait until what was asked for has been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, script):
        return self.page.evaluate(script)

    def key(self, name):
        self.page.keyboard.press(name)
        self.settle()


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
def browser():
    with chromium() as started:
        yield ReportTab(started.new_context(viewport={"width": 1200, "height": 900}))


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
    report.page.mouse.move(x, y)
    report.settle()
    assert HOSTILE in report.evaluate("document.getElementById('tip').textContent")
    report.page.mouse.click(x, y)
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
    report.page.locator(".choose[data-policy='0']").click()
    report.settle()
    assert "under fifo" in report.evaluate("document.getElementById('detail').textContent")
    report.page.locator("#filter").fill("job-1")
    report.settle()
    assert report.evaluate("document.getElementById('jobs-shown').textContent") == "3 of 12 jobs"
    assert report.complaints == []


def test_jobs_are_coloured_by_what_is_chosen(report):
    names = {"slots": "1 slot", "useful": "under 20 %", "communication": "under 10 %"}
    for value, first in names.items():
        report.page.locator("#colour").select_option(value)
        report.settle()
        assert first in report.page.locator("#timeline-legend").inner_text()
    report.check()


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
