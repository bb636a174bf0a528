"""What one supervisor records for the next: the job's token, its group, and its workers.

And what a worker records for a supervisor that may not be running: its last report, if it leads, when training is over,
and that its script has ended well after that.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from geminid.supervise import protocol

#: The file of the handover, in the folder of a job.
NAME = "supervisor.json"

#: The file of a worker whose script has ended well after training, in the folder of its job.
ENDED = "{worker}.ended"

#: The file of a leader's last report, in the folder of its job.
REPORTED = "{worker}.report"

#: The file of a worker's exit code, which its shim writes, in the folder of its job.
EXITED = "{worker}.exit"

#: The file that this process, a worker, writes if its script ends well; none before training is over.
_end_files: list[Path] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A job between two supervisors.

    ``token`` determines the folder where its workers meet, ``address`` is where they look for a supervisor, ``slots``
    are those of its members, by rank. Each worker has its slot, its standing, its own token, and what identifies its
    process. ``newest`` is the worker that was named last: no name is used twice. ``lone_slots`` are those of a job that
    has not called ``geminid.init()`` yet. With ``held`` its members wait for newcomers.
    """

    token: str
    address: str
    generation: int
    members: tuple[str, ...]
    slots: tuple[str, ...]
    workers: dict[str, dict[str, Any]]
    newest: str = ""
    lone_slots: tuple[str, ...] = ()
    held: bool = False

    def write(self, folder: Path) -> None:
        """Write it atomically, readable by the owner only."""
        _write(folder / NAME, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> Handover | None:
        """What was written last; None if there is nothing, or nothing that this version can read."""
        saved = folder / NAME
        if not saved.exists():
            return None
        try:
            document = json.loads(saved.read_text(encoding="utf-8"))
            listed = ("members", "slots", "lone_slots")
            return cls(**document | {name: tuple(document[name]) for name in listed if name in document})
        except (ValueError, TypeError, KeyError) as problem:
            print(f"geminid: warning: {saved} is not used: {problem!r}", file=sys.stderr, flush=True)
            return None


def mark(folder: Path, worker: str, token: str) -> str:
    """The mark in the environment of a worker, and of everything that it starts (``process/descendants.py``)."""
    return f"{folder}/{worker}.{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def worker_marks(folder: Path) -> set[str]:
    """The marks of the recorded workers of a job."""
    left = Handover.read(folder)
    if left is None:
        return set()
    return {mark(folder.absolute(), worker, entry.get("token", left.token)) for worker, entry in left.workers.items()}


def end_of(folder: Path, worker: str) -> Path:
    """The file that a worker writes when its script has ended well after training."""
    return folder / ENDED.format(worker=worker)


def exit_file_of(folder: Path, worker: str) -> Path:
    """The file in which the shim of a worker records its exit code."""
    return folder / EXITED.format(worker=worker)


def report_beside(ended: Path) -> Path:
    """The file of a leader's last report, next to the one that it writes when its script has ended well."""
    return ended.with_suffix(".report")


def last_report(folder: Path, worker: str) -> protocol.Progress | None:
    """The last report of a worker for which training was over; None if there is none."""
    try:
        found = protocol.decode((folder / REPORTED.format(worker=worker)).read_bytes())
    except (OSError, protocol.ProtocolError):
        return None
    return found if isinstance(found, protocol.Progress) else None


def leave_report(ended: Path, report: protocol.Progress) -> None:
    """Write a leader's last report atomically."""
    path = report_beside(ended)
    try:
        _write(path, protocol.encode(report))
    except OSError as problem:
        print(f"geminid: warning: {path} was not written: {problem.strerror}", file=sys.stderr, flush=True)


def training_is_over(end_file: Path) -> None:
    """Training is over in this process, a worker; it writes this file if its script ends well."""
    _end_files[:] = [end_file]


def write_end() -> None:
    """Record that the script has ended well, if training was over. Without the record, the script is run again."""
    for path in _end_files:
        try:
            path.touch(mode=0o600)
        except OSError as problem:
            print(f"geminid: warning: {path} was not written: {problem.strerror}", file=sys.stderr, flush=True)


def ended_well(folder: Path) -> bool:
    """Whether the leader of the last group of a job has recorded that its script has ended well."""
    left = Handover.read(folder)
    return left is not None and bool(left.members) and has_ended_well(folder, left.members[0])


def has_ended_well(folder: Path, worker: str) -> bool:
    """Whether a worker has recorded that its script has ended well after training."""
    return end_of(folder, worker).exists()


def forget_end(folder: Path) -> None:
    """Remove the records of how the workers of a job ended: it is run again."""
    for pattern in (ENDED, EXITED, REPORTED):
        for path in folder.glob(pattern.format(worker="*")):
            path.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by the owner only."""
    new = path.with_name(f"{path.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
