"""The page of ``simulate --report``: what it holds, that its numbers add up, and that nothing of it can do harm."""

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.sim import reportdata
from geminid.sim.report import durations, embedded_json, page, write_report
from geminid.sim.reportdata import TimeSpent, merge_batches, series, timelines
from geminid.sim.workload import TraceJob, Workload

CLUSTER = Cluster.parse("v100:2x4,t4:1x4")
EVIL = "</script><script>alert(1)</script>&\u2028'\""


def stint(start_s, end_s, *, slots=2, pause_s=0.0, batch=64, scaling=0.25, statistics=0.125, node=0, gpu_type="v100"):
    return {
        "start_s": start_s,
        "works_from_s": min(start_s + pause_s, end_s),
        "end_s": end_s,
        "gpu_type": gpu_type,
        "slots": slots,
        "nodes": [node],
        "slots_per_node": [slots],
        "total_batch": batch,
        "per_slot_batch": None if batch is None else batch // slots,
        "accumulation_steps": None if batch is None else 0,
        "useful_share": 1.0 - scaling - statistics,
        "lost_to_scaling_share": scaling,
        "lost_to_statistics_share": statistics,
    }


def job(name, submission_s, stints, *, done=True):
    held = sum(s["end_s"] - s["start_s"] for s in stints)
    completion_s = stints[-1]["end_s"] if done else None
    return {
        "name": name,
        "application": "",
        "submission_s": submission_s,
        "start_s": stints[0]["start_s"] if stints else None,
        "completion_s": completion_s,
        "jct_s": completion_s - submission_s if done else None,
        "queued_s": completion_s - submission_s - held if done else 0.0,
        "paused_s": sum(s["works_from_s"] - s["start_s"] for s in stints),
        "gpu_s": sum((s["end_s"] - s["start_s"]) * s["slots"] for s in stints),
        "rescales": 1,
        "ftf": 0.5 if done else None,
        "stints": stints,
    }


def jobs_of_a_run(shift_s=0.0):
    """A job with a rescale and a wait, one without modelled batches, one that never ran and one that never ended."""
    return [
        job(
            EVIL,
            0.0,
            [
                stint(10.0 + shift_s, 100.0, pause_s=20.0),
                stint(100.0, 150.0, batch=128),
                stint(200.0, 400.0, slots=4, node=2, gpu_type="t4", pause_s=30.0, batch=256),
            ],
        ),
        job("opaque", 50.0, [stint(60.0, 90.0, batch=None, scaling=0.0, statistics=0.0)]),
        job("never-ran", 70.0, [], done=False),
        job("never-ended", 80.0, [stint(100.0, 500.0)], done=False),
    ]


def result(policy, shift_s=0.0, **changes):
    jobs = jobs_of_a_run(shift_s)
    jct = [j["jct_s"] for j in jobs if j["jct_s"] is not None]
    return {
        "policy": policy,
        "jobs": len(jobs),
        "avg_jct_s": sum(jct) / len(jct),
        "median_jct_s": float(np.median(jct)),
        "p99_jct_s": max(jct),
        "makespan_s": 400.0,
        "gpu_hours": 1.0,
        "rescales_per_job": 0.5,
        "avg_queue_s": 10.0,
        "worst_ftf": 0.5,
        "unfair_fraction": 0.0,
        "utilization": 0.4,
        "decisions": 10,
        "rejected_decisions": 0,
        "decision_ms_mean": None,
        "decision_ms_p99": None,
        "wall_s": None,
        "per_job": jobs,
        **changes,
    }


WORKLOAD = Workload(
    name=f"test {EVIL}",
    jobs=(
        TraceJob(name=EVIL, submit_s=0.0, requested_slots=2, application=EVIL),
        TraceJob(name="opaque", submit_s=50.0, requested_slots=2, duration_s=30.0),
        TraceJob(name="never-ran", submit_s=70.0, requested_slots=2, application="bert"),
        TraceJob(name="never-ended", submit_s=80.0, requested_slots=2, application="bert"),
    ),
    notes=(f"A note with {EVIL}.",),
)


def rendered(results, **changes):
    return page(**{"workload": WORKLOAD, "cluster": CLUSTER, "results": results, **changes})


