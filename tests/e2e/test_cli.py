"""The command line as a person or a program meets it: real processes, real output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import geminid

COMMAND = [sys.executable, "-m", "geminid"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"geminid {geminid.__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["bench", "model", "--help"]])
def test_help_is_there_for_every_command(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 0
    assert "Usage:" in result.stdout


def test_without_a_command_help_is_shown() -> None:
    assert "bench" in run().stdout


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has loaded when it ends."""
    code = f"""import atexit, sys
atexit.register(lambda: print("loaded", *sys.modules))
import geminid.cli.main
geminid.cli.main.app({list(arguments)!r})
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return set(result.stdout.partition("loaded ")[2].split())


def test_importing_the_package_and_asking_for_help_load_nothing_heavy() -> None:
    loaded = loaded_by("--help")
    assert {"geminid.cli.jobs", "geminid.cli.simulate", "geminid.cli.benches"} <= loaded  # all are listed
    assert not loaded & {"numpy", "scipy", "torch", "highspy", "yaml", "fastapi", "uvicorn"}


def test_a_command_loads_only_its_own_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMINID_HOME", str(tmp_path))
    loaded = loaded_by("show", "j1")
    commands = {name for name in loaded if name.startswith("geminid.cli.")}
    assert commands == {f"geminid.cli.{name}" for name in ("main", "jobs", "client", "completion", "output")}
    assert not loaded & {"numpy", "yaml", "fastapi", "uvicorn", "starlette"}
    assert not [name for name in loaded if name.startswith(("geminid.bench", "geminid.sim", "geminid.serve.state"))]


def test_without_pytorch_one_sentence_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['torch'] = None; from geminid.cli.main import main; main()"
    command = [sys.executable, "-c", code, "profile", "--", "python", "train.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'geminid[torch]'" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_offered_completion(shell: str) -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("geminid")],
        env={"_GEMINID_COMPLETE": f"source_{shell}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_GEMINID_COMPLETE" in result.stdout


def test_a_missing_folder_is_one_sentence_and_exit_code_two() -> None:
    result = run("bench", "model", "--profiles", "no/such/folder")
    assert result.returncode == 2
    assert result.stdout == ""
    expected = "error: profiles is 'no/such/folder', but must be a folder with one folder per application."
    assert result.stderr.strip().splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--slots", "2"], "slots is 2, but goes with --executor local only: a Ray cluster has its own"),
        (["--devices", "0"], "devices is '0', but must be left out with --executor ray"),
        (["--storage", "here"], "storage is 'here', but must be an absolute path, or a URL such as s3://bucket/folder"),
    ],
)
def test_what_a_ray_cluster_cannot_do_with_is_refused(arguments: list[str], expected: str) -> None:
    result = run("up", "--executor", "ray", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert expected in " ".join(result.stderr.split())


def test_bench_table_reports_ratios_as_json() -> None:
    rows = json.loads(run("bench", "table", "--jobs", "30", "--json").stdout)
    assert {row["model"] for row in rows} == {"pollux", "geminid"}
    for row in rows:
        assert (row["jobs"], row["configurations"], row["batch_sizes"]) == (30, 64, 50)
        assert row["plain_loop_s"] > 0
        assert row["times_faster_than_plain_loop"] == pytest.approx(row["plain_loop_s"] / row["seconds"])
        assert row["times_faster_than_grid_loop"] > 0
        assert row["largest_difference"] < 1e-6


def test_bench_fit_is_at_least_as_good_as_scipy() -> None:
    rows = json.loads(run("bench", "fit", "--jobs", "30", "--json").stdout)
    pollux, ours = rows
    assert pollux["mean_loss"] <= pollux["scipy_mean_loss"] + 1e-6
    assert ours["model"] == "geminid"
    assert ours["scipy_cpu_s"] is None


def test_bench_policies_measures_synthetic_jobs_without_the_peers_tables(tmp_path: Path) -> None:
    arguments = [
        "--sizes",
        "24",
        "--types",
        "2",
        "--policy",
        "max_min_fairness_packed",
        "--policy",
        "hierarchical_fifo",
    ]
    rows = json.loads(run("bench", "policies", "--peers", str(tmp_path), *arguments, "--json").stdout)
    assert [(row["policy"], row["jobs"], row["types"], row["notes"]) for row in rows] == [
        ("max_min_fairness_packed", 24, 2, []),
        ("hierarchical_fifo", 24, 2, []),
    ]
    assert all(row["cpu_s"] > 0 and row["objective"] > 0 and row["published_cpu_s"] is None for row in rows)


def test_bench_policies_solves_once_more_from_where_it_was(tmp_path: Path) -> None:
    command = ("bench", "policies", "--peers", str(tmp_path), "--sizes", "16", "--types", "2", "--json")
    rows = json.loads(run(*command, "--policy", "max_min_fairness_perf").stdout)
    assert len(rows) == 1
    assert rows[0]["warm_cpu_s"] > 0
    assert rows[0]["warm_objective"] == pytest.approx(rows[0]["objective"], rel=1e-4)


def test_bench_policies_says_what_is_wrong_with_its_options() -> None:
    result = run("bench", "policies", "--sizes", "many")
    assert result.returncode == 2
    assert "sizes is 'many', but must be whole numbers of at least 1" in result.stderr


def test_bench_ray_says_what_is_wrong_with_its_shares() -> None:
    result = run("bench", "ray", "--shares", "2,half")
    assert result.returncode == 2
    assert "shares is '2,half', but must be whole numbers of at least 1" in result.stderr


def test_bench_model_prints_tables_for_people(tmp_path: Path) -> None:
    (tmp_path / "cnn").mkdir()
    lines = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "4", "11", "22", "44", "111", "222"):
        slots = sum(map(int, placement))
        for batch in (8, 16, 32, 64):
            grad, sync = 0.05 + 0.002 * batch, 0.0 if slots == 1 else 0.01 * len(placement) + 0.002 * slots
            lines.append(f"{placement},{batch},{grad + sync},{sync}")
    (tmp_path / "cnn" / "placements-v100.csv").write_text("\n".join(lines) + "\n")
    result = run("bench", "model", "--profiles", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "placements held out from the fit" in result.stdout
    assert "cnn" in result.stdout
    assert "v100" in result.stdout
    rows = json.loads(run("bench", "model", "--profiles", str(tmp_path), "--json").stdout)
    (cell,) = [row for row in rows if row["table"] == "applications"]
    assert cell["configurations"] == 32
    assert cell["geminid_mean"] < 0.1


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["up", "--gpus", "2"], "--slots"),
        (["up", "--num-gpus", "2"], "--slots"),
        (["set", "j1", "--max-gpus", "2"], "--max-slots"),
        (["profile", "--gpus", "2", "--", "true"], "--slots"),
        (["submit", "--gpus", "2", "--", "true"], "--slots 2"),
    ],
)
def test_whoever_types_gpus_is_pointed_to_slots(arguments: list[str], suggested: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert suggested in result.stderr


def test_a_job_file_with_gpus_is_pointed_to_slots(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ncommand: [python, train.py]\ngpus: 2\n")
    result = run("validate", str(tmp_path / "job.yaml"))
    assert result.returncode == 2
    assert result.stderr == "error: gpus is not a known field (did you mean slots?).\n"
