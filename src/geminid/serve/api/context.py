"""What request handlers share, and the dependencies through which FastAPI hands it to them.

All dependencies are coroutines: FastAPI would run plain functions in a thread pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from geminid.process.logfiles import Tails
from geminid.serve import documents
from geminid.serve.api.jobviews import JobViews
from geminid.serve.arrays import unmade_element
from geminid.serve.auth import Identity, Tokens, changes
from geminid.serve.forecaster import Forecaster
from geminid.serve.inbox import Refused
from geminid.serve.jobnames import NotOneJob, named_job
from geminid.serve.livejob import LiveJob
from geminid.serve.notify.notifier import Notifier
from geminid.serve.observe.changes import Broadcast, Changes
from geminid.serve.observe.recorder import Recorder
from geminid.serve.observe.store import HistoryStore
from geminid.serve.refusals import Refusals
from geminid.serve.service import Service
from geminid.serve.sessions import FailedLogIns, Sessions

#: Names that stand for this machine.
OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

#: Refusals are summed up for the operator after this time.
REFUSALS_SUMMARY_S = 60.0


@dataclass(slots=True)
class ApiContext:
    """A service and what its interface remembers between requests.

    ``shut_down`` ends the service; its argument says whether jobs keep running. While ``is_ending`` no request is kept
    waiting. ``public_url`` is where browsers reach the service through a proxy or a tunnel, if they do.
    """

    service: Service
    tokens: Tokens
    home: Path
    url: str
    shut_down: Callable[[bool], None]
    is_ending: Callable[[], bool]
    public_url: str = ""
    recorder: Recorder = field(init=False)
    notifier: Notifier = field(init=False)
    sessions: Sessions = field(init=False)
    failed_log_ins: FailedLogIns = field(init=False)
    broadcast: Broadcast = field(init=False)
    hosts: frozenset[str] = field(init=False)
    origins: frozenset[str] = field(init=False)
    forecaster: Forecaster = field(init=False)
    views: JobViews = field(init=False)
    refusals: Refusals = field(init=False)
    tails: Tails = field(default_factory=Tails)
    started_s: float = field(init=False)
    _seen_tokens: list[Identity] = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.service.clock.monotonic_s()
        self.forecaster = Forecaster(self.service)
        self.views = JobViews(self.service, self.forecaster)
        self.recorder = Recorder(self.service, HistoryStore(self.home))
        self.notifier = Notifier(self.service, self.home, self.forecaster.risk_of)
        self.sessions = Sessions(self.home, self.tokens, self.service.clock.now_s)
        self.failed_log_ins = FailedLogIns(self.service.clock.monotonic_s)
        changes = Changes(self.views.row, lambda published: documents.glance_document(published, self.service))
        self.broadcast = Broadcast(
            changes,
            lambda: self.service.published,
            is_over=self._is_over,
            renew_forecast=self.forecaster.begin,
        )
        self.hosts = OWN_NAMES | frozenset(filter(None, [urlsplit(self.public_url).hostname]))
        self.origins = frozenset({*_own_origins(self.url), *filter(None, [self.public_url])})
        self.refusals = Refusals(
            self.audit, lambda close: asyncio.get_running_loop().call_later(REFUSALS_SUMMARY_S, close)
        )
        self._seen_tokens = self.tokens.all()

    def _is_over(self) -> bool:
        return self.is_ending() or not self.service.alive

    def audit(self, sentence: str) -> None:
        """Note something for the operator."""
        with contextlib.suppress(Refused):  # the service is ending
            self.service.operations.note("audit", sentence)

    def audit_token_changes(self) -> None:
        """Note which tokens were made or revoked since the last request."""
        now = self.tokens.all()
        if now != self._seen_tokens:
            for sentence in changes(self._seen_tokens, now):
                self.audit(sentence)
            self._seen_tokens = now

    def find_job(self, given: str, caller: Identity) -> LiveJob:
        """The job with an identifier or a name.

        Raises:
            Refused: no job has it, or several do.
        """
        try:
            return named_job(self.service.published.state.jobs, given, caller.user, self.service.clock.now_s())
        except NotOneJob as problem:
            raise Refused(422 if problem.ambiguous else 404, str(problem)) from None

    def latest(self, job: LiveJob) -> LiveJob:
        """The job as it is now."""
        jobs = self.service.published.state.jobs
        return jobs.get(job.id) or unmade_element(jobs, job.id) or job


def _own_origins(url: str) -> list[str]:
    """The address of a service under all names of this machine: people type ``localhost``, too."""
    place = urlsplit(url)
    if place.hostname not in OWN_NAMES:
        return [url]
    return [f"{place.scheme}://{f'[{name}]' if ':' in name else name}:{place.port}" for name in OWN_NAMES]


def context_of(request: Request) -> ApiContext:
    """The context of the application that a request was sent to."""
    context: ApiContext = request.app.state.context
    return context


def may_read(caller: Identity, job: LiveJob) -> bool:
    """Whether a caller may see a job's command and output, and change the job: its owner and admins may."""
    return caller.is_admin or job.spec.owner == caller.user


async def _context(request: Request) -> ApiContext:
    return context_of(request)


Context = Annotated[ApiContext, Depends(_context)]


async def _caller(request: Request) -> Identity:
    identity: Identity = request.state.identity
    return identity


#: Whose token the request has.
Caller = Annotated[Identity, Depends(_caller)]


async def _admin(caller: Caller) -> str:
    if not caller.is_admin:
        raise Refused(403, "only an admin may do this")
    return caller.user


#: The user's name, of requests that only admins may send.
Admin = Annotated[str, Depends(_admin)]


async def _named_job(context: Context, caller: Caller, job_id: str) -> LiveJob:
    return context.find_job(job_id, caller)


#: The job that the path names, by its identifier or its name.
NamedJob = Annotated[LiveJob, Depends(_named_job)]


async def _own_job(caller: Caller, job: NamedJob) -> LiveJob:
    if not may_read(caller, job):
        owner = job.spec.owner
        raise Refused(403, f"job {job.id} belongs to {owner}, and only {owner} and admins may change it")
    return job


#: The job that the path names, if the caller may change it.
OwnJob = Annotated[LiveJob, Depends(_own_job)]
