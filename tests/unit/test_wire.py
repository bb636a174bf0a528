"""The wire: whole messages however they are cut, bounds in both directions, and one loop that serves all of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from geminid.wire.codec import Codec, Message, ProtocolError
from geminid.wire.connection import Connection
from geminid.wire.handshake import check_token, check_version
from geminid.wire.reactor import Reactor, shared_reactor


class Note(Message, frozen=True):
    text: str
    number: int = 0


class Over(Message, frozen=True):
    pass


Said = Note | Over
CODEC: Codec[Said] = Codec(Said)
SMALL: Codec[Said] = Codec(Said, max_line_bytes=100)


@pytest.fixture
def pair() -> Iterator[tuple[Connection[Said, Said], socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(Connection(ours, CODEC, CODEC)) as connection, theirs:
        yield connection, theirs


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with closing(Reactor()) as made:
        yield made


def test_messages_arrive_whole_however_they_are_cut(pair):
    connection, peer = pair
    sent = [Note(text="one"), Over(), Note(text="zwölf\nLines", number=12)]
    raw = b"".join(CODEC.encode(message) for message in sent)
    for size in (1, 7, len(raw)):
        heard = []
        for begin in range(0, len(raw), size):
            peer.sendall(raw[begin : begin + size])
            heard += connection.receive()
        assert heard == sent
    assert connection.receive() == []
    peer.close()
    with pytest.raises(EOFError):
        connection.receive()


def test_a_line_without_end_is_refused(pair):
    ours, theirs = socket.socketpair()
    with closing(Connection(ours, SMALL, SMALL)) as connection, theirs:
        theirs.sendall(b"x" * 60)
        assert connection.receive() == []
        theirs.sendall(b"x" * 60)
        with pytest.raises(ProtocolError, match="longer than 100 bytes"):
            connection.receive()
        with pytest.raises(ProtocolError, match="is longer than 100"):
            connection.send(Note(text="x" * 100))


def test_what_is_not_a_message_is_refused_in_one_sentence_that_is_not_long():
    for line in (b"", b"{}", b"null", b'{"kind":"over","more":1}', b'{"kind":"' + b"x" * 9000 + b'"}', b"\xff\xfe"):
        with pytest.raises(ProtocolError) as refusal:
            CODEC.decode(line)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 300


def test_texts_that_are_not_utf_8_and_numbers_of_other_types_are_sent_nevertheless():
    import numpy

    assert CODEC.decode(CODEC.encode(Note(text="a\udcffb"))) == Note(text="a?b")
    assert CODEC.decode(CODEC.encode(Note(text=numpy.str_("a")))) == Note(text="a")
    with pytest.raises(NotImplementedError, match="cannot have a object"):
        CODEC.encode(Note(text=object()))  # type: ignore[arg-type]


def test_what_a_peer_does_not_take_is_kept_up_to_a_bound_and_sent_later(reactor):
    ours, theirs = socket.socketpair()
    with closing(Connection(ours, CODEC, CODEC, max_unsent_bytes=1 << 20)) as connection, theirs:
        reactor.watch(connection, connection.receive)
        long = Note(text="x" * 100_000)
        sent = 0

        def send_on() -> None:
            nonlocal sent
            for sent in range(100):  # noqa: B007
                connection.send(long)

        with pytest.raises(TimeoutError, match="has not taken"):
            send_on()
        peer = Connection(theirs, CODEC, CODEC)
        with pytest.raises(TimeoutError, match=r"taken nothing for 0\.01 s"):
            connection.drain(0.01)
        heard: list[Said] = []
        while len(heard) < sent:
            reactor.step(0.1)
            heard += peer.receive()
        assert heard == [long] * sent


def test_a_connection_that_is_refused_says_so_when_it_is_used(reactor):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with closing(Connection.to("127.0.0.1", port, CODEC, CODEC)) as connection:
            connection.send(Over())
            assert connection.is_open
    problems = []

    def use() -> None:
        try:
            connection.receive()
        except OSError as problem:
            problems.append(problem)

    try:
        connection = Connection.to("127.0.0.1", port, CODEC, CODEC)
    except ConnectionRefusedError as problem:
        problems.append(problem)
    else:
        reactor.watch(connection, use)
        reactor.run_until(lambda: bool(problems), 0.1)
        connection.close()
    assert isinstance(problems[0], ConnectionRefusedError)


def test_a_wrong_token_or_version_is_refused_clearly():
    check_token("secret", "secret")
    check_version("the agent", 2, 2)
    with pytest.raises(ProtocolError, match="the token is wrong"):
        check_token("gu\udcffess", "secret")
    with pytest.raises(ProtocolError, match="the agent speaks version 1 of the protocol, not 2"):
        check_version("the agent", 1, 2)


def test_timers_are_called_in_order_in_virtual_time_unless_cancelled():
    now = [0.0]
    with closing(Reactor(clock=lambda: now[0])) as reactor:
        called: list[str] = []
        reactor.call_at(2.0, lambda: called.append("later"))
        reactor.call_at(1.0, lambda: called.append("sooner"))
        reactor.call_at(1.5, lambda: called.append("never")).cancel()
        reactor.step(0.0)
        assert called == []
        now[0] = 1.0
        reactor.step(0.0)
        assert called == ["sooner"]
        now[0] = 1e9
        reactor.step(None)
        assert called == ["sooner", "later"]


def test_what_has_arrived_is_heard_before_timers_that_are_due(pair):
    connection, peer = pair
    now = [0.0]
    order: list[object] = []
    with closing(Reactor(clock=lambda: now[0])) as reactor:
        reactor.watch(connection, lambda: order.extend(connection.receive()))
        reactor.call_at(1.0, lambda: order.append("timer"))
        peer.sendall(CODEC.encode(Over()))
        now[0] = 100.0
        reactor.step(None)
        reactor.unwatch(connection)
    assert order == [Over(), "timer"]


def test_other_threads_have_things_called_in_order_though_one_fails(reactor):
    called: list[int] = []
    ready = threading.Thread(target=lambda: [reactor.call_soon(lambda n=n: called.append(n)) for n in range(100)])
    reactor.call_soon(lambda: 1 / 0)
    ready.start()
    ready.join()
    with pytest.raises(ZeroDivisionError):
        reactor.step(1.0)
    reactor.run_until(lambda: len(called) == 100, 1.0)
    assert called == list(range(100))


def test_the_end_of_a_process_is_heard(reactor):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = os.pidfd_open(child.pid)
    ended: list[int] = []

    def end() -> None:
        reactor.unwatch(descriptor)
        ended.append(child.wait())

    reactor.watch(descriptor, end)
    assert reactor.step(0.01) == 0
    child.communicate(b"\n")
    reactor.run_until(lambda: bool(ended), 1.0)
    assert ended == [0]
    assert not reactor.watches(descriptor)
    os.close(descriptor)


def test_a_process_shares_one_reactor_whose_failing_callbacks_are_reported(capfd):
    reactor = shared_reactor()
    assert shared_reactor() is reactor
    called: list[int] = []
    reactor.call(lambda: 1 / 0)
    reactor.call(lambda: called.append(1))
    assert called == [1]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_reactor_that_is_closed_calls_nothing_and_is_no_trouble_to_whoever_asks():
    reactor = Reactor()
    reactor.close()
    reactor.call_soon(lambda: 1 / 0)
    with socket.socket() as opened:
        reactor.unwatch(opened)


def test_what_is_not_urgent_is_served_in_rounds_and_what_is_at_once():
    with closing(Reactor(pace_s=3600.0)) as reactor:
        pairs = [socket.socketpair() for _ in range(2)]
        heard: list[str] = []
        for (ours, _), name in zip(pairs, ("beat", "end"), strict=True):
            reactor.watch(
                ours, lambda ours=ours, name=name: heard.append(f"{name} {ours.recv(1)}"), urgent=name == "end"
            )
        pairs[0][1].send(b"1")
        reactor.step(None)  # after a pause it is served at once
        pairs[0][1].send(b"2")
        pairs[1][1].send(b"1")
        reactor.step(None)  # would wait for an hour
        assert sorted(heard) == ["beat b'1'", "beat b'2'", "end b'1'"]
        reactor.call_soon(lambda: heard.append("called"))
        reactor.step(None)
        reactor.hurry()
        pairs[0][1].send(b"3")
        reactor.step(None)
        assert heard[3:] == ["called", "beat b'3'"]
        for ours, theirs in pairs:
            reactor.unwatch(ours)
            ours.close()
            theirs.close()
