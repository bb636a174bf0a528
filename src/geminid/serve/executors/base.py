"""What the service asks of an executor, and what an executor tells: the same for one machine and for a cluster.

The service says which slots each job shall have (``run``, ``stop``) as often as it likes; the executor leads there, and
says what happens on the way as records. Everything is called in the service's own thread. What an executor hears in
other threads (a process ended, a worker reported) it hands to ``post``, and gets it back through ``take``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.fields import Problem
from geminid.job import FoundKind, JobSpec
from geminid.serve.livejob import LiveJob
from geminid.serve.records import Record

#: Something that an executor heard in another thread; nobody else looks inside.
Happening = object


class Executor(Protocol):
    """Runs jobs on slots."""

    @property
    def cluster(self) -> Cluster:
        """The slots that there are. It may change whenever ``take`` tells of nodes that joined or left."""

    def check(self, spec: JobSpec) -> list[Problem]:
        """What keeps this job from ever being run here."""

    def interpreter(self, submitters: str) -> str | None:
        """What the command ``python`` stands for, if whoever submits it has this one; None for what it is there."""

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """What a job has of its submitter's environment: the variables that mean the same where it runs."""

    def put_by(self, spec: JobSpec) -> str:
        """Keep a job's code as it is now; the name of what was kept, or nothing where jobs run in their own folders.

        Called in any thread, before the job is known.

        Raises:
            InvalidInput: it cannot be kept.
        """

    def keep_code(self, needed: Collection[str]) -> None:
        """Whatever else was put by is not needed any more. Called every few seconds."""

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """How a job is to be launched, as far as its specification and its script tell."""

    def open(self, post: Callable[[Happening], None], jobs: Sequence[LiveJob]) -> list[Record]:
        """Begin. ``jobs`` are all that the service knows: those whose processes still live are taken over.

        Processes that nobody wants any more are ended. The records say what became of jobs that held slots.
        """

    def run(self, job: LiveJob, placement: Placement) -> list[Record]:
        """Have a job run on these slots, and no others; as soon as whoever is on them has left."""

    def stop(self, job: LiveJob, reason: str, *, save: bool = True) -> list[Record]:
        """Have a job's processes end, after saving what they have done if they can."""

    def flush(self) -> None:
        """Carry out what ``run`` announced: the service has written it down. Nothing is started before."""

    def take(self, happening: Happening) -> list[Record]:
        """Look at something that was posted; what it means for the jobs."""

    def delay_of(self, job_id: str) -> str:
        """What a job waits for whose slots are free and which is not there yet; nothing if for nothing.

        Called in any thread.
        """

    def wish(self, slots_by_type: Mapping[str, int]) -> None:
        """So many slots of each type would all be used, if there were so many."""

    def tick(self) -> list[Record]:
        """Look at the clock: called about twice a second."""

    @property
    def busy(self) -> bool:
        """Whether any job has processes."""

    def folder_of(self, job_id: str) -> Path:
        """Where a job's logs and checkpoints are."""

    def checkpoints_of(self, job_id: str) -> Path | str:
        """Where a job's checkpoints are: a folder, or an fsspec URL."""

    def close(self, *, detach: bool) -> None:
        """End: with all processes, or leaving them to the next service (``detach``)."""
