"""What one supervisor writes down for the next: the job's token, its group, and its workers.

And what a worker writes down for a supervisor that is away: its last report, if it leads, when training is over; and
that its script has ended well after that.
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

NAME = "supervisor.json"

#: What a worker leaves whose script has ended well after training, in the folder of its job.
ENDED = "{worker}.ended"

#: What a leader leaves when training is over, in the folder of its job: its last report.
REPORTED = "{worker}.report"

#: What the shim of a worker leaves when the worker has ended, in the folder of its job.
EXITED = "{worker}.exit"

#: Where to leave it, once training is over in this process.
_over: list[Path] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A job between two supervisors.

    ``token`` is that of the place where its workers meet, ``address`` is where they look for a supervisor, ``slots``
    are those that its members are on, by rank. Of a worker there are its slot, its standing, its own token, and what
    its launcher finds its process by. ``newest`` is the worker that was named last: none gets the name of
    another, living or dead. ``lone_slots`` are those of a job that has not called ``geminid.init()`` yet. With ``held``
    its members wait for newcomers.
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
        """Readable by the owner only, whole or not at all."""
        made = folder / f"{NAME}.new"
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        made.replace(folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> Handover | None:
        """What was written last; None if nothing was, or by another version: its workers are strangers then."""
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
    """What is in the environment of a worker of the job of a folder, and of all that it starts."""
    return f"{folder}/{worker}.{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def worker_marks(folder: Path) -> set[str]:
    """The marks of the workers that are written down for a job."""
    left = Handover.read(folder)
    if left is None:
        return set()
    return {mark(folder.absolute(), worker, entry.get("token", left.token)) for worker, entry in left.workers.items()}


def end_of(folder: Path, worker: str) -> Path:
    """What a worker of the job of a folder leaves when its script has ended well after training."""
    return folder / ENDED.format(worker=worker)


def exit_file_of(folder: Path, worker: str) -> Path:
    """Where the shim of a worker of the job of a folder writes down how it ended."""
    return folder / EXITED.format(worker=worker)


def report_beside(ended: Path) -> Path:
    """Where a leader leaves its last report, beside what it leaves when its script has ended well."""
    return ended.with_suffix(".report")


def last_report(folder: Path, worker: str) -> protocol.Progress | None:
    """The last report of a worker for which training was over; None if there is none."""
    try:
        found = protocol.decode((folder / REPORTED.format(worker=worker)).read_bytes())
    except (OSError, protocol.ProtocolError):
        return None
    return found if isinstance(found, protocol.Progress) else None


def leave_report(ended: Path, report: protocol.Progress) -> None:
    """Leave a leader's last report, whole or not at all."""
    path = report_beside(ended)
    try:
        made = path.with_suffix(".new")
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(protocol.encode(report))
        made.replace(path)
    except OSError as problem:
        print(f"geminid: warning: {path} was not written: {problem.strerror}", file=sys.stderr, flush=True)


def training_is_over(leaves: Path) -> None:
    """Training is over in this process, a worker; it leaves this if its script ends well."""
    _over[:] = [leaves]


def write_end() -> None:
    """The script has ended well: if training was over, leave word of it. Without, the script is run again."""
    for path in _over:
        try:
            path.touch(mode=0o600)
        except OSError as problem:
            print(f"geminid: warning: {path} was not written: {problem.strerror}", file=sys.stderr, flush=True)


def ended_well(folder: Path) -> bool:
    """Whether the leader of the last group of a job has left word that all was done."""
    left = Handover.read(folder)
    return left is not None and bool(left.members) and has_ended_well(folder, left.members[0])


def has_ended_well(folder: Path, worker: str) -> bool:
    """Whether a worker has left word that its script has ended well after training."""
    return end_of(folder, worker).exists()


def forget_end(folder: Path) -> None:
    """A job is run again: how its script ended before counts no more."""
    for pattern in (ENDED, EXITED, REPORTED):
        for path in folder.glob(pattern.format(worker="*")):
            path.unlink(missing_ok=True)
