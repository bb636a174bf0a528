"""Jobs as the interface shows them: their state, their place in the queue, and when they will start and finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geminid.serve import documents
from geminid.serve.forecast import Forecast, can_start, waiting_order
from geminid.serve.forecaster import Forecaster
from geminid.serve.livejob import LiveJob
from geminid.serve.observe.rows import Row, row_of
from geminid.serve.service import Published, Service


class JobViews:
    """Makes the documents of jobs; what concerns all jobs is computed once for each published state."""

    def __init__(self, service: Service, forecaster: Forecaster) -> None:
        self._service, self._forecaster = service, forecaster
        self._positions: tuple[Published, Mapping[str, Forecast], dict[str, int]] | None = None
        self._slots: tuple[Published, dict[str, documents.Slots]] | None = None

    def now_s(self) -> float:
        """The service's time, not before the state that is shown."""
        return max(self._service.published.now_s, self._service.clock.now_s())

    def positions(self) -> Mapping[str, int]:
        """The place in the queue of each waiting job.

        Jobs that need more slots than the cluster has, or than their quotas allow, have none.
        """
        published, forecasts = self._service.published, self._forecaster.made
        known = self._positions
        if known is None or known[0] is not published or known[1] is not forecasts:
            state, cluster = published.state, self._service.cluster
            startable = [
                job for job in state.jobs.values() if can_start(job, cluster, state.quotas_of(job.id), state.may_borrow)
            ]
            order = waiting_order(startable, forecasts)
            self._positions = known = (published, forecasts, {job_id: i + 1 for i, job_id in enumerate(order)})
        return known[2]

    def summary(self, job: LiveJob) -> dict[str, Any]:
        """A job, without its specification."""
        return self.summaries([job], self.positions())[0]

    def summaries(self, jobs: Sequence[LiveJob], positions: Mapping[str, int]) -> list[dict[str, Any]]:
        """Several jobs, all at the same time."""
        now_s = self.now_s()
        return [
            {**documents.job_document(job, now_s, positions.get(job.id)), **self._outlook(job, now_s)} for job in jobs
        ]

    def row(self, job: LiveJob) -> Row:
        """A job as one row of a table that many people watch."""
        now_s, reason = self.now_s(), job.state.reason or documents.waits_after(job)
        if (needs := documents.needs_of(job, self._slots_by_type())) is not None:
            short = f"needs {needs['slots']} slots, {needs['free']} of {needs['in_service']} are free"
            reason = self._service.published.reasons.get(job.id) or job.why or reason or short
        return row_of(job, self.positions().get(job.id), self._forecaster.of(job, now_s), reason, now_s)

    def details(self, job: LiveJob) -> dict[str, Any]:
        """A job with its specification, its story and what was measured."""
        now_s = self.now_s()
        return {**documents.job_details(job, now_s, self.positions().get(job.id)), **self._outlook(job, now_s)}

    def _outlook(self, job: LiveJob, now_s: float) -> dict[str, Any]:
        """When a job will start and finish, whether it meets its deadline, and what it needs."""
        return {
            **self._forecaster.of(job, now_s),
            "deadline": self._forecaster.deadline_of(job, now_s),
            "needs": documents.needs_of(job, self._slots_by_type()),
        }

    def _slots_by_type(self) -> dict[str, documents.Slots]:
        published = self._service.published
        if self._slots is None or self._slots[0] is not published:
            self._slots = (published, documents.slots_by_type(published.state, self._service.cluster))
        return self._slots[1]
