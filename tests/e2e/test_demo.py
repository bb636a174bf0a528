"""`geminid demo` in its short form: real jobs that are resized, one of whose workers is killed, and that end well."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from waiting import until


@pytest.fixture
def folder(monkeypatch):
    """Where temporary files go; the paths of sockets must not be too long."""
    with tempfile.TemporaryDirectory(prefix="gmd-", dir="/tmp") as made:
        monkeypatch.setenv("TMPDIR", made)
        yield Path(made)


def test_the_short_demo_ends_well_and_leaves_nothing_behind(folder):
    command = [sys.executable, "-m", "geminid", "demo", "--short", "--slots", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [job["name"] for job in result["jobs"]] == ["images", "recommender", "language"]
    for job in result["jobs"]:
        assert job["phase"] == "succeeded"
        assert job["samples"] == job["work_samples"]
        assert job["jct_s"] > 0.0
        assert job["metrics"]["loss"] > 0.0
    assert result["killed"] is not None
    assert result["resizes"] >= 1
    assert max(job["most_slots"] for job in result["jobs"]) == 2
    assert [path.name for path in folder.iterdir() if path.name.startswith("geminid-")] == []


def test_a_demo_that_is_killed_leaves_nothing_behind(folder):
    demo = subprocess.Popen([sys.executable, "-m", "geminid", "demo", "--short", "--slots", "2", "--json"])
    started = until(lambda: list(folder.glob("geminid-*/service.json")))
    service = json.loads(started[0].read_text())["pid"]
    demo.kill()
    demo.wait()
    until(lambda: not Path(f"/proc/{service}").exists() and not list(folder.glob("geminid-*")))
