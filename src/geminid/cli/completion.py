"""Completion of job identifiers and names in shells (the option ``--install-completion`` sets it up)."""

from __future__ import annotations

#: The newest jobs that are offered.
MAX_JOBS = 500

#: Time in which the service must answer a shell, in seconds.
ANSWER_S = 2.0


def complete_jobs(incomplete: str) -> list[tuple[str, str]]:
    """The identifiers and names of jobs that begin so, with what they are; none if the service does not answer."""
    from geminid.serve.client import Client

    try:
        found = Client.here(timeout_s=ANSWER_S).get("jobs", all=True, limit=MAX_JOBS)
        jobs = [(job["id"], job["name"], job["phase"]) for job in found]
    except Exception:  # a shell must not be shown a trace
        return []
    ids = [(job_id, f"{name}, {phase}") for job_id, name, phase in jobs]
    names = [(name, f"{job_id}, {phase}") for job_id, name, phase in jobs]
    return [one for one in [*ids, *dict(names).items()] if one[0].startswith(incomplete)]
