"""``geminid simulate`` and its siblings, through real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "geminid", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


def results(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


SMALL = ("simulate", "--workload", "small", "--cluster", "v100:4x4")
FIELDS = {
    "policy",
    "jobs",
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "gpu_hours",
    "rescales_per_job",
    "avg_queue_s",
    "worst_ftf",
    "unfair_fraction",
    "utilization",
    "decision_ms_mean",
    "decision_ms_p99",
    "wall_s",
    "per_job",
}


def test_results_have_the_fields_that_programs_rely_on(tmp_path: Path) -> None:
    done = run(*SMALL, "--policy", "fifo,srtf", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fifo" in done.stdout
    for result in results(tmp_path / "out.json"):
        assert set(result) >= FIELDS
        assert result["jobs"] == 40 == len(result["per_job"])
        for job in result["per_job"]:
            assert job["submission_s"] <= job["start_s"] <= job["completion_s"]
            assert job["jct_s"] == pytest.approx(job["completion_s"] - job["submission_s"])


def test_equal_inputs_give_equal_files_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        run(*SMALL, "--policy", "tiresias,las", "--seed", "3", "--no-timings", "--json", name, cwd=tmp_path)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    run(*SMALL, "--policy", "tiresias,las", "--seed", "4", "--no-timings", "--json", "c.json", cwd=tmp_path)
    assert (tmp_path / "c.json").read_bytes() != (tmp_path / "a.json").read_bytes()


def test_two_results_are_compared_job_by_job(tmp_path: Path) -> None:
    roomy = ("simulate", "--workload", "small", "--cluster", "v100:60x8", "--policy", "fifo")
    run(*roomy, "--rescale", "0", "--json", "a.json", cwd=tmp_path)
    run(*roomy, "--rescale", "600", "--json", "b.json", cwd=tmp_path)
    compared = run("simulate", "--compare", "a.json", "b.json", "--json", "difference.json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    (difference,) = json.loads((tmp_path / "difference.json").read_text(encoding="utf-8"))
    assert len(difference["per_job"]) == 40
    gained = [job["second_jct_s"] - job["first_jct_s"] for job in difference["per_job"]]
    assert gained == pytest.approx([600.0] * 40)
    assert "avg_jct_s" in compared.stdout
    assert "Jobs that gained and lost most" in compared.stdout


def test_what_a_change_costs_can_be_set(tmp_path: Path) -> None:
    means = []
    for cost in ("0", "120"):
        run(*SMALL, "--policy", "las:interval=300", "--rescale", cost, "--json", "out.json", cwd=tmp_path)
        means.append(results(tmp_path / "out.json")[0]["avg_jct_s"])
    assert means[0] < means[1]


def test_the_policy_of_the_guide_runs_as_the_guide_says(tmp_path: Path) -> None:
    guide = (DOCS / "writing-a-policy.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    commands = re.search(r"```sh\n(.*?)```", guide, re.DOTALL)
    assert code is not None
    assert commands is not None
    (tmp_path / "my_policy.py").write_text(code.group(1), encoding="utf-8")
    for line in commands.group(1).strip().splitlines():
        done = run(*line.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "OldestFirst" in done.stdout
        assert "invalid" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "fifi"], "error: policy is 'fifi', but must be one of"),
        (["--policy", "tiresias:limit=4"], "error: option 'limit=4' is not an option of tiresias, which has: limits"),
        (["--policy", "las:interval=soon"], "error: option interval of las is 'soon', but must be a number above"),
        (["--policy", "las:interval=0"], "error: option interval of las is '0', but must be a number above 0 or none."),
        (
            ["--json", "no/such/folder/out.json"],
            "error: json is 'no/such/folder/out.json', but must be in a folder that exists.",
        ),
        (["--policy", "none.py:X"], "error: policy is 'none.py', but must be a Python file that exists."),
        (["--cluster", "v100:0x4"], "error: "),
        (["--workload", "nothing.csv"], "error: workload is 'nothing.csv', but must be a file that exists or one of"),
        (["--rescale", "slow"], "error: rescale is 'slow', but must be cold, live, or a number of seconds."),
        (["--compare", "a.json", "b.json"], "error: compare is 'a.json', but must be a file that can be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = run("simulate", "--workload", "small", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workload", "day"], "error: --workload cannot be given with --from-live, where the jobs and how they run"),
        (["--seed", "0"], "error: --seed cannot be given with --from-live"),
        (["--model", "pollux"], "error: --model cannot be given with --from-live"),
        (["--compare", "a.json", "b.json"], "error: --compare cannot be given with --from-live"),
        (["--rescale", "slow"], "error: rescale is 'slow', but must be cold, live, or a number of seconds."),
        (["--json", "no/such/x.json"], "error: json is 'no/such/x.json', but must be in a folder that exists."),
        (["--report", "."], "error: report is '.', but must be a file, not a folder."),
        (["--policy", ","], "error: policy is ',', but must name at least one policy."),
    ],
)
def test_a_what_if_refuses_what_it_cannot_honour(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = run("simulate", "--from-live", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1


def test_a_policy_that_interrupts_jobs_before_they_restart_is_told_instead_of_simulated_for_ever() -> None:
    done = run(*SMALL, "--policy", "las:interval=60", "--rescale", "900")
    assert done.returncode == 1
    assert "made no progress" in done.stderr
    assert "Traceback" not in done.stderr


def test_policies_and_workloads_are_listed() -> None:
    names = {row["name"] for row in json.loads(run("policies", "--json").stdout)}
    assert {"fifo", "srtf", "las", "tiresias", "optimus", "sia"} <= names
    assert "NSDI" in run("policies", "--wide").stdout
    one = run("policies", "max_min_fairness_packed").stdout
    assert "pairs" in one
    assert "vertex or centre or total" in one
    assert [row["name"] for row in json.loads(run("policies", "fifo", "--json").stdout)] == ["fifo"]
    assert "did you mean fifo?" in run("policies", "fifoo").stderr
    assert {row["name"] for row in json.loads(run("workloads", "--json").stdout)} >= {"small", "day"}


TRACE_LINE = "A\tpython3 a.py\t.\t--steps\t1\t1000\t1\t1\t-1\t0\n"


def test_a_trace_of_gavel_needs_a_table_of_throughputs(tmp_path: Path) -> None:
    trace = tmp_path / "two.trace"
    trace.write_text(2 * TRACE_LINE)
    arguments = ("simulate", "--workload", str(trace), "--cluster", "v100:1x1", "--policy", "max_min_fairness_packed")
    refused = run(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.count("pass --profiles") == 1
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"v100": {"('A', 1)": {"null": 1.0, "('A', 1)": [0.8, 0.8]}}}))
    out = tmp_path / "out.json"
    assert run(*arguments, "--profiles", str(table), "--json", str(out)).returncode == 0
    (result,) = results(out)
    # Both share the one slot at 0.8 of their speed, and begin a second after they have come.
    assert [job["completion_s"] for job in result["per_job"]] == pytest.approx([1251.0, 1251.0])
    assert result["gpu_hours"] == pytest.approx(1250 / 3600)


def test_adaptive_is_for_policies_that_read_throughputs() -> None:
    refused = run("simulate", "--workload", "small", "--policy", "fifo", "--adaptive")
    assert refused.returncode == 2
    assert "needs a policy that reads throughputs" in refused.stderr


def test_one_policy_of_each_kind_runs_side_by_side_and_is_plotted(tmp_path: Path) -> None:
    page, results = tmp_path / "policies.html", tmp_path / "policies.json"
    jobs = "\n".join(
        f"  - {{name: j{i}, submit: {20 * i}, slots: {1 + i % 2}, application: resnet18-cifar10}}" for i in range(4)
    )
    workload = tmp_path / "few.yaml"
    workload.write_text(f"name: few\njobs:\n{jobs}\n", encoding="utf-8")
    arguments = ("--workload", str(workload), "--cluster", "v100:2x2", "--rescale", "live", "--workers", "1")
    run("simulate", *arguments, "--policy", "selection", "--json", str(results), "--report", str(page))
    names = [row["policy"].partition(":")[0] for row in json.loads(results.read_text(encoding="utf-8"))]
    assert len(names) == len(set(names)) >= 16
    assert {"gandiva", "antman", "slaq", "shockwave", "lucid", "themis", "sia", "geminid"} <= set(names)
    assert "gandiva" in page.read_text(encoding="utf-8")


def test_a_policy_is_explained_with_what_its_options_mean() -> None:
    told = run("policies", "gandiva").stdout
    assert "least loaded node of its size" in told
    assert "slice=60" in told
    assert "seconds until others of the same size have their turn" in told
    assert "In simulations only" in run("policies", "antman").stdout


def test_the_bound_is_below_every_policy(tmp_path: Path) -> None:
    options = ("--policy", "fifo,geminid", "--rescale", "live", "--bound", "--wide")
    done = run(*SMALL, *options, "--json", "out.json", "--report", "out.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bound" in done.stdout
    for result in results(tmp_path / "out.json"):
        assert 0 < result["bound_avg_jct_s"] <= result["avg_jct_s"]
        assert 0 < result["bound_makespan_s"] <= result["makespan_s"]
        assert result["avg_jct_to_bound"] == pytest.approx(result["avg_jct_s"] / result["bound_avg_jct_s"])
    assert "No schedule of these jobs has a smaller average JCT" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_several_seeds_give_intervals_and_paired_differences(tmp_path: Path) -> None:
    options = ("--policy", "fifo,srtf", "--seeds", "3", "--seed", "5", "--bound", "--wide")
    done = run(*SMALL, *options, "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "seeds 5 to 7" in done.stdout
    fifo, srtf = results(tmp_path / "out.json")
    assert fifo["seeds"] == srtf["seeds"] == [5, 6, 7]
    assert srtf["to_first"]["avg_jct_s"]["low"] <= srtf["to_first"]["avg_jct_s"]["mean"]
    assert len(set(fifo["by_seed"]["avg_jct_s"])) == 3
    assert all(value >= 1.0 for value in srtf["by_seed"]["avg_jct_to_bound"])


def test_a_report_is_of_one_seed(tmp_path: Path) -> None:
    done = run(*SMALL, "--seeds", "2", "--report", "out.html", cwd=tmp_path)
    assert done.returncode != 0
    assert "shows one seed" in done.stderr
