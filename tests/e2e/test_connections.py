"""Connections over real sockets: requests that do not arrive are closed, answers take as long as they take."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from geminid.serve.connections import CONNECTION, ConnectionLimits, guarded
from geminid.serve.servicelog import LineRateLimit
from waiting import until

GET = b"GET /%s HTTP/1.1\r\nHost: here\r\n\r\n"


async def app(scope, receive, send) -> None:
    """Reads the body and answers; ``/slow`` after a while; ``/NAME`` as somebody of this name."""
    name = scope["path"].removeprefix("/")
    may = not name or scope["state"][CONNECTION].identified(name)
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if name == "slow":
        await asyncio.sleep(1.0)
    said = body or b"hello"
    await send(
        {
            "type": "http.response.start",
            "status": 200 if may else 429,
            "headers": [(b"content-length", b"%d" % len(said))],
        }
    )
    await send({"type": "http.response.body", "body": said})


@contextlib.contextmanager
def serving(limits: ConnectionLimits) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=guarded(limits), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    with serving(ConnectionLimits(total=6, unknown=3, per_user=3, header_s=0.2, body_s=0.2)) as where:
        yield where


def heard(line: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := line.recv(1 << 16):
            said += piece
    return said


def ask(line: socket.socket, name: bytes = b"") -> bytes:
    """Ask on a connection that stays open: the first line of the answer."""
    line.sendall(GET % name)
    said = b""
    while not said.endswith((b"hello", b"}")) and (piece := line.recv(1 << 16)):
        said += piece
    return said.split(b"\r\n")[0]


def drip(line: socket.socket, piece: bytes) -> None:
    """Send something again and again, more slowly than the limits allow."""
    for _ in range(100):
        line.sendall(piece)
        time.sleep(0.05)


def opened(place: tuple[str, int]) -> socket.socket:
    return socket.create_connection(place, timeout=10.0)


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: here\r\nX-Slow: "])
def test_headers_that_do_not_arrive_are_not_waited_for(place, said):
    with opened(place) as line:
        line.sendall(said)
        told = heard(line)
    assert told.startswith(b"HTTP/1.1 408")
    assert b"the headers of a request must be complete within 0.2 s" in told


def test_headers_that_drip_in_gain_no_time_by_it(place):
    with opened(place) as line:
        ask(line)  # nor if a whole request came before
        with pytest.raises(ConnectionError):
            drip(line, b"G")


@pytest.mark.parametrize("head", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_a_body_that_drips_in_is_not_waited_for(place, head):
    with opened(place) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\n" + head + b"\r\n\r\n")
        with pytest.raises(ConnectionError):
            drip(line, b"1\r\nx\r\n")


def test_answers_that_a_stranger_does_not_read_are_not_kept(place):
    with opened(place) as line, pytest.raises(ConnectionError):
        drip(line, GET % b"" * 1000)


def test_an_answer_may_take_longer_than_a_request(place):
    with opened(place) as line:
        assert ask(line, b"slow").endswith(b"200 OK")
        assert ask(line).endswith(b"200 OK")  # and the connection can be used again


def test_of_connections_without_a_token_the_oldest_gives_way():
    with serving(ConnectionLimits(total=6, unknown=3, per_user=3)) as place, contextlib.ExitStack() as stack:
        known = stack.enter_context(opened(place))
        assert ask(known, b"ann").endswith(b"200 OK")
        lines = [stack.enter_context(opened(place)) for _ in range(4)]
        assert b"too many connections" in heard(lines[0])
        assert ask(lines[3]).endswith(b"200 OK")
        assert ask(known).endswith(b"200 OK")


def test_nobody_has_all_connections():
    with serving(ConnectionLimits(total=6, unknown=3, per_user=3)) as place, contextlib.ExitStack() as stack:
        mine = []
        for status in (b"200", b"200", b"200", b"429"):
            mine.append(stack.enter_context(opened(place)))
            assert ask(mine[-1], b"ann").split()[1] == status
        other = stack.enter_context(opened(place))
        assert ask(other, b"bob").endswith(b"200 OK")
        mine[0].close()
        again = stack.enter_context(opened(place))
        until(lambda: ask(again, b"ann").endswith(b"200 OK"))  # the service hears of it a moment later


def test_idle_connections_give_way_when_all_are_in_use():
    with serving(ConnectionLimits(total=2, unknown=2, per_user=2)) as place, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(opened(place)) for _ in range(2))
        assert ask(first, b"ann").endswith(b"200 OK")
        assert ask(second, b"ann").endswith(b"200 OK")
        third = stack.enter_context(opened(place))
        assert ask(third, b"bob").endswith(b"200 OK")
        assert heard(first) == b""


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 20_000, 1_000_000])
def test_jobs_and_the_store_have_descriptors_left(descriptors):
    limits = ConnectionLimits.for_descriptors(descriptors)
    assert limits.total <= descriptors // 2
    assert 0 < limits.unknown < limits.per_user < limits.total


def test_lines_that_strangers_cause_do_not_fill_the_log():
    limit = LineRateLimit(per_minute=3)

    def lines(name: str, at_s: float) -> list[str]:
        made = [logging.LogRecord(name, logging.WARNING, "", 0, "no request from %s", ("x",), None) for _ in range(10)]
        for record in made:
            record.created = at_s
        return [record.getMessage() for record in made if limit.filter(record)]

    assert lines("uvicorn.error", 0.0) == ["no request from x"] * 3
    assert lines("geminid.serve", 0.0) == ["no request from x"] * 10
    later = lines("uvicorn.error", 61.0)
    assert later[0] == "no request from x (7 lines like this one were left out)"
    assert len(later) == 3
