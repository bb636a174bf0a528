"""Response times of the service under load: submissions, followers of logs, and a client that polls the queue.

All requests are HTTP requests from another process. The jobs are plain commands, of which as many run as there are
slots; the others wait, so the queue grows with every submission. `geminid queue` is run and timed as a command too,
one run after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from geminid.serve.auth import TOKEN
from geminid.serve.server import DEFAULT_POLICY, Options
from geminid.testing.service import temporary_service

#: Connections that submit side by side.
SUBMITTERS = 16

#: Time between two requests for the queue.
ASK_EVERY_S = 0.5

#: Time between two lines of the job whose log is followed.
PRINT_EVERY_S = 0.25

#: Time between the end of `geminid queue` and its next run.
RUN_EVERY_S = 1.0

#: The goal for every request for the queue, and for every run of `geminid queue`.
GOAL_S = 1.0

#: The submissions are on time if they take at most this many times the planned time.
ON_TIME = 1.05

#: What is timed.
SUBMIT = "submit"
QUEUE = "queue"
STATUS = "status"
COMMAND = "`geminid queue`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``submissions`` over ``seconds``, while ``followers`` connections follow one log."""

    submissions: int = 2000
    seconds: float = 60.0
    followers: int = 200
    slots: int = 2
    policy: str = DEFAULT_POLICY


