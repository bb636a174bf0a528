"""The service's interface: HTTP and JSON under ``/api/v1``, described by ``/api/v1/openapi.json``.

Whoever asks shows a bearer token; users change their own jobs, admins everything. Requests must name this machine in
``Host`` and, if they come from a web page, in ``Origin``: other pages cannot use a browser to get here, not even by
making a name point to this machine. Everything that is refused is told, and noted or counted for the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import TypeAdapter

from geminid import __version__
from geminid.documents import load_json
from geminid.engine.explain import Quota, explain
from geminid.fields import MAX_TEXT_LENGTH, InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.nodes import MAX_SLOTS
from geminid.serve import documents, schemas
from geminid.serve.auth import DamagedTokens, Identity, Tokens, changes
from geminid.serve.client import TOTAL
from geminid.serve.cordons import kept_slots
from geminid.serve.forecast import Forecast, Forecaster, can_start, in_service, waiting_order
from geminid.serve.livejob import ENDS, LiveJob, job_to_dict, printable
from geminid.serve.logfiles import LogReader, Tails, last_words
from geminid.serve.metrics import metrics_text
from geminid.serve.refusals import NOBODY, Refusals
from geminid.serve.service import Published, Refused, Service
from geminid.serve.store import StoreProblem, last_entries
from geminid.serve.whatif import with_forerunners

PREFIX = "/api/v1"

#: Where a service proves to know a token.
PROOF = f"{PREFIX}/proof"

#: No record has a larger number.
LARGEST_SEQ = (1 << 63) - 1

#: Names that stand for this machine.
OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

#: Log followers look for news so often.
FOLLOW_S = 0.5

#: Where somebody was in logs: ``w1:312,w2:-40``. Before zero is what was put aside.
POSITIONS = r"^[^,:/]{1,100}:-?\d{1,15}(,[^,:/]{1,100}:-?\d{1,15})*$"

#: So many of the last lines of a job that failed are told.
LAST_LINES = 10

#: A request that waits for a job is answered after so long at the latest, and asked again.
LONGEST_WAIT_S = 30.0


def make_app(
    service: Service,
    tokens: Tokens,
    home: Path,
    *,
    url: str,
    shut_down: Callable[[bool], None],
    ending: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """The interface of a service. ``shut_down`` is called, with whether to leave jobs running, to end it.

    While it is ``ending`` nobody is kept waiting.
    """
    app = FastAPI(
        title="Geminid",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": schemas.Errors}, "5XX": {"model": schemas.Errors}},
    )
    started_s = time.monotonic()
    forecaster = Forecaster(service)
    tails = Tails()

    def audit(sentence: str) -> None:
        with contextlib.suppress(Refused):  # it is ending
            service.note("audit", sentence)

    refusals = Refusals(audit, lambda close: asyncio.get_running_loop().call_later(60.0, close))

    def refuse(request: Request, status: int, sentence: str, who: str = NOBODY) -> JSONResponse:
        client = request.client.host if request.client is not None else "?"
        path = printable(request.url.path)[:200]
        refusals.refused(who, f"{status} for {who} at {client}: {request.method} {path}")
        return _told(status, sentence)

    seen = tokens.all()

    def audit_tokens() -> None:
        """Note what was done to tokens since the last request."""
        now = tokens.all()
        if now != seen:
            for sentence in changes(seen, now):
                audit(sentence)
            seen[:] = now

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:  # half an address in brackets
            host = None
        if host not in OWN_NAMES:
            return refuse(request, 403, f"requests must be to this machine, not to {str(host)[:100]!r}")
        origin = request.headers.get("origin")
        if origin is not None and origin != url:
            return refuse(request, 403, f"requests from pages of {origin[:100]!r} are refused")
        if request.url.path == PROOF:
            return await answer(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            identity = tokens.identify(token.strip()) if scheme.lower() == "bearer" else None
            audit_tokens()
        except DamagedTokens as problem:
            return _told(503, str(problem))
        if identity is None:
            return refuse(request, 401, "a valid token is needed, as in Authorization: Bearer TOKEN")
        if int(request.headers.get("content-length") or 0) > MAX_TEXT_LENGTH:
            return _told(413, f"a request has at most {MAX_TEXT_LENGTH:,} bytes")
        request.state.identity = identity
        return await answer(request)

    @app.exception_handler(Refused)
    async def on_refused(request: Request, problem: Refused) -> JSONResponse:
        if problem.status == 403:
            return refuse(request, 403, str(problem), request.state.identity.user)
        return _told(problem.status, str(problem))

    @app.exception_handler(InvalidInput)
    async def on_invalid(request: Request, problem: InvalidInput) -> JSONResponse:
        return _told(422, *map(str, problem.problems))

    @app.exception_handler(RequestValidationError)
    async def on_malformed(request: Request, problem: RequestValidationError) -> JSONResponse:
        sentences = [
            f"{entry['loc'][-1]} is {str(entry.get('input'))[:100]!r}, but {_must(entry['msg'])}"
            for entry in problem.errors()
        ]
        return _told(422, *sentences)

    @app.exception_handler(StoreProblem)
    async def on_store(request: Request, problem: StoreProblem) -> JSONResponse:
        return _told(507, str(problem))

    def who(request: Request) -> Identity:
        identity: Identity = request.state.identity
        return identity

    def admin(request: Request) -> str:
        if not who(request).is_admin:
            raise Refused(403, "only an admin may do this")
        return who(request).user

    def found(job_id: str) -> LiveJob:
        job = service.published.state.jobs.get(job_id)
        if job is None:
            raise Refused(404, f"there is no job {job_id[:100]}")
        return job

    def may_read(request: Request, job: LiveJob) -> bool:
        """Whether somebody may see a job's command and what it prints: those of others are their own affair."""
        return who(request).is_admin or job.spec.owner == who(request).user

    def own(request: Request, job_id: str) -> LiveJob:
        job = found(job_id)
        if not may_read(request, job):
            raise Refused(
                403, f"job {job_id} belongs to {job.spec.owner}, and only {job.spec.owner} and admins may change it"
            )
        return job

    @app.get(PROOF, response_model=schemas.Proof)
    async def proof(
        of: Annotated[str, Query(max_length=64)], challenge: Annotated[str, Query(max_length=64)]
    ) -> JSONResponse:
        """Prove to know the token of a fingerprint, before it is shown; the one request that needs no token."""
        made = tokens.prove(of, challenge)
        if made is None:
            raise Refused(401, "this token is not known here")
        return JSONResponse({"proof": made})

    counted: list[tuple[Published, Mapping[str, Forecast], dict[str, int]]] = []

    def positions() -> dict[str, int]:
        """Everybody's place in the queue, counted once for each published state and forecast.

        Those that need more slots than there are, or than their quotas allow, have none.
        """
        published, made = service.published, forecaster.made
        if not counted or counted[0][0] is not published or counted[0][1] is not made:
            state = published.state
            order = waiting_order(
                [
                    job
                    for job in state.jobs.values()
                    if can_start(job, service.cluster, state.quotas_of(job.id), state.may_borrow)
                ],
                made,
            )
            counted[:] = [(published, made, {job_id: i + 1 for i, job_id in enumerate(order)})]
        return counted[0][2]

    def document(job: LiveJob, *, details: bool = False) -> dict[str, Any]:
        now_s = max(service.published.now_s, service.clock.now_s())
        made = (documents.job_details if details else documents.job_document)(job, now_s, positions().get(job.id))
        return {**made, **forecaster.of(job, now_s)}

    # Answers are made here as they are, because FastAPI would look at every value once more.

    @app.post(
        f"{PREFIX}/jobs",
        status_code=201,
        response_model=schemas.Job | schemas.DryRun,
        openapi_extra=_body_of(schemas.JobFile),
    )
    async def submit(
        request: Request,
        dry_run: bool = False,
        python: Annotated[str | None, Query(pattern="^/", max_length=4096)] = None,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> JSONResponse:
        """Submit a job: the fields of a job file. ``Idempotency-Key`` makes it safe to ask again.

        A key that was used for another job is refused. A command ``python`` is this ``python`` (a path), where jobs run
        on this machine: that of whoever submits, where the script's imports are.
        """
        spec = JobSpec.from_dict(load_json((await _body(request)).decode("utf-8", "replace")))
        accepted = await asyncio.to_thread(service.accepted, spec, who(request).user, python)
        if dry_run:
            return JSONResponse(await asyncio.to_thread(forecaster.dry_run, accepted))
        key = None if idempotency_key is None else f"{who(request).user}:{idempotency_key}"
        digest = hashlib.sha256(json.dumps(spec.to_dict(), sort_keys=True).encode()).hexdigest()
        asked = functools.partial(service.submit, request=key, digest=digest, checked=True)
        job = await _result(await asyncio.to_thread(asked, accepted, who(request).user))
        forecaster.begin()  # whoever submits asks next when it will start
        return JSONResponse(document(job), 201)

    @app.get(f"{PREFIX}/jobs", response_model=list[schemas.Job])
    async def jobs(
        state: str | None = None,
        owner: str | None = None,
        queue: str | None = None,
        all: bool = False,
        limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
    ) -> JSONResponse:
        """The jobs, newest last; those that are over only if asked for.

        Of more than ``limit``, those that run and that start next; with those that are over, the newest. The header
        ``X-Total-Count`` says how many there are.
        """
        published = service.published
        if state is not None and state not in set(JobPhase):
            raise Refused(422, f"state {state[:40]!r} must be one of {', '.join(JobPhase)}")
        chosen = [
            job
            for job in published.state.jobs.values()
            if (owner is None or job.spec.owner == owner)
            and (queue is None or job.spec.queue == queue)
            and (job.phase.value == state if state is not None else all or not job.phase.is_terminal)
        ]
        await forecaster.freshen()
        places, now_s = positions(), max(published.now_s, service.clock.now_s())
        there_are = len(chosen)
        some_are_over = all or (state is not None and JobPhase(state).is_terminal)
        if there_are > limit and not some_are_over:
            first = {job.id for job in sorted(chosen, key=lambda job: places.get(job.id, 0))[:limit]}
            chosen = [job for job in chosen if job.id in first]
        return JSONResponse(
            [
                {**documents.job_document(job, now_s, places.get(job.id)), **forecaster.of(job, now_s)}
                for job in chosen[-limit:]
            ],
            headers={TOTAL: str(there_are)},
        )

    @app.get(f"{PREFIX}/jobs/{{job_id}}", response_model=schemas.JobDetails)
    async def job(request: Request, job_id: str, wait_s: Annotated[float, Query(ge=0.0)] = 0.0) -> JSONResponse:
        """One job; with ``wait_s``, when it is over, or after so long. Its command and last lines are its owner's."""
        until = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        while not found(job_id).phase.is_terminal and time.monotonic() < until:
            if ending():
                raise Refused(503, "the service is ending")
            await asyncio.sleep(0.1)
        if not found(job_id).phase.is_terminal:
            await forecaster.freshen()
        job, lines = found(job_id), list[str]()
        if not may_read(request, job):
            made = document(job, details=True)
            return JSONResponse({**made, "spec": documents.without_private(made["spec"]), "last_lines": []})
        if job.phase is JobPhase.FAILED or (job.phase is JobPhase.PENDING and job.state.failures):
            lines = await asyncio.to_thread(last_words, service.executor.folder_of(job_id) / "logs", LAST_LINES)
        return JSONResponse({**document(job, details=True), "last_lines": lines})

    async def wished(request: Request, job_id: str, wish: str) -> JSONResponse:
        own(request, job_id)
        return JSONResponse(document(await _result(service.wish(job_id, wish, who(request).user))))

    @app.post(f"{PREFIX}/jobs/{{job_id}}/cancel", response_model=schemas.Job)
    async def cancel(request: Request, job_id: str) -> JSONResponse:
        """Give a job up."""
        return await wished(request, job_id, "cancel")

    @app.post(f"{PREFIX}/jobs/{{job_id}}/pause", response_model=schemas.Job)
    async def pause(request: Request, job_id: str) -> JSONResponse:
        """Have a job save, stop, and wait."""
        return await wished(request, job_id, "pause")

    @app.post(f"{PREFIX}/jobs/{{job_id}}/resume", response_model=schemas.Job)
    async def resume(request: Request, job_id: str) -> JSONResponse:
        """Let a paused job run again."""
        return await wished(request, job_id, "run")

    @app.patch(f"{PREFIX}/jobs/{{job_id}}", response_model=schemas.Job, openapi_extra=_body_of(schemas.JobChange))
    async def change(request: Request, job_id: str) -> JSONResponse:
        """Change a job's priority, min_slots or max_slots."""
        own(request, job_id)
        given = load_json((await _body(request)).decode("utf-8", "replace"))
        known = ("priority", "min_slots", "max_slots")
        if not isinstance(given, dict) or not set(given) <= set(known):
            raise Refused(422, f"what can be changed is {', '.join(known)}")
        if any(not isinstance(value, int) or isinstance(value, bool) for value in given.values()):
            raise Refused(422, f"{', '.join(given)} must be whole numbers")
        values = {name: given.get(name) for name in known}
        return JSONResponse(document(await _result(service.change(job_id, who(request).user, **values))))

    @app.get(f"{PREFIX}/jobs/{{job_id}}/story", response_model=list[schemas.StoryLine])
    async def story(job_id: str) -> JSONResponse:
        """What happened to a job."""
        return JSONResponse([asdict(line) for line in found(job_id).story])

    @app.get(f"{PREFIX}/jobs/{{job_id}}/explain", response_model=schemas.Explained)
    async def explained(job_id: str) -> JSONResponse:
        """Why a job waits, or has the size it has."""
        job = found(job_id)
        published = service.published
        quotas = [
            Quota(f"{row['of']} {row['name']}", row["slots"], row["used"], row["borrow"])
            for row in documents.quota_documents(published.state)
            if (row["of"], row["name"]) in (("queue", job.spec.queue), ("owner", job.spec.owner))
        ]
        view = await _result(service.view())
        decided = published.reasons.get(job_id)
        prices = forecaster.prices() if service.market.has_weighed(job_id) else {}
        cordoned = {other: len(slots) for other, slots in kept_slots(published.state, service.cluster).items()}
        told = explain(view, job_id, prices=prices, quotas=quotas, decided=decided, cordoned=cordoned)
        made = document(job)
        if told is None or not job.wants_slots:
            never = documents.too_large(job, service.cluster)
            reason, numbers, hints = never or _why_not_active(job, service.clock.now_s())
            made |= {"explanation": reason, "numbers": numbers, "suggestions": hints}
            return JSONResponse({**made, "sizes": [], "prices": {}, "factors": {}})
        plain = asdict(told)
        made |= {"explanation": plain.pop("reason"), **plain, "slots": job.state.num_slots}
        made["numbers"] = [*made["numbers"], *documents.circumstances(job, published.state, service.clock.now_s())]
        made["factors"] = documents.factors_of(service.policy, job_id)
        leaving = [other for other in published.state.jobs.values() if other.phase is JobPhase.STOPPING]
        if leaving and job.phase is not JobPhase.STOPPING:
            held = sum(other.state.num_slots for other in leaving)
            names = ", ".join(other.id for other in leaving[:3])
            made["numbers"] = [*made["numbers"], f"jobs that are told to end still hold {held} more: {names}"]
        if changing := documents.changing(job, published.state, service.executor.delay_of(job_id)):
            made |= {"explanation": changing, "suggestions": []}
        return JSONResponse(made)

    @app.get(
        f"{PREFIX}/jobs/{{job_id}}/logs",
        response_class=PlainTextResponse,
        responses={200: {"description": "What it printed, as plain text"}},
    )
    async def logs(
        request: Request,
        job_id: str,
        follow: bool = False,
        tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
        worker: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9]{1,16}$")] = None,
        frames: bool = False,
        at: Annotated[str | None, Query(pattern=POSITIONS, max_length=50_000)] = None,
    ) -> StreamingResponse:
        """What a job printed, or the last lines (``tail``) of each worker. With ``follow``, to the end of the job.

        With ``frames``, each piece follows a line of JSON that says which ``log`` it is from, how many ``bytes`` it has
        and where it ends there; whoever is cut off goes on with these places: ``at=w1:312,w2:40``.
        """
        if not may_read(request, found(job_id)):
            owner = found(job_id).spec.owner
            raise Refused(403, f"job {job_id} belongs to {owner}, and only {owner} and admins may read its logs")
        folder = service.executor.folder_of(job_id) / "logs"
        if worker is not None and not (folder / f"{worker}.log").exists() and not follow:
            known = sorted(path.stem for path in folder.glob("*.log"))
            raise Refused(404, f"job {job_id} has no log of a worker {worker}; it has {', '.join(known) or 'none yet'}")
        reader = LogReader(folder, worker, tails if follow else Tails())
        if at is not None:
            reader.go_on({name: int(place) for name, _, place in (part.partition(":") for part in at.split(","))})
        else:
            await asyncio.to_thread(reader.start, tail)

        def frame(log: str, end: int, piece: bytes) -> bytes:
            head = json.dumps({"log": log, "end": end, "bytes": len(piece)}).encode() + b"\n" if frames else b""
            return head + piece

        async def pieces() -> AsyncIterator[bytes]:
            for log, begin in reader.positions().items() if frames else ():
                yield frame(log, begin, b"")
            while True:
                over = found(job_id).phase.is_terminal
                if over:
                    reader.tails = Tails()  # to the very end
                for log, end, piece in reader.pieces():
                    yield frame(log, end, piece)
                if over or not follow or not service.alive or ending():
                    return
                await asyncio.sleep(FOLLOW_S * random.uniform(0.5, 1.5))  # followers of one log not all at once

        return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8")

    @app.get(f"{PREFIX}/nodes", response_model=list[schemas.Node])
    async def nodes() -> JSONResponse:
        """The nodes and who is on their slots."""
        return JSONResponse(documents.node_documents(service.published.state, service.cluster))

    @app.post(f"{PREFIX}/nodes/{{node}}/drain")
    async def drain(request: Request, node: str) -> None:
        """Let a node take no more work; jobs move off it."""
        await _result(service.drain(node, True, admin(request)))

    @app.post(f"{PREFIX}/nodes/{{node}}/undrain")
    async def undrain(request: Request, node: str) -> None:
        """Let a node take work again."""
        await _result(service.drain(node, False, admin(request)))

    @app.post(f"{PREFIX}/slots/{{node}}/{{slot}}/cordon")
    async def cordon(request: Request, node: str, slot: int) -> None:
        """Let a slot take no more work."""
        await _result(service.cordon(node, slot, True, admin(request)))

    @app.post(f"{PREFIX}/slots/{{node}}/{{slot}}/uncordon")
    async def uncordon(request: Request, node: str, slot: int) -> None:
        """Let a slot take work again."""
        await _result(service.cordon(node, slot, False, admin(request)))

    @app.get(f"{PREFIX}/quotas", response_model=list[schemas.QuotaLine])
    async def quotas() -> JSONResponse:
        """The quotas."""
        return JSONResponse(documents.quota_documents(service.published.state))

    @app.put(f"{PREFIX}/quotas/{{of}}/{{name}}", response_model=list[schemas.QuotaLine])
    async def set_quota(
        request: Request,
        of: str,
        name: str,
        slots: Annotated[int | None, Query(ge=0, le=MAX_SLOTS)] = None,
        borrow: bool = False,
    ) -> JSONResponse:
        """Set the quota of a queue or an owner; without a number, lift it. With ``borrow``, it may be exceeded.

        That is, for as long as the jobs of others, within their quotas, cannot use the slots.
        """
        await _result(service.set_quota(of, name, slots, admin(request), borrow=borrow))
        return JSONResponse(documents.quota_documents(service.published.state))

    @app.get(f"{PREFIX}/usage", response_model=list[schemas.Usage])
    async def usage() -> JSONResponse:
        """What everybody has used."""
        return JSONResponse(documents.usage_documents(service.published.state, service.clock.now_s()))

    @app.get(f"{PREFIX}/events", response_model=list[schemas.Event])
    async def events(
        request: Request,
        after: Annotated[int | None, Query(ge=0, le=LARGEST_SEQ)] = None,
        job: Annotated[str | None, Query(max_length=100)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> JSONResponse:
        """The log: the newest records, or those after a number; with ``job``, those about it.

        Commands of jobs are their owners' to see.
        """
        entries = await asyncio.to_thread(last_entries, home, limit, after, job)
        if job is not None and after is None and not entries and job not in service.published.state.jobs:
            raise Refused(404, f"there is no job {job}")
        told = [entry.to_plain() for entry in entries]
        for entry in told:
            if "spec" in entry and not (who(request).is_admin or entry["spec"].get("owner") == who(request).user):
                entry["spec"] = documents.without_private(entry["spec"])
        return JSONResponse(told)

    @app.get(f"{PREFIX}/status", response_model=schemas.Status)
    async def status(request: Request) -> JSONResponse:
        """The service at a glance."""
        extra = {
            "url": url,
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": time.monotonic() - started_s,
            "user": who(request).user,
            "role": who(request).role,
            "ending": service.ending,
            "awaited": service.awaited,
            **documents.market_document(service.market, service.cluster),
        }
        return JSONResponse(documents.status_document(service.published, service.cluster, service.policy_text, extra))

    @app.get(f"{PREFIX}/snapshot", response_model=schemas.Snapshot)
    async def snapshot(request: Request) -> JSONResponse:
        """All active jobs with what has been measured of them, for what-if simulations; without secrets.

        Of those that are over, the last one of the name and owner of each.
        """
        state = service.published.state
        cluster = in_service(service.cluster, state)
        chosen = with_forerunners(state.jobs.values())
        jobs = [job_to_dict(job) for job in chosen]
        quotas = {job.id: dict(state.quotas_of(job.id)) for job in chosen if job.wants_slots}
        for plain in jobs:
            plain["state"]["spec"].pop("env", None)
            del plain["digest"]
        for job, plain in zip(chosen, jobs, strict=True):
            if not may_read(request, job):  # a job needs some command
                plain["state"]["spec"] = {**documents.without_private(plain["state"]["spec"]), "command": ["hidden"]}
        return JSONResponse(
            {
                "now_s": service.clock.now_s(),
                "cluster": None if cluster is None else cluster.to_dict(),
                "policy": service.policy_text,
                "patience_s": service.patience_s,
                "quotas": quotas,
                "may_borrow": sorted({name for limits in quotas.values() for name in limits if state.may_borrow(name)}),
                "jobs": jobs,
            }
        )

    @app.post(f"{PREFIX}/shutdown", response_model=schemas.Ending)
    async def shutdown(request: Request, detach: bool = False) -> JSONResponse:
        """End the service; with ``detach``, jobs train on and the next service takes them over."""
        admin(request)
        refusals.close()
        shut_down(detach)
        return JSONResponse({"ending": True})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """The state for Prometheus."""
        return PlainTextResponse(metrics_text(service.published, service.cluster))

    plain = app.openapi

    def described() -> dict[str, Any]:
        """The description, with the token that is to be shown, everywhere but where the service shows its own."""
        made = plain()
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for operation in made["paths"][PROOF].values():
            operation["security"] = []
        return made

    app.openapi = described  # type: ignore[method-assign]
    return app


def _why_not_active(job: LiveJob, now_s: float) -> tuple[str, list[str], list[str]]:
    """Why a job is not among those that a policy may give slots, numbers, and what would change it."""
    if job.phase.is_terminal:
        more = ["submit it again with a larger gpu_time_budget"] if job.over_budget else []
        reason = job.state.reason
        if reason.startswith(job.phase.value):  # cancelled by somebody
            return f"it was {reason}", [], more
        return f"it {ENDS[job.phase]}" + (f": {reason}" if reason else ""), [], more
    resume = [f"geminid resume {job.id}"]
    if job.phase is JobPhase.PAUSED:
        return f"it was {job.wished or 'paused'}, and waits until it is resumed", [], resume
    if job.wish != "run":
        what, why = "cancelled" if job.wish == "cancel" else "paused", f" ({job.wished})" if job.wished else ""
        told = f"it is being {what}{why}: its processes have been told to end, and hold their slots until they have"
        return told, [], resume if job.wish == "pause" else []
    if job.held_until_s > now_s:
        return f"it is tried again in {job.held_until_s - now_s:.0f} s: {job.state.reason}", [], []
    return "the next decision will consider it", [], []


def _must(told: str) -> str:
    """What FastAPI says of a mistake, as we say it."""
    if told.startswith("String should match pattern"):
        return "must not have such characters, nor be so long"
    return f"{told[:1].lower()}{told[1:]}".replace("input should", "must", 1)


def _body_of(model: type[Any]) -> dict[str, Any]:
    """How a request body that is read here is described."""
    schema = TypeAdapter(model).json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _told(status: int, *sentences: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"errors": list(sentences)}, status, headers)


async def _body(request: Request) -> bytes:
    """The body, if it is not too long (whatever its header says)."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_TEXT_LENGTH:
            raise Refused(413, f"a request has at most {MAX_TEXT_LENGTH:,} bytes")
    return bytes(body)


async def _result(future: Future[Any]) -> Any:
    return await asyncio.wrap_future(future)