class Page(HTMLParser):
    """What a browser would see: elements, the text of tables, and the content of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.scripts, self.security, self._script = [], [], {}, "", None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "script":
            self._script = attributes.get("id", "page")
            self.scripts[self._script] = ""
        elif tag == "tr":
            self.rows.append("")
        elif attributes.get("http-equiv") == "Content-Security-Policy":
            self.security = attributes["content"]

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data
        elif self.rows:
            self.rows[-1] += data + " "

    def data(self, name):
        return json.loads(self.scripts[name])


# --- The page ---


def test_the_page_has_every_policy_and_every_part():
    text = rendered([result("fifo"), result("sia:p=-1,interval=60", 5.0)], seed=7)
    seen = Page(text)
    ids = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    assert {"policies", "cdf", "boxes", "spent", "use", "gantt", "detail"} <= ids
    assert [p["name"] for p in seen.data("overview")["policies"]] == ["fifo", "sia:p=-1,interval=60"]
    assert any("fifo" in row for row in seen.rows)
    assert any("sia:p=-1,interval=60" in row for row in seen.rows)
    assert "<dt>Seed</dt><dd>7</dd>" in text
    assert "v100:2x4,t4:1x4" in text
    assert "{{" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_the_page_needs_no_network():
    seen = Page(rendered([result("fifo")]))
    assert not [tag for tag, attributes in seen.tags if "src" in attributes]
    links = [attributes["href"] for _, attributes in seen.tags if "href" in attributes]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert seen.security.startswith("default-src 'none'")


def test_only_the_script_of_the_page_may_run():
    text = rendered([result("fifo")])
    seen = Page(text)
    assert [name for name in seen.scripts if not name.startswith(("overview", "jobs-", "timelines-"))] == ["page"]
    assert all(
        attributes.get("type") == "application/json" for tag, attributes in seen.tags if tag == "script" and attributes
    )
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        content = re.findall(rf"<{element}>(.*?)</{element}>", text, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert len(content) == 1
        assert f"{directive} 'sha256-{digest}'" in seen.security
    assert not any(name.startswith("on") or name == "style" for _, attributes in seen.tags for name in attributes)


def test_text_from_outside_stays_text():
    text = rendered([result(EVIL), result("fifo")])
    assert "<script>alert" not in text
    assert all(re.search(r"(&gt;|\\u003e)$", before) for before in text.split("alert(1)")[:-1])
    overview = Page(text).data("overview")
    assert overview["jobs"]["name"][0] == EVIL
    assert overview["applications"][0] == EVIL
    assert overview["policies"][0]["name"] == EVIL


def test_embedded_json_has_no_character_that_could_end_it():
    value = {"<>&": ["</script>", "<!--", "\u2028\u2029", "ü", None, 1.5]}
    text = embedded_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_equal_input_gives_an_equal_page(tmp_path):
    results = [result("fifo"), result("sia", 5.0)]
    for name in ("a", "b"):
        write_report(tmp_path / name, workload=WORKLOAD, cluster=CLUSTER, results=copy.deepcopy(results))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_best_value_of_a_column_is_emphasised_and_ties_are_not():
    text = rendered([result("fifo", avg_jct_s=300.0), result("sia", avg_jct_s=200.0)])
    assert re.findall(r"class=best><strong>([^<]*)</strong>", text) == ["200\u00a0s"]


def test_columns_without_values_are_left_out_and_single_gaps_are_dashes():
    text = rendered([result("fifo"), result("sia", worst_ftf=None)])
    assert "Decision, mean" not in text
    assert "<td>–</td>" in text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([12.0, 504.0], ["12 s", "504 s"]),
        ([288.0, 2310.0], ["4.8 min", "38.5 min"]),
        ([14040.0, 249552.0], ["3.90 h", "69.32 h"]),
        ([0.0, 0.0], ["0 s", "0 s"]),
        ([], []),
    ],
)
def test_durations_that_are_compared_share_a_unit(values, shown):
    say = durations(values)
    assert [say(value) for value in values] == shown


def test_jobs_that_did_not_finish_are_told():
    assert "fifo: 2 jobs did not finish" in rendered([result("fifo")])


@pytest.mark.parametrize("results", [[], [result("fifo", avg_jct_s=None, per_job=[])]])
def test_a_page_of_nothing_is_a_page(results):
    seen = Page(rendered(results, workload=Workload("empty", ())))
    assert len(seen.data("overview")["policies"]) == len(results)


def test_results_without_stints_are_refused():
    without = result("fifo")
    without["per_job"] = [{k: v for k, v in j.items() if k != "stints"} for j in without["per_job"]]
    with pytest.raises(ValueError, match="fifo have no stints"):
        rendered([without])


# --- Where time went ---


def test_the_parts_of_a_jobs_time_add_up_to_its_jct():
    for finished in jobs_of_a_run()[:2]:
        spent = TimeSpent.of(finished, 500.0)
        assert spent.total_s == pytest.approx(finished["jct_s"])
        assert spent.queued_s == pytest.approx(finished["queued_s"])
        assert spent.paused_s == pytest.approx(finished["paused_s"])


def test_working_time_is_split_by_the_shares_of_each_stint():
    spent = TimeSpent.of(jobs_of_a_run()[0], 500.0)
    working_s = 70.0 + 50.0 + 170.0
    assert spent.queued_s == pytest.approx(10.0 + 50.0)
    assert spent.paused_s == pytest.approx(20.0 + 30.0)
    assert spent.scaling_s == pytest.approx(0.25 * working_s)
    assert spent.statistics_s == pytest.approx(0.125 * working_s)
    assert spent.useful_s == pytest.approx(0.625 * working_s)


def test_a_job_that_never_ran_is_queued_until_the_end():
    spent = TimeSpent.of(jobs_of_a_run()[2], 500.0)
    assert spent == TimeSpent(430.0, 0.0, 0.0, 0.0, 0.0)


def test_the_means_of_a_policy_add_up_to_its_average_jct():
    shown = result("fifo")
    policy = Page(rendered([shown])).data("overview")["policies"][0]
    assert sum(policy["spent"]) == pytest.approx(shown["avg_jct_s"], abs=0.05)
    assert policy["unfinished"] == 2


# --- Distributions and series ---


def test_the_distribution_counts_unfinished_jobs_and_keeps_its_extremes():
    times, shares = reportdata.cdf(np.array([30.0, 10.0]), 4)
    assert (times, shares) == ([10.0, 30.0], [250.0, 500.0])
    times, shares = reportdata.cdf(np.arange(1.0, 10_001.0), 10_000)
    assert len(times) <= reportdata.MAX_CDF_POINTS
    assert (times[0], times[-1], shares[-1]) == (1.0, 10_000.0, 1000.0)


def test_series_integrate_to_the_slots_held_and_the_jobs_present():
    jobs = jobs_of_a_run()
    found = series(jobs, 500.0, ["v100", "t4"])
    step_s = found["step_s"]
    held = {"v100": 0.0, "t4": 0.0}
    for s in (s for j in jobs for s in j["stints"]):
        held[s["gpu_type"]] += s["slots"] * (s["end_s"] - s["start_s"])
    assert sum(found["held"][0]) * step_s == pytest.approx(held["v100"], rel=1e-3)
    assert sum(found["held"][1]) * step_s == pytest.approx(held["t4"], rel=1e-3)
    queued_s = sum(TimeSpent.of(j, 500.0).queued_s for j in jobs)
    assert sum(found["queued"]) * step_s == pytest.approx(queued_s, rel=1e-3)


def test_rare_applications_share_a_row():
    jobs = [TraceJob(name=f"j{i}", submit_s=0.0, requested_slots=1, application=f"a{i:02}") for i in range(20)]
    jobs.append(TraceJob(name="k", submit_s=0.0, requested_slots=1, application="a19"))
    groups, of_job = reportdata._application_groups(jobs)
    assert groups[0] == "a19"
    assert groups[-1] == reportdata.OTHERS
    assert len(groups) == reportdata.MAX_APPLICATIONS == max(of_job) + 1


# --- Packed timelines ---


def unpacked(packed, workload):
    """Stints as (start, works from, end, allocation) per job, the way the page reads them."""
    found, i = [], 0
    for number, submitted in zip(packed["stints"], (j.submit_s for j in workload.jobs), strict=True):
        at, stints = round(10 * submitted), []
        for k in range(i, i + number):
            start = at + packed["gap"][k]
            at = start + packed["for"][k]
            stints.append(
                (start / 10, (start + packed["pause"][k]) / 10, at / 10, packed["allocations"][packed["at"][k]])
            )
        i += number
        found.append(stints)
    return found


def test_packed_timelines_say_what_happened():
    shown = result("fifo")
    packed = timelines(WORKLOAD, shown, ["v100", "t4"])
    assert unpacked(packed, WORKLOAD) == [
        [
            (10.0, 30.0, 100.0, (0, 0, 2)),
            (100.0, 100.0, 150.0, (0, 0, 2)),
            (200.0, 230.0, 400.0, (1, 2, 4)),
        ],
        [(60.0, 60.0, 90.0, (0, 0, 2))],
        [],
        [(100.0, 100.0, 500.0, (0, 0, 2))],
    ]
    assert packed["total"] == [64, 128, 256, 0, 64]
    assert packed["merged_below"] is None


def test_too_many_stints_are_merged_where_only_the_batch_size_changed():
    packed = timelines(WORKLOAD, result("fifo"), ["v100", "t4"], max_stints=4)
    assert packed["stints"] == [2, 1, 0, 1]
    assert packed["merged_below"] == "any"
    assert unpacked(packed, WORKLOAD)[0][0] == (10.0, 30.0, 150.0, (0, 0, 2))


def test_merging_keeps_pauses_and_lost_time():
    before = [
        stint(0.0, 10.0, pause_s=30.0, batch=64),  # all pause
        stint(10.0, 50.0, pause_s=20.0, batch=66, scaling=0.5),
        stint(50.0, 60.0, batch=68, scaling=0.1),
        stint(60.0, 70.0, batch=200, scaling=0.2),
        stint(70.0, 80.0, batch=200, pause_s=5.0),  # a pause of its own is not swallowed
        stint(90.0, 99.0, batch=200),  # nor is a gap
    ]
    after = merge_batches(before, 1.1)
    assert [(s["start_s"], s["works_from_s"], s["end_s"]) for s in after] == [
        (0.0, 30.0, 60.0),
        (60.0, 60.0, 70.0),
        (70.0, 75.0, 80.0),
        (90.0, 90.0, 99.0),
    ]
    whole = {"submission_s": 0.0, "completion_s": 99.0}
    lost = [TimeSpent.of({**whole, "stints": stints}, 99.0) for stints in (before, after)]
    assert lost[1].scaling_s == pytest.approx(lost[0].scaling_s)
    assert lost[1].total_s == pytest.approx(lost[0].total_s) == 99.0


def test_racks_are_named_where_there_are_several():
    racks = Cluster.from_yaml("nodes: [{type: v100, count: 4, slots: 4, nodes_per_rack: 2, zone: north}]")
    workload = Workload("small", (TraceJob(name="a", submit_s=0.0, requested_slots=2, duration_s=10.0),))
    run = {"policy": "fifo", "per_job": [{**job("a", 0.0, [stint(0.0, 10.0)]), "communication_share": 0.25}]}
    shown = reportdata.overview(workload, racks, [run])
    assert shown["racks"] == [{"name": "v100-rack-0", "zone": "north"}, {"name": "v100-rack-1", "zone": "north"}]
    assert shown["rack"] == [0, 0, 1, 1]
    assert shown["sync_times"] == [None]
    sources = {shown["applications"][0]: {"rack": "as profiled", "zone": "gradient volume ÷ bandwidth"}}
    named = reportdata.overview(workload, racks, [{**run, "setup": {"sync_times": sources}}])
    assert named["sync_times"] == ["in one rack: as profiled; across racks: gradient volume ÷ bandwidth"]
    assert shown["node_slots"] == [4, 4, 4, 4]
    assert reportdata.overview(workload, CLUSTER, [run])["racks"] == []
    assert reportdata.job_table(workload, run)["communication"] == [250]
    assert "Racks over time" in page(workload=workload, cluster=racks, results=[run])
