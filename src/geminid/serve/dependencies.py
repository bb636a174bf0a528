"""Jobs that are to run after others: which jobs are meant, and what becomes of them when those have ended.

Pure functions of the service's state. A job is ``blocked`` until a ``DependenciesSettled`` record releases or cancels
it; that record follows from the state alone, so a service that was killed before it was written writes it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from geminid.dependency import Dependency, When, find_cycle
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.arrays import unmade_element
from geminid.serve.jobnames import NotOneJob, named_job
from geminid.serve.livejob import ENDS, LiveJob
from geminid.serve.state import ServiceState

#: The most jobs that can be submitted at once.
MAX_GROUP = 1000

#: How a job must end, in words.
MUST = {When.OK: "must succeed", When.ANY: "must end", When.FAILED: "must fail"}


def settlements(state: ServiceState) -> list[r.Record]:
    """The records of jobs whose dependencies are all met now, or of which one never will be."""
    records: list[r.Record] = []
    for job_id in sorted(state.unsettled):
        job = state.jobs[job_id]
        if not job.blocked:
            continue
        verdicts = [_is_met(state.jobs, one) for one in job.spec.after]
        if False in verdicts:
            reason = _why_never(state.jobs, job.spec.after[verdicts.index(False)])
            records.append(r.DependenciesSettled(job_id=job_id, met=False, reason=reason))
        elif None not in verdicts:
            records.append(r.DependenciesSettled(job_id=job_id, met=True))
    return records


def waits_for(state: ServiceState, job: LiveJob) -> list[str]:
    """What a blocked job waits for, in words."""
    undecided = [one for one in job.spec.after if _is_met(state.jobs, one) is None]
    return [f"{one.job} {MUST[one.when]} first" for one in undecided]


def resolved(spec: JobSpec, state: ServiceState, owner: str, now_s: float, others: Mapping[str, str]) -> JobSpec:
    """The job with identifiers in place of the names that it waits for; ``others`` are jobs submitted with it, by name.

    Raises:
        InvalidInput: there is no such job, there are several, or one ended in a way by which this one never starts.
    """
    found, problems = [], []
    for one in spec.after:
        if one.job in others:
            found.append(replace(one, job=others[one.job]))
            continue
        try:
            known = replace(one, job=named_job(state.jobs, one.job, owner, now_s).id)
        except NotOneJob as problem:
            problems.append(Problem("after", one.job, f"must be one job: {problem}"))
            continue
        found.append(known)
        if _is_met(state.jobs, known) is False:
            problems.append(Problem("after", str(one), f"can never be met: {_why_never(state.jobs, known)}"))
    if problems:
        raise InvalidInput(problems)
    return replace(spec, after=tuple(found))


def read_group(given: object) -> list[JobSpec]:
    """The jobs of a file that has several, under ``jobs``.

    Raises:
        InvalidInput: with all mistakes of all jobs.
    """
    fields = given if isinstance(given, Mapping) else {}
    listed = fields.get("jobs")
    if not isinstance(listed, list) or not listed or len(fields) > 1:
        raise InvalidInput([Problem("jobs", NOT_SHOWN, "must be a list of jobs, and stand alone in the file")])
    if len(listed) > MAX_GROUP:
        raise InvalidInput([Problem("jobs", len(listed), f"must be at most {MAX_GROUP} jobs")])
    specs, problems = [], []
    for i, one in enumerate(listed):
        try:
            specs.append(JobSpec.from_dict(one))
        except InvalidInput as found:
            problems += [replace(problem, field=f"jobs[{i}].{problem.field}") for problem in found.problems]
    if problems:
        raise InvalidInput(problems)
    check_group(specs)
    return specs


def check_group(specs: Sequence[JobSpec]) -> None:
    """Make sure that jobs that are submitted together can refer to each other.

    Raises:
        InvalidInput: two have the same name, or some wait for each other in a circle.
    """
    names = [spec.name for spec in specs]
    problems = [
        Problem("name", name, "must be the name of one job in the file")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if cycle := find_cycle({spec.name: [one.job for one in spec.after] for spec in specs}):
        problems.append(Problem("after", " → ".join(cycle), "must not lead back to a job itself: none could start"))
    if problems:
        raise InvalidInput(problems)


def _is_met(jobs: Mapping[str, LiveJob], one: Dependency) -> bool | None:
    """Whether a dependency is met; None if that is not decided yet."""
    job = jobs.get(one.job) or unmade_element(jobs, one.job)
    if job is None:  # it is over, and not retained any more
        return one.when is When.ANY
    if not job.phase.is_terminal:
        return None
    wanted = {When.OK: JobPhase.SUCCEEDED, When.FAILED: JobPhase.FAILED}
    return one.when is When.ANY or job.phase is wanted[one.when]


def _why_never(jobs: Mapping[str, LiveJob], one: Dependency) -> str:
    job = jobs.get(one.job) or unmade_element(jobs, one.job)
    how = "is not retained any more" if job is None else ENDS[job.phase]
    return f"{one.job} {MUST[one.when]} first, and it {how}"