#: The load of a quick run.
QUICK_LOAD = Load(submissions=40, seconds=2.0, followers=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Response times of one kind of request, in seconds."""

    request: str
    count: int
    failed: int
    median_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result. ``seconds`` is how long the submissions took.

    ``command_cpu_s`` is the mean CPU time of one run of the command, which does not depend on the load of the machine.
    """

    answers: tuple[Answers, ...]
    jobs: int
    seconds: float
    followers: int
    followers_complete: int
    lines: int
    command_cpu_s: float
    wanted: Load

    @property
    def missed(self) -> list[str]:
        """Goals that were missed, in sentences."""
        return [*self.delays, *self.failures]

    @property
    def delays(self) -> list[str]:
        """Requests and submissions that took too long."""
        found = [
            f"{one.request} took {one.longest_s:.2f} s once (goal: under {GOAL_S:g} s)"
            for one in self.answers
            if one.request in (QUEUE, COMMAND) and one.longest_s >= GOAL_S
        ]
        if self.seconds > ON_TIME * self.wanted.seconds:
            found.append(f"the submissions took {self.seconds:.0f} s (goal: {self.wanted.seconds:g} s)")
        return found

    @property
    def failures(self) -> list[str]:
        """Requests that failed, and followers that missed lines."""
        found = [f"{one.failed} of {one.count} times {one.request} failed" for one in self.answers if one.failed]
        if self.followers_complete < self.followers:
            found.append(f"{self.followers - self.followers_complete} followers did not hear all lines")
        return found

    @property
    def longest_queue_s(self) -> float:
        """The longest time until the queue was shown."""
        return max(one.longest_s for one in self.answers if one.request in (QUEUE, COMMAND))


class Connection:
    """One HTTP connection that is kept open."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._token = parts.hostname or "127.0.0.1", parts.port or 80, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send a request; status and body of the answer. Retried once, because an idle connection may have been cut."""
        try:
            return await self._ask(method, path, body)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.close()
            return await self._ask(method, path, body)

    async def _ask(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        reader, writer = await self._open()
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(self._head(method, path, len(data)) + data)
        await writer.drain()
        status, headers = await self._answer(reader)
        return status, await reader.readexactly(int(headers.get("content-length", 0)))

    async def follow(self, path: str, on_piece: Callable[[bytes], None]) -> None:
        """Send a request for an endless stream, and pass on its pieces."""
        reader, writer = await self._open()
        writer.write(self._head("GET", path, 0))
        await writer.drain()
        await self._answer(reader)
        while size := int((await reader.readline()).strip() or b"0", 16):
            on_piece(await reader.readexactly(size))
            await reader.readline()

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        return self._streams

    def _head(self, method: str, path: str, length: int) -> bytes:
        return (
            f"{method} /api/v1/{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    @staticmethod
    async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        first = await reader.readline()
        if not first:
            raise ConnectionResetError("the connection was closed")
        status = int(first.split()[1])
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return status, headers


@dataclass(slots=True)
class _Timer:
    request: str
    times: list[float] = field(default_factory=list)
    failed: int = 0

    async def ask(self, connection: Connection, method: str, path: str, body: object = None) -> bytes:
        began = time.perf_counter()
        status, answer = await connection.ask(method, path, body)
        self.times.append(time.perf_counter() - began)
        self.failed += status >= 400
        return answer

    def answers(self) -> Answers:
        times = np.array(self.times or [0.0])
        return Answers(
            request=self.request,
            count=len(self.times),
            failed=self.failed,
            median_s=float(np.median(times)),
            p99_s=float(np.percentile(times, 99)),
            longest_s=float(times.max()),
        )


def run(load: Load) -> LoadResult:
    """Start a service, put it under load, and measure its answers."""
    options = Options(home=Path(), slots=load.slots, policy=load.policy, grace_s=1.0)
    with temporary_service(options) as (client, home):
        return asyncio.run(_measure(load, client.url, home))


async def _measure(load: Load, url: str, home: Path) -> LoadResult:
    submitting, asking, status, running = (_Timer(request) for request in (SUBMIT, QUEUE, STATUS, COMMAND))
    token = (home / TOKEN).read_text(encoding="utf-8").strip()
    operator = Connection(url, token)
    lines = int((1.1 * load.seconds + 4.0) / PRINT_EVERY_S)
    talk = f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); sleep {PRINT_EVERY_S}; done"
    talker = await _submit(operator, _Timer("talker"), ["sh", "-c", talk])
    heard = [bytearray() for _ in range(load.followers)]
    followers = [
        asyncio.create_task(Connection(url, token).follow(f"jobs/{talker}/logs?follow=true", pieces.extend))
        for pieces in heard
    ]
    began = time.perf_counter()
    done = asyncio.Event()
    asker = asyncio.create_task(_ask_often(url, token, asking, status, done))
    used_before_s = _children_cpu_s()
    typist = asyncio.create_task(_run_often(home, running, done))
    numbers = iter(range(load.submissions))

    async def submit_some() -> None:
        connection = Connection(url, token)
        for number in numbers:
            due_s = began + number * load.seconds / load.submissions
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await _submit(connection, submitting, ["sleep", "3600"])
        await connection.close()

    await asyncio.gather(*(submit_some() for _ in range(SUBMITTERS)))
    seconds = time.perf_counter() - began
    done.set()
    await asyncio.gather(asker, typist)
    command_cpu_s = (_children_cpu_s() - used_before_s) / max(len(running.times), 1)
    if followers:
        await asyncio.wait(followers, timeout=60.0)
    jobs = json.loads(await status.ask(operator, "GET", "status"))["jobs"]
    whole = b"".join(f"line {i}\n".encode() for i in range(lines))
    return LoadResult(
        answers=tuple(timer.answers() for timer in (submitting, asking, running, status)),
        jobs=sum(jobs.values()),
        seconds=seconds,
        followers=load.followers,
        followers_complete=sum(bytes(pieces) == whole for pieces in heard),
        lines=lines,
        command_cpu_s=command_cpu_s,
        wanted=load,
    )


async def _submit(connection: Connection, timer: _Timer, command: list[str]) -> str:
    answer: dict[str, Any] = json.loads(
        await timer.ask(connection, "POST", "jobs", {"name": "load", "command": command})
    )
    return str(answer.get("id"))


async def _ask_often(url: str, token: str, asking: _Timer, status: _Timer, done: asyncio.Event) -> None:
    connection = Connection(url, token)
    while not done.is_set():
        await asking.ask(connection, "GET", "jobs")
        await status.ask(connection, "GET", "status")
        await asyncio.sleep(ASK_EVERY_S)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _run_often(home: Path, running: _Timer, done: asyncio.Event) -> None:
    """Run the command until the load is over, and once more, when the queue is longest."""
    env = {name: value for name, value in os.environ.items() if name not in ("GEMINID_URL", "GEMINID_TOKEN")}
    env["GEMINID_HOME"] = str(home)
    pipe, last = asyncio.subprocess.PIPE, False
    while not last:
        last = done.is_set()
        began = time.perf_counter()
        command = (sys.executable, "-m", "geminid", "queue")
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)
        await process.communicate()
        running.times.append(time.perf_counter() - began)
        running.failed += process.returncode != 0
        await asyncio.sleep(RUN_EVERY_S)
