"""Which code a job is submitted with, as git tells it."""

from __future__ import annotations

import subprocess

from geminid.serve.source import MAX_DIFF_LENGTH, source_of


def git(folder, *words: str) -> None:
    settings = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, "-C", str(folder), *words], check=True, capture_output=True)


def test_a_folder_without_a_repository_has_no_source(tmp_path):
    assert source_of(tmp_path) is None
    assert source_of(tmp_path / "missing") is None


def test_commit_branch_changes_and_new_files_are_found_and_no_program_of_the_repository_runs(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("rate = 1\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = source_of(tmp_path)
    assert clean is not None
    assert (clean["branch"], clean["diff"], clean["complete"], clean["untracked"]) == ("main", "", True, [])
    assert len(clean["commit"]) == 40
    marker = tmp_path / "ran"
    git(tmp_path, "config", "core.fsmonitor", f"touch {marker}")
    git(tmp_path, "config", "diff.external", f"touch {marker}")
    (tmp_path / "train.py").write_text("rate = 2\n")
    (tmp_path / "new.py").write_text("")
    changed = source_of(tmp_path)
    assert changed is not None
    assert "-rate = 1\n+rate = 2\n" in changed["diff"]
    assert changed["untracked"] == ["new.py"]
    assert not marker.exists()
    (tmp_path / "train.py").write_text("x\n" * MAX_DIFF_LENGTH)
    long = source_of(tmp_path)
    assert long is not None
    assert (len(long["diff"]), long["complete"]) == (MAX_DIFF_LENGTH, False)
