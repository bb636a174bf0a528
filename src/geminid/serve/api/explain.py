"""Why a job waits, or has the size it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from geminid.engine.explain import Explanation, Quota, explain
from geminid.jobstate import JobPhase
from geminid.serve import documents, schemas
from geminid.serve.api.context import ApiContext, Context, NamedJob
from geminid.serve.cordons import kept_slots
from geminid.serve.deadlines import Verdict
from geminid.serve.dependencies import waits_for
from geminid.serve.jobarray import JobArray
from geminid.serve.levers import levers_of
from geminid.serve.livejob import ENDS, LiveJob
from geminid.serve.service import Published
from geminid.serve.state import ServiceState
from geminid.units import humanize_duration

router = APIRouter()


@router.get("/jobs/{job_id}/explain", response_model=schemas.Explained)
async def explained(context: Context, job: NamedJob) -> JSONResponse:
    """Why a job waits, or has the size it has."""
    service, published = context.service, context.service.published
    explanation = await _of_decision(context, published, job)
    made = context.views.summary(job)
    if explanation is None or not job.wants_slots:
        too_large = documents.too_large(job, service.cluster)
        reason, numbers, suggestions = too_large or _why_not_active(job, published.state, service.clock.now_s())
        made |= {"explanation": reason, "numbers": numbers, "suggestions": suggestions}
        return JSONResponse({**made, "sizes": [], "prices": {}, "factors": {}})
    plain = asdict(explanation)
    plain["suggestions"] = [hint["text"] for hint in plain.pop("hints")]
    made |= {"explanation": plain.pop("reason"), **plain, "slots": job.state.num_slots}
    made["numbers"] = [
        *made["numbers"],
        *documents.circumstances(job, published.state, service.clock.now_s()),
        *_slots_still_held(job, published),
    ]
    made["factors"] = documents.factors_of(service.policy, job.id)
    if changing := documents.changing(job, published.state, service.executor.delay_of(job.id)):
        made |= {"explanation": changing, "suggestions": []}
    if (deadline := made["deadline"]) is not None and deadline["verdict"] != Verdict.MET.value:
        made["numbers"] = [*made["numbers"], about_deadline(deadline, service.clock.now_s())]
        made["suggestions"] = list(dict.fromkeys([*made["suggestions"], *deadline["help"]]))
    return JSONResponse(made)


def about_deadline(deadline: Mapping[str, Any], now_s: float) -> str:
    """Whether a deadline can be met, why, and when the job finishes at the earliest."""
    earliest_s, earliest = deadline["earliest_finish_at_s"], ""
    if earliest_s is not None:
        earliest = f" (earliest finish: {humanize_duration(max(round(earliest_s - now_s), 1))} from now)"
    return f"its deadline {deadline['verdict']}: {deadline['why']}{earliest}"


async def _of_decision(context: ApiContext, published: Published, job: LiveJob) -> Explanation | None:
    """What the last decision says of a job; None if the job was not part of it."""
    service, state = context.service, published.state
    quotas = [
        Quota(f"{row['of']} {row['name']}", row["slots"], row["used"], row["borrow"])
        for row in documents.quota_documents(state)
        if (row["of"], row["name"]) in (("queue", job.spec.queue), ("owner", job.spec.owner))
    ]
    view, shown_for = await asyncio.wrap_future(service.query(lambda planner: planner.view_with(job.id)))
    return explain(
        view,
        job.id,
        prices=context.forecaster.prices() if service.market.has_weighed(shown_for) else {},
        quotas=quotas,
        decided=published.reasons.get(shown_for),
        cordoned={other: len(slots) for other, slots in kept_slots(state, service.cluster).items()},
        levers=levers_of(job, state, service.cluster, service.policy),
        last=published.last_decision,
    )


def _slots_still_held(job: LiveJob, published: Published) -> list[str]:
    """How many slots jobs hold that are being stopped, if it matters to another job."""
    stopping = [other for other in published.state.jobs.values() if other.phase is JobPhase.STOPPING]
    if not stopping or job.phase is JobPhase.STOPPING:
        return []
    held = sum(other.state.num_slots for other in stopping)
    names = ", ".join(other.id for other in stopping[:3])
    return [f"jobs that are being stopped still hold {held} more: {names}"]


def _about_array(job: LiveJob, array: JobArray) -> tuple[str, list[str], list[str]]:
    """How far an array is, and where to look for the reasons of its elements."""
    limit = None if job.spec.array is None else job.spec.array.limit
    numbers = [f"{array.unmade} of its {array.total} elements are not queued yet, {array.active} are active"]
    if limit is not None:
        numbers.append(f"at most {limit} may be active at a time")
    return "elements are queued as soon as there are slots for them", numbers, [f"geminid queue --array {job.id}"]


def _why_not_active(job: LiveJob, state: ServiceState, now_s: float) -> tuple[str, list[str], list[str]]:
    """Why a policy may not give slots to a job: a sentence, numbers, and what would change it."""
    if job.phase.is_terminal:
        suggestions = ["submit it again with a larger gpu_time_budget"] if job.over_budget else []
        reason = job.state.reason
        if reason.startswith(job.phase.value):  # "cancelled by ann"
            return f"it was {reason}", [], suggestions
        return f"it {ENDS[job.phase]}" + (f": {reason}" if reason else ""), [], suggestions
    resume = [f"geminid resume {job.id}"]
    if job.phase is JobPhase.PAUSED:
        return f"it was {job.wished or 'paused'}, and waits until it is resumed", [], resume
    if job.wish != "run":
        what, why = "cancelled" if job.wish == "cancel" else "paused", f" ({job.wished})" if job.wished else ""
        sentence = f"it is being {what}{why}: its processes are stopping, and hold their slots until they end"
        return sentence, [], resume if job.wish == "pause" else []
    if job.blocked:
        return "it waits for other jobs", waits_for(state, job), []
    if job.array is not None:
        return _about_array(job, job.array)
    if job.held_until_s > now_s:
        return f"it is tried again in {job.held_until_s - now_s:.0f} s: {job.state.reason}", [], []
    return "the next decision will consider it", [], []
