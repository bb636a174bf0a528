"""``geminid logs``: prints what a job printed, and continues where it was when the service comes back."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from geminid.cli.client import Absence, client, of, reporting_trouble
from geminid.cli.jobs import JobArgument
from geminid.cli.output import console
from geminid.fields import InvalidInput, Problem

#: Time between two looks for new elements of an array that is followed, in seconds.
LOOK_S = 0.5


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job is over.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="LINES", help="Only this many last lines of each log.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker's, such as w2.")] = None,
    download: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the logs into a folder instead, a file for each worker."),
    ] = None,
) -> None:
    """Print what a job printed; of an array, element after element."""
    with reporting_trouble():
        found = client().get(of("jobs", job))
        if download is not None:
            _download(found, download, worker)
            return
        if found["array"] is None:
            _print_log(found["id"], follow, tail, worker)
            return
        printed: set[str] = set()
        while True:
            is_over = client().get(of("jobs", found["id"]))["finished_at_s"] is not None
            elements = client().get("jobs", array=found["id"], all=True, limit=100_000)
            for element in elements:
                if element["id"] not in printed:
                    printed.add(element["id"])
                    print(f"==> {element['id']} <==", flush=True)
                    _print_log(element["id"], follow, tail, worker)
            if is_over or not follow:
                return
            time.sleep(LOOK_S)


def _download(job: dict[str, Any], folder: Path, worker: str | None) -> None:
    """Write the logs of a job, or of the elements of an array, as ``FOLDER/JOB/WORKER.log``.

    Raises:
        ServiceError: they cannot be read.
        InvalidInput: they cannot be written.
    """
    jobs = [job]
    if job["array"] is not None:
        jobs = client().get("jobs", array=job["id"], all=True, limit=100_000)
    written = set[Path]()
    try:
        for one in jobs:
            logs = set[str]()  # each is announced by an empty piece, before the first one with content
            for log, _, piece in client().frames(of("jobs", one["id"], "logs"), worker=worker):
                logs.add(log)
                heading = f"==> {log} <==\n".encode() if len(logs) > 1 else b""  # for people who read all of them
                file = folder / one["id"] / f"{Path(log).name}.log"
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab" if file in written else "wb") as stream:
                    stream.write(piece.removeprefix(heading))
                written.add(file)
    except OSError as problem:
        raise InvalidInput(
            [Problem("option --download", str(folder), f"cannot be written: {problem.strerror}")]
        ) from None
    console.print(f"wrote {len(written)} log{'' if len(written) == 1 else 's'} to {folder}", soft_wrap=True)


def _print_log(job: str, follow: bool, tail: int | None, worker: str | None) -> None:
    """Print what one job printed, by its identifier.

    Raises:
        ServiceError: it cannot be read; when it is followed, only after the service was away for too long.
    """
    from geminid.serve.client import NO_SERVICE, ServiceError

    absence, places = Absence(), dict[str, int]()

    def read() -> None:
        client().get("status")
        absence.over()
        at = ",".join(f"{log}:{place}" for log, place in places.items())
        begin: dict[str, Any] = {"at": at} if at else {"tail": tail}
        for log, end, piece in client().frames(of("jobs", job, "logs"), follow=follow, worker=worker, **begin):
            places[log] = end
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if follow and client().get(of("jobs", job))["finished_at_s"] is None:
            raise ServiceError(NO_SERVICE, f"the service is ending, and job {job} is not over")

    while True:
        try:
            return read()
        except ServiceError as trouble:
            if not follow:
                raise
            absence.wait_or_raise(trouble)
