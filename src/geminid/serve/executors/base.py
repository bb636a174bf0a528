"""What the service asks of an executor, and what an executor reports: the same for one machine and for a cluster.

The service says which slots each job is to have (``run``, ``stop``) as often as it likes; the executor gets it there,
and reports what happens on the way as records. Everything is called in the service's own thread unless it says
otherwise. What an executor learns in other threads (a process ended, a worker reported) it passes to ``post``, and gets
it back through ``handle``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.fields import Problem
from geminid.job import FoundKind, JobSpec
from geminid.serve.executors.folders import JobFolders
from geminid.serve.livejob import LiveJob
from geminid.serve.records import Record

#: Something that an executor learned in another thread; only the executor looks inside.
ExecutorEvent = object


class Submissions(Protocol):
    """What an executor knows of jobs before they are accepted. All of it may be called in any thread."""

    def check(self, spec: JobSpec) -> list[Problem]:
        """What keeps this job from ever running here."""

    def interpreter(self, submitters: str) -> str | None:
        """What the command ``python`` stands for, where the submitter has this one; None: what it is on the nodes."""

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """What a job gets of its submitter's environment: the variables that mean the same where it runs."""

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """How a job is to be launched, as far as its specification and its script show."""

    def store_code(self, spec: JobSpec) -> str:
        """Snapshot a job's code; the name of the snapshot, or nothing where jobs run in their own folders.

        Raises:
            InvalidInput: it cannot be stored.
        """

    def keep_code(self, needed: Collection[str]) -> None:
        """Delete all snapshots but these. Called every few seconds."""


class Executor(Protocol):
    """Runs jobs on slots."""

    @property
    def cluster(self) -> Cluster:
        """The slots that there are. It may change whenever ``handle`` reports that nodes joined or left."""

    @property
    def agent_versions(self) -> Mapping[str, str]:
        """The version of Geminid that the agent of each node has reported. In any thread."""

    @property
    def submissions(self) -> Submissions:
        """What is asked before a job is accepted."""

    @property
    def folders(self) -> JobFolders:
        """Where logs and checkpoints are."""

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[Record]:
        """Begin. ``jobs`` are all that the service knows: those whose processes still live are taken over.

        Processes that belong to no job are ended. The records say what became of jobs that held slots.
        """

    def run(self, job: LiveJob, placement: Placement) -> list[Record]:
        """Have a job run on these slots and no others, as soon as other jobs have left them."""

    def stop(self, job: LiveJob, reason: str, *, save: bool = True) -> list[Record]:
        """Have a job's processes end, after saving what they have done if they can."""

    def flush(self) -> None:
        """Start what ``run`` announced: the service has written it down. Nothing starts before."""

    def handle(self, event: ExecutorEvent) -> list[Record]:
        """Handle a posted event; the records of what it means for jobs."""

    def tick(self, capacity: Callable[[], Mapping[str, int]]) -> list[Record]:
        """Look at the clock: called about twice a second.

        ``capacity`` returns for how many slots of each GPU type there is work, for executors that can get more nodes.
        """

    def delay_of(self, job_id: str) -> str:
        """What a job waits for whose slots are free and that is not there yet; empty if for nothing. In any thread."""

    def close(self, *, detach: bool) -> None:
        """End: with all processes, or leaving them to the next service (``detach``)."""
