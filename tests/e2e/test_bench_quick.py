"""Every ``geminid bench … --quick``: it ends well, says that it was a quick run, and measures something."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.main import get_command

from geminid.cli.benches import app
from waiting import until, until_equal

GEMINID = [sys.executable, "-m", "geminid"]
NAMES = sorted(get_command(app).commands)


def bench(name: str, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80"}
    command = [*GEMINID, "bench", name, "--quick", *options]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


#: What some of them need.
MARKS = {"ray": pytest.mark.xdist_group("ray"), "page": pytest.mark.needs_chromium}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES])
def test_a_quick_run_ends_well_without_anybody_elses_data(name: str, tmp_path: Path) -> None:
    done = bench(name, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped: " in done.stderr:
        assert name in ("estimation", "fidelity"), done.stderr
        assert "is not there" in done.stderr
        assert done.stdout == ""
        return
    shown = " ".join(done.stdout.split())
    assert "(quick run)" in shown
    assert "missed:" not in shown
    rules = [line for line in done.stdout.splitlines() if line.startswith("─")]
    assert rules
    assert max(map(cell_len, rules)) <= 80


def test_programs_get_a_list_of_rows_and_nothing_else(tmp_path: Path) -> None:
    done = bench("solver", "--json", folder=tmp_path)
    rows = json.loads(done.stdout)
    assert rows
    assert all(set(row) >= {"slots", "jobs", "types", "seconds", "gap"} for row in rows)
    assert "not judged in a quick run: " in done.stderr
    assert json.loads(bench("estimation", "--json", folder=tmp_path).stdout) == []  # there is nothing to estimate


@pytest.mark.parametrize(("pause_s", "code"), [(0.25, 0), (1.25, 1)])
def test_rescales_are_judged_by_the_longest_pause_at_full_size(pause_s, code, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from geminid.bench import rescale

    row = rescale.RescaleRow(1, 2, pause_s, 0.5, 5.0, 6.0, 2.0, 5.0 / pause_s)
    monkeypatch.setattr(rescale, "run", lambda **_: [row])
    done = CliRunner().invoke(app, ["rescale", "--json"])
    (shown,) = json.loads(done.stdout)
    assert shown.items() >= {"from": 1, "to": 2, "live_pause_s": pause_s, "cold_pause_s": 5.0}.items()
    assert done.exit_code == code


@pytest.mark.parametrize(("paint_ms", "code"), [(300.0, 0), (301.0, 1)])
def test_the_page_is_judged_by_each_of_its_figures(paint_ms, code, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from geminid.bench import page

    figures = page.PageFigures(**{**page.TARGETS, "first_paint_ms": paint_ms})
    monkeypatch.setattr(page, "measure", lambda **_: figures)
    done = CliRunner().invoke(app, ["page", "--json"])
    assert json.loads(done.stdout) == [{**page.TARGETS, "first_paint_ms": paint_ms}]
    assert done.exit_code == code


def test_a_target_that_is_missed_ends_a_bench_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from geminid.bench import model

    monkeypatch.setattr(model, "GOAL", 1e-9)
    missed = CliRunner().invoke(app, ["model", "--quick"])
    assert missed.exit_code == 1
    assert "missed: the mean error on placements held out" in " ".join(missed.stdout.split())
    monkeypatch.setattr(model, "GOAL", 0.9)
    met = CliRunner().invoke(app, ["model", "--quick"])
    assert met.exit_code == 0
    assert "met: the mean error on placements held out" in " ".join(met.stdout.split())


def belonging_to(mark: str, folder: str) -> dict[int, str]:
    """Processes with a mark in their environment, or that are about or in a folder, and what they run."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_marked = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            if is_marked or folder in command or os.readlink(entry / "cwd").startswith(folder):
                found[int(entry.name)] = command
    return found


def end_when_it_runs(bench: str, parts: set[str], ended_by: signal.Signals) -> int:
    """End a bench when processes run whose commands have these parts in them; nothing may be left then."""
    name, value = "GEMINID_TEST_MARK", secrets.token_hex(8)
    mark = f"{name}={value}"
    with tempfile.TemporaryDirectory(prefix="gmd-", dir="/tmp") as folder:  # sockets need short paths
        env = {**os.environ, name: value, "TMPDIR": folder}
        with subprocess.Popen(
            [*GEMINID, "bench", bench, "--quick"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:

            def runs_all_parts() -> bool:
                assert process.poll() is None, process.communicate()
                found = belonging_to(mark, folder).values()
                return all(any(part in command for command in found) for part in parts)

            until(runs_all_parts, 120.0, every_s=0.1, seen=lambda: belonging_to(mark, folder))
            os.kill(process.pid, ended_by)
            process.communicate(timeout=120)
        until_equal(lambda: (belonging_to(mark, folder), list(Path(folder).iterdir())), ({}, []), every_s=0.1)
    return process.returncode


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    ("ended_by", "codes"),
    [(signal.SIGINT, (130, -signal.SIGINT)), (signal.SIGTERM, (143,)), (signal.SIGKILL, (-signal.SIGKILL,))],
    ids=["Ctrl-C", "terminated", "killed"],
)
def test_nothing_is_left_of_a_ray_cluster_however_the_bench_ends(ended_by, codes) -> None:
    assert end_when_it_runs("ray", {"gcs/gcs_server", "raylet/raylet"}, ended_by) in codes


@pytest.mark.parametrize(("ended_by", "codes"), [(signal.SIGINT, (130, -signal.SIGINT)), (signal.SIGTERM, (143,))])
def test_nothing_is_left_of_the_job_that_is_rescaled_when_the_bench_is_ended(ended_by, codes) -> None:
    assert end_when_it_runs("rescale", {"shim.py"}, ended_by) in codes
