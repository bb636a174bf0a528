"""The process that talks with Ray, as the service sees it: here a script that talks with nobody."""

import contextlib
import socket
import sys
import time

import pytest

from geminid.serve.executors import bridge as module
from geminid.serve.executors.bridge import Bridge
from geminid.serve.executors.line import Line

SCRIPT = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(b'{"told": "nodes"}\\n')
word = line.recv(1000)
if b"hang" in word:
    time.sleep(600)
if b"much" in word:
    line.sendall(b'{"told": "lost"}\\n{"told": "nodes", "nodes": ["' + (12 << 20) * b"n" + b'"]}\\n{"told": "lost"}\\n')
    time.sleep(600)
if b"trouble" in word:
    line.sendall(b'{"told": "trouble", "text": "no head"}\\n')
"""


@pytest.fixture
def bridge(monkeypatch):
    heard = []
    monkeypatch.setattr(module, "BRIDGE_SILENT_S", 1.0)
    monkeypatch.setattr(module, "BRIDGE_S", 0.3)
    made = Bridge([sys.executable, "-c", SCRIPT], heard.append)
    made.heard = heard
    yield made
    made.close()


def until(reached):
    deadline = time.monotonic() + 20.0
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_ends_is_started_again_and_nothing_is_sent_into_the_void(bridge):
    until(lambda: bridge.heard)
    assert bridge.send({"do": "trouble"}) == 1
    until(lambda: len(bridge.heard) >= 2)
    assert bridge.heard[1] == {"told": "away", "bridge": 1, "trouble": "no head"}
    assert bridge.send({"do": "lease"}) is None  # whoever asks must ask again
    until(lambda: len(bridge.heard) >= 3)
    assert bridge.send({"do": "anything"}) == 2


def test_one_that_hangs_is_replaced(bridge):
    until(lambda: bridge.heard)
    bridge.send({"do": "hang"})
    until(lambda: len(bridge.heard) >= 3)
    assert bridge.heard[1]["bridge"] == 1
    assert "has said nothing for 1 s" in bridge.heard[1]["trouble"]
    assert bridge.heard[2] == {"told": "nodes"}


def test_all_nodes_of_a_large_cluster_are_told_in_one_line(bridge):
    until(lambda: bridge.heard)
    bridge.send({"do": "much"})
    until(lambda: len(bridge.heard) >= 4)
    assert [told["told"] for told in bridge.heard] == ["nodes", "lost", "nodes", "lost"]
    assert len(bridge.heard[2]["nodes"][0]) == 12 << 20


def test_a_line_has_a_limit_all_the_same():
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), theirs:
        line = Line(ours, longest_bytes=100)
        theirs.sendall(b'{"a": 1}\n{"b"')
        assert line.receive() == [{"a": 1}]
        theirs.sendall(b": 2}\n" + 50 * b" ")
        assert line.receive() == [{"b": 2}]
        theirs.sendall(51 * b" ")
        with pytest.raises(ValueError, match="too long"):
            line.receive()
