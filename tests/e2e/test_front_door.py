"""What strangers without a token can do to a service: connect. Everybody else is answered all the same."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from live import Live

#: The service of these tests may have so few file descriptors.
DESCRIPTORS = 256


class Cramped(Live):
    """A service that may have few file descriptors."""

    def up(self) -> None:
        """Start it."""
        limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", sys.executable, "-m", "geminid"]
        command = [*limited, "up", "--detach", *self.options]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def place(self) -> tuple[str, int]:
        """Where it listens."""
        parts = urlsplit(self.client.url)
        return str(parts.hostname), int(parts.port or 0)

    @property
    def log(self) -> list[dict[str, str]]:
        """What it has logged so far."""
        return [json.loads(line) for line in (self.home / "service.log").read_text().splitlines()]


@pytest.fixture(scope="module")
def live() -> Iterator[Cramped]:
    with Cramped(slots=2, grace_s=4.0) as running:
        yield running


@contextlib.contextmanager
def half_sent(live: Cramped, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections on which a request was begun."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(live.place, timeout=30.0)))
            with contextlib.suppress(OSError):  # it may be closed already
                opened[-1].sendall(said)
        yield opened


def said_by(live: Cramped, request: bytes) -> bytes:
    """All that a service answers to what may not be a request."""
    with socket.create_connection(live.place, timeout=30.0) as line:
        answer = b""
        with contextlib.suppress(ConnectionError):  # it need not read all of it
            line.sendall(request)
            while piece := line.recv(1 << 16):
                answer += piece
        return answer


@pytest.mark.parametrize(
    "said",
    [
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: localh",
        b"",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1",
    ],
    ids=["half a header", "nothing", "half a body"],
)
def test_more_half_sent_requests_than_descriptors_keep_nobody_out(live, said):
    logged = len(live.log)
    with half_sent(live, 2 * DESCRIPTORS, said):
        assert live.run("queue").returncode == 0
        submitted = live.run("submit", "--", "sh", "-c", "echo hello")
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.split()[1]
        assert live.run("wait", job, "--timeout", 60).returncode == 0
        assert live.run("logs", job).stdout == "hello\n"
        assert live.run("status").returncode == 0
    lines = live.log[logged:]
    assert len([line for line in lines if line["from"] != "geminid.serve"]) <= 20
    assert not [line for line in lines if line["from"] == "asyncio"]  # it never ran out of descriptors


#: What does not belong into a request, or too much of it.
ODD = [
    *("é", "%C3%A9", "%00", "\x00", "%ED%A0%80", "%ff%fe", "%F0%9F%92%A9", "[", "[::1", "://", "@", "%2e%2e/", "1e400"),
    *("\t", " ", "\r\n", "a" * 100_000),
]


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /api/v1/proof?of={odd}&challenge=1 HTTP/1.1\r\nHost: {host}\r\n",
        "GET /api/v1/proof?of=1&challenge={odd} HTTP/1.1\r\nHost: {host}\r\n",
        "GET /api/v1/jobs/{odd}?{odd}={odd} HTTP/1.1\r\nHost: {host}\r\n",
        "POST /api/v1/jobs HTTP/1.1\r\nHost: {odd}\r\nContent-Length: 0\r\n",
        "GET /metrics HTTP/1.1\r\nHost: {host}\r\nOrigin: {odd}\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {odd}\r\n",
        "PUT /api/v1/quotas/owner/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: {odd}\r\n",
        "GET /{odd} HTTP/1.1\r\nHost: {host}\r\nUpgrade: {odd}\r\nConnection: upgrade\r\n",
    ],
)
def test_no_request_without_a_token_makes_the_service_fail_or_fill_its_log(live, request_text):
    logged = len(live.log)
    host = f"{live.place[0]}:{live.place[1]}"
    for odd in ODD:
        text = request_text.format(odd=odd, host=host) + "Connection: close\r\n\r\n"
        status = int(said_by(live, text.encode()).split(b" ")[1])
        assert 400 <= status < 500, text[:200]
    lines = live.log[logged:]
    assert not [line for line in lines if "trace" in line]
    assert len(lines) <= 60


def test_a_fingerprint_that_is_no_ascii_is_not_known(live):
    answer = said_by(live, b"GET /api/v1/proof?of=%C3%A9&challenge=1 HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401")


def test_bodies_that_odd_characters_are_in_are_refused(live):
    token = (live.home / "token").read_text().strip()
    for body in ('{"name": "\\ud800", "command": ["true"]}', '{"\\ud800": 1}', '{"name": "x", "command": ["\\ud800"]}'):
        head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        )
        answer = said_by(live, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert answer.startswith(b"HTTP/1.1 422"), answer


def test_whoever_hangs_up_in_the_middle_of_a_request_leaves_no_trace(live):
    token = (live.home / "token").read_text().strip()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n"
    )
    logged = len(live.log)
    for _ in range(20):
        with socket.create_connection(live.place, timeout=30.0) as line:
            line.sendall(head.encode() + b"{")
    assert live.run("queue").returncode == 0
    assert not [line for line in live.log[logged:] if "trace" in line]


def test_many_followers_hear_everything_while_strangers_hold_connections(live):
    job = live.submit("sh", "-c", "for i in $(seq 40); do echo line $i; sleep 0.1; done")
    live.until(job, lambda job: job["phase"] == "running")
    token = (live.home / "token").read_text().strip()
    path = f"/api/v1/jobs/{job}/logs?follow=true"
    follow = f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        followers = []
        for _ in range(60):
            followers.append(stack.enter_context(socket.create_connection(live.place, timeout=60.0)))
            followers[-1].sendall(follow)
        stack.enter_context(half_sent(live, DESCRIPTORS, b"GET / HTT"))
        heard = [b"".join(iter(lambda line=line: line.recv(1 << 16), b"")) for line in followers]
    whole = b"".join(b"line %d\n" % i for i in range(1, 41))
    assert [said for said in heard if not said.endswith(whole)] == []
