"""Any message comes through as it was, and any bytes are a message or are refused: there is no third way."""

from __future__ import annotations

import socket
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from geminid.supervise import protocol
from geminid.supervise.protocol import FromWorker, Message, ProtocolError
from geminid.wire.codec import Codec
from geminid.wire.connection import Connection

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
COUNT = st.integers(0, protocol.LARGEST_COUNT)
TIME = st.floats(-protocol.LARGEST_TIME_S, protocol.LARGEST_TIME_S)
NUMBER = st.floats(-protocol.LARGEST_NUMBER, protocol.LARGEST_NUMBER)
METRICS = st.dictionaries(TEXT, st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.just("nan")), max_size=5)
PLANS = st.builds(protocol.Plan, st.integers(1, protocol.LARGEST_COUNT), COUNT)
MESSAGES = st.one_of(
    st.builds(protocol.Hello, token=TEXT, worker=TEXT, pid=COUNT, generation=COUNT),
    st.builds(protocol.Heartbeat, generation=COUNT, step=COUNT, phase=st.just("forward"), phase_s=TIME, usual_s=TIME),
    st.builds(protocol.Lost, generation=COUNT, reason=TEXT),
    st.builds(protocol.Failed, reason=TEXT, hold=st.booleans()),
    st.builds(protocol.Metrics, generation=COUNT, metrics=METRICS),
    st.builds(
        protocol.Progress,
        generation=COUNT,
        step=COUNT,
        epoch=COUNT,
        samples=COUNT,
        progress=st.floats(0.0, float(protocol.LARGEST_COUNT)),
        size=st.integers(1, 1000),
        plan=PLANS,
        total_batch=COUNT,
        step_s=st.none() | TIME,
        variance=st.none() | NUMBER,
        metrics=METRICS,
    ),
    st.builds(
        protocol.Form,
        generation=COUNT,
        members=st.lists(TEXT, max_size=4).map(tuple),
        rendezvous=TEXT,
        plan=st.none() | PLANS,
        broken=st.booleans(),
        hold=st.booleans(),
    ),
    st.builds(protocol.Stop, save=st.booleans()),
)


@given(MESSAGES)
def test_any_message_comes_through_as_it_was(message: Message):
    line = protocol.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_any_messages_come_through_in_order_however_they_are_cut(sent: list[Message], sizes: list[int]):
    ours, theirs = socket.socketpair()
    codec: Codec[Message] = Codec(Message)
    raw = b"".join(map(protocol.encode, sent))
    heard: list[Message] = []
    with closing(Connection(ours, codec, codec)) as connection, theirs:
        begin, turn = 0, 0
        while begin < len(raw):
            size = sizes[turn % len(sizes)]
            theirs.sendall(raw[begin : begin + size])
            heard += connection.receive()
            begin, turn = begin + size, turn + 1
    assert heard == sent


@given(
    st.one_of(
        st.binary(max_size=200),
        MESSAGES.map(protocol.encode).flatmap(
            lambda line: st.builds(
                lambda at, byte: line[:at] + bytes([byte]) + line[at + 1 :],
                st.integers(0, len(line) - 1),
                st.integers(0, 255),
            )
        ),
    )
)
def test_any_bytes_are_a_message_or_are_refused(line: bytes):
    try:
        message = protocol.FROM_WORKER.decode(line)
    except ProtocolError:
        return
    assert isinstance(message, FromWorker)
    assert protocol.FROM_WORKER.decode(protocol.FROM_WORKER.encode(message)) == message
