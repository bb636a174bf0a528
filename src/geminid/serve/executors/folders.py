"""Where the files of jobs are: one folder per job in the service's, and the checkpoints there or on a storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from geminid.supervise.setaside import CHECKPOINTS

#: Where the folders of jobs are, in the service's.
JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class JobFolders:
    """The folders of all jobs of a service, which are below ``home``.

    ``storage`` is the fsspec URL below which checkpoints are, one folder per job; without one they are in the jobs'
    folders.
    """

    home: Path
    storage: str | None = None

    @property
    def root(self) -> Path:
        """The folder that has a folder for each job."""
        return self.home / JOBS

    def folder_of(self, job_id: str) -> Path:
        """The folder of a job: its socket, its logs, and its checkpoints unless there is a storage."""
        return self.root / job_id

    def logs_of(self, job_id: str) -> Path:
        """The folder of a job's logs."""
        return self.folder_of(job_id) / "logs"

    def checkpoints_of(self, job_id: str) -> Path | str:
        """Where the checkpoints of a job are: a folder, or an fsspec URL."""
        if self.storage is None:
            return self.folder_of(job_id) / CHECKPOINTS
        return f"{self.storage.rstrip('/')}/{job_id}"
