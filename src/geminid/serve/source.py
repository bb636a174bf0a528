"""Which code a job was submitted with: the commit of its folder, and what was changed since, as git tells it.

The submitter's process asks git, since only it is sure to see the folder; the service keeps the answer in the job's
folder, where ``geminid show`` finds it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geminid.serve.client import Client, ServiceError, address

#: The file in a job's folder.
SOURCE = "source.json"

#: Longest changes that are kept, in characters.
MAX_DIFF_LENGTH = 262_144

#: Time that git may take, in seconds: a huge repository must not delay a submission.
GIT_TIMEOUT_S = 3.0

#: Options by which git runs no program that a repository's settings name.
SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def source_of(folder: Path) -> dict[str, Any] | None:
    """The commit, branch and changes of a folder; None if it is in no git repository, or git does not answer in time.

    Files that git does not track are named, and not in the changes.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal") or ""
    untracked = [line[3:] for line in status.splitlines() if line.startswith("??")]
    return {
        "commit": commit.strip(),
        "branch": (_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "diff": (changes or "")[:MAX_DIFF_LENGTH],
        "complete": changes is not None and len(changes) <= MAX_DIFF_LENGTH,
        "untracked": untracked[:100],
    }


def record_source(client: Client, job: Mapping[str, Any], folder: str) -> None:
    """Have the service keep which code a job was submitted with, if that is known; nothing depends on it."""
    with contextlib.suppress(ServiceError, OSError):
        if (source := source_of(Path(folder))) is not None:
            client.post(address("jobs", str(job["id"]), "source"), source)


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None if it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *SAFE, "-C", str(folder), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
