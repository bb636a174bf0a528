"""What benchmarks share that run real jobs in a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from geminid.serve.client import Client
from geminid.testing.waiting import wait_until

#: Where the service answers a request for a job when the job has ended, but after this many seconds at the latest.
LONG_POLL_S = 20.0


class BenchmarkFailed(Exception):
    """A job did not do what it should: what was expected, what happened, after how long, and where to look."""


def submit_at(arrivals: Iterable[tuple[float, dict[str, object]]], client: Client) -> list[str]:
    """Submit jobs, each this many seconds from now (in ascending order); their ids."""
    began_s, ids = time.monotonic(), []
    for at_s, job in arrivals:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        ids.append(submit(client, job))
    return ids


def submit(client: Client, job: dict[str, object]) -> str:
    """Submit a job; its id."""
    return str(client.post("jobs", job)["id"])


def wait_for_end(client: Client, job_id: str, timeout_s: float) -> dict[str, Any]:
    """Wait until a job has ended, in whatever way; the job then.

    Raises:
        BenchmarkFailed: it did not end in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        job: dict[str, Any] = client.get(f"jobs/{job_id}", wait_s=LONG_POLL_S)
        if job["finished_at_s"] is not None:
            return job
        if time.monotonic() > deadline_s:
            raise BenchmarkFailed(f"job {job_id} was still {job['phase']} after {timeout_s:g} s")


def wait_for_success(client: Client, job_ids: Iterable[str], timeout_s: float) -> None:
    """Wait until all of these jobs have succeeded.

    Raises:
        BenchmarkFailed: one did not, or not in time.
    """
    deadline_s = time.monotonic() + timeout_s
    for job_id in job_ids:
        job = wait_for_end(client, job_id, max(0.0, deadline_s - time.monotonic()))
        if job["phase"] != "succeeded":
            raise BenchmarkFailed(f"job {job_id} is {job['phase']}: {job['reason']}")


def wait_until_jobs(client: Client, reached: Callable[[], bool], expected: str, timeout_s: float) -> None:
    """Wait for a condition on a service's jobs or nodes.

    Raises:
        BenchmarkFailed: it did not hold in time; the message names the jobs.
    """
    try:
        wait_until(reached, timeout_s=timeout_s, problem=f"expected {expected}")
    except TimeoutError as late:
        jobs = "; ".join(f"{job['id']} is {job['phase']}: {job['reason']}" for job in client.get("jobs"))
        raise BenchmarkFailed(f"{late}; {jobs or 'no job is active'}") from None
