"""An executor without processes: for tests of the service, of policies under it, and as a model for new executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.fields import Problem
from geminid.job import FoundKind, JobKind, JobSpec
from geminid.serve import records as r
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.folders import JobFolders
from geminid.serve.livejob import LiveJob


@dataclass
class PretendExecutor:
    """Reports every job as running as soon as it is planned; jobs end only when a test reports that they did.

    ``started`` has the id of a job for each time that it was started. ``elastic`` is the kind of all jobs. ``ticks``
    counts how often the service has asked whether anything happened by itself.
    """

    slots: int = 4
    elastic: bool = True
    started: list[str] = field(default_factory=list)
    running: dict[str, Placement] = field(default_factory=dict)
    ticks: int = 0
    home: Path = Path("/nonexistent")
    _starting: dict[str, Placement] = field(default_factory=dict)
    _post: Callable[[ExecutorEvent], None] = lambda event: None

    def report(self, record: r.Record) -> None:
        """Have the service hear of something that happened to a job, such as its end."""
        self._post(record)

    @property
    def cluster(self) -> Cluster:
        """One node with CPU slots."""
        return Cluster.parse(f"cpu:1x{self.slots}")

    @property
    def agent_versions(self) -> Mapping[str, str]:
        """There are no agents."""
        return {}

    @property
    def submissions(self) -> Self:
        """What is asked before a job is accepted."""
        return self

    @property
    def folders(self) -> JobFolders:
        """Nothing is written there."""
        return JobFolders(self.home)

    def check(self, spec: JobSpec) -> list[Problem]:
        """Every job can run here."""
        return []

    def interpreter(self, submitters: str) -> str | None:
        """The submitter's own."""
        return submitters

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """All of the submitter's environment."""
        return dict(submitters)

    def store_code(self, spec: JobSpec) -> str:
        """A name, and nothing is kept."""
        return f"code of {spec.name}"

    def keep_code(self, needed: Collection[str]) -> None:
        """Remembers in ``needed`` which code the service still needs."""
        self.needed = set(needed)

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """The same for all jobs."""
        return FoundKind(JobKind.ELASTIC if self.elastic else JobKind.PLAIN, "a test")

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """No process lives on: jobs that held slots are lost."""
        self._post = post
        return [r.JobEnded(job_id=job.id, how="lost", reason="gone") for job in jobs if job.phase.holds_slots]

    def run(self, job: LiveJob, placement: Placement) -> list[r.Record]:
        """Announce a start or a rescale, which ``flush`` completes."""
        if self.running.get(job.id, self._starting.get(job.id)) == placement:
            return []
        self._starting[job.id] = placement
        announced = r.JobRescaling if job.id in self.running else r.JobStarting
        return [announced(job_id=job.id, placement=placement)]

    def stop(self, job: LiveJob, reason: str, *, save: bool = True) -> list[r.Record]:
        """The job stops at once."""
        self._starting.pop(job.id, None)
        if self.running.pop(job.id, None) is None:
            return []
        return [r.JobStopping(job_id=job.id, reason=reason), r.JobEnded(job_id=job.id, how="stopped")]

    def flush(self) -> None:
        """All jobs that were announced run."""
        for job_id, placement in self._starting.items():
            if job_id not in self.running:
                self.started.append(job_id)
            self.running[job_id] = placement
            self._post(r.JobFormed(job_id=job_id, placement=placement))
        self._starting = {}

    def handle(self, event: ExecutorEvent) -> list[r.Record]:
        """What was posted are records already."""
        if isinstance(event, r.JobEnded):
            self.running.pop(event.job_id, None)
        return [cast("r.Record", event)]

    def delay_of(self, job_id: str) -> str:
        """Jobs wait for nothing."""
        return ""

    def tick(self, capacity: Callable[[], Mapping[str, int]]) -> list[r.Record]:
        """Nothing happens by itself."""
        self.ticks += 1
        return []

    def close(self, *, detach: bool) -> None:
        """All jobs are gone."""
        self.running = {}
