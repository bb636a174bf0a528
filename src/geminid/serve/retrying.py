"""What a job's retry rules make of a failure, before it is written to the log.

A rule may end a job that would be tried again, or set how long it waits. The record then says so: the state follows
from the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals

from geminid.process.logfiles import RESTARTED, last_lines
from geminid.retryrule import RetryAction, matching
from geminid.serve import records as r
from geminid.serve.livejob import LiveJob

#: Lines at the end of a log in which rules look for their text.
MAX_LINES = 200

_EXIT_CODE = re.compile(r"ended with exit code ([0-9]{1,3})\b")
_SIGNAL = re.compile(r"\b(SIG[A-Z0-9]+)\b")


def exit_code_in(reason: str) -> int | None:
    """The exit code in a reason (:func:`geminid.process.launch.how_it_ended`); 128 + its number for a signal."""
    if found := _EXIT_CODE.search(reason):
        return int(found[1])
    named = _SIGNAL.search(reason)
    return 128 + Signals[named[1]] if named and named[1] in Signals.__members__ else None


def judged(records: Sequence[r.Record], jobs: Mapping[str, LiveJob], logs_of: Callable[[str], Path]) -> list[r.Record]:
    """What is to be written of what happened: of failures, what the rules of their jobs make of them.

    ``logs_of`` is the folder of a job's logs.
    """
    found: list[r.Record] = []
    for record in records:
        job = jobs.get(r.job_of(record) or "")
        found += [record] if job is None or not job.spec.retry else _judged(record, job, logs_of(job.id))
    return found


def _judged(record: r.Record, job: LiveJob, logs: Path) -> list[r.Record]:
    """A record about a job with rules: changed, or followed by another, if one of them applies to a failure."""
    is_crash = isinstance(record, r.JobEnded) and record.how == "crashed"
    if not (is_crash or isinstance(record, r.WorkerLost)):
        return [record]
    assert isinstance(record, r.JobEnded | r.WorkerLost)
    worker = record.worker if isinstance(record, r.WorkerLost) else None
    rule = matching(job.spec.retry, exit_code_in(record.reason), _lines_of_last_try(logs, worker))
    if rule is None:
        return [record]
    if rule.then is RetryAction.STOP:
        what = f"worker {record.worker} " if isinstance(record, r.WorkerLost) else ""
        reason = f"{what}{record.reason}; not tried again: {rule.condition}"
        ended = r.JobEnded(job_id=record.job_id, how="failed", reason=reason[:500], failures=job.state.failures + 1)
        return [ended] if isinstance(record, r.JobEnded) else [record, ended]
    return [replace(record, retry_s=rule.wait_s)] if isinstance(record, r.JobEnded) else [record]


def _lines_of_last_try(logs: Path, worker: str | None) -> list[str]:
    """The last lines that the job, or one worker, printed since it was last started."""
    lines = last_lines(logs, MAX_LINES, worker)
    starts = [i for i, line in enumerate(lines) if line.startswith(RESTARTED)]
    return lines[starts[-1] + 1 :] if starts else lines
