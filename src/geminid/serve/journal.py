"""The service's log and its state: records are tried, written and then applied, all of a batch or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geminid.clock import Clock
from geminid.serve import records as r
from geminid.serve.histograms import WAITS
from geminid.serve.livejob import LiveJob, StoryLine
from geminid.serve.quarantine import implausible, tried
from geminid.serve.state import ServiceState
from geminid.serve.store import Entry, Store, StoreProblem, StoreTaken

log = logging.getLogger("geminid.serve")


class Journal:
    """The log, and the state as its records have made it.

    ``probe`` raises if nothing can be planned with a job at a time: such a job is put into quarantine. ``on_entry`` is
    called with every record that has been written and applied. ``unwritten`` are records of what has happened that
    could not be written yet, and ``trouble`` says why not. ``touched`` are the jobs that records were about since the
    set was last cleared, ``nodes_changed`` if nodes have come or gone. ``waits`` are the times that
    jobs waited for their first slots.
    """

    def __init__(self, store: Store, probe: Callable[[LiveJob, float], object], clock: Clock | None = None) -> None:
        self.store, self.state = store, store.load()
        self.clock = clock or Clock(self.state.at_s)
        self._probe = lambda job: probe(job, self.clock.now_s())
        self.nodes_changed = False
        self.on_entry: Callable[[Entry], None] = lambda entry: None
        self.unwritten: list[r.Record] = []
        self.touched: set[str] = set()
        self.trouble = ""
        self.waits = WAITS
        self._quarantine_implausible()

    def _quarantine_implausible(self) -> None:
        """Put the jobs of the log into quarantine that nothing can be planned with."""
        now_s = self.clock.now_s()
        if found := implausible(self.state.copy(), now_s, self.active_jobs(), self._probe):
            for entry in self.store.append(now_s, found, self.state.seq):
                self.state.apply(entry.seq, entry.at_s, entry.record)

    def active_jobs(self) -> list[LiveJob]:
        """The jobs that are not over."""
        return [job for job in self.state.jobs.values() if not job.phase.is_terminal]

    def touch_active_jobs(self) -> None:
        """Have all jobs looked at again that are not over."""
        self.touched |= {job.id for job in self.active_jobs()}

    def trial(self, records: Sequence[r.Record]) -> tuple[ServiceState, list[r.Record]]:
        """A copy of the state with records applied, and those to write: quarantine in place of impossible ones."""
        trial = self.state.copy()
        return trial, tried(trial, self.clock.now_s(), records, self._probe)

    def commit(self, records: Sequence[r.Record], *, were_tried: bool = False) -> bool:
        """Write records and apply them; whether that worked.

        They are applied to a copy of the state before they are written, unless they ``were_tried`` already.
        """
        if not records:
            return True
        if not were_tried:
            records = self.trial(records)[1]
        try:
            entries = self.store.append(self.clock.now_s(), records, self.state.seq)
        except StoreTaken:
            raise  # another service has taken over: nothing that this one does counts
        except StoreProblem as problem:
            if self.trouble != str(problem):
                log.error("%s", problem)
            self.trouble = str(problem)
            return False
        self.trouble = ""
        for entry in entries:
            self._apply(entry)
        return True

    def _apply(self, entry: Entry) -> None:
        record, about = entry.record, r.jobs_of(entry.record)
        if isinstance(record, r.JobStarting):
            job = self.state.jobs.get(record.job_id)
            if job is not None and job.state.first_started_at_s is None:
                self.waits = self.waits.plus(entry.at_s - job.state.submitted_at_s - job.rested_s)
        before = {job_id: self._last_line(job_id) for job_id in about}
        self.state.apply(entry.seq, entry.at_s, record)
        self._log_story(entry, before)
        self.touched |= about
        if isinstance(record, r.JobHeld):  # other jobs may have been planned for the slots that it stays on
            self.touch_active_jobs()
        self.nodes_changed |= isinstance(record, r.NodeJoined | r.NodeLeft | r.NodeForgotten)
        if isinstance(record, r.Noted):
            log.log(logging.WARNING if record.level != "info" else logging.INFO, "%s", record.text)
        self.on_entry(entry)

    def _last_line(self, job_id: str) -> StoryLine | None:
        job = self.state.jobs.get(job_id)
        return job.story[-1] if job is not None and job.story else None

    def _log_story(self, entry: Entry, before: Mapping[str, StoryLine | None]) -> None:
        """Log what a record has added to the stories of jobs. ``before`` were their last lines."""
        for job_id, last in before.items():
            line = self._last_line(job_id)
            if line is not None and line is not last:
                fields: dict[str, Any] = {"seq": entry.seq, "event": r.kind_of(entry.record), "job": job_id}
                fields |= {"slots": line.slots, "pause_s": line.pause_s}
                log.info("%s: %s", job_id, line.text, extra={"fields": fields})

    def keep_unwritten(self, records: Sequence[r.Record]) -> None:
        """Keep what could not be written; of each job only the last report, since it may take long."""
        last = {record.job_id: record for record in records if isinstance(record, r.JobProgressed)}
        self.unwritten = [one for one in records if not isinstance(one, r.JobProgressed) or last[one.job_id] is one]

    def take_unwritten(self) -> list[r.Record]:
        """What could not be written, to be written now."""
        records, self.unwritten = self.unwritten, []
        return records

    def published_state(self) -> ServiceState:
        """A copy of the state for readers, with what has happened and could not be written yet."""
        state = self.state.copy()
        for record in self.unwritten:
            state.apply(state.seq + 1, self.clock.now_s(), record)
        return state
