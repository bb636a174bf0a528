"""The process that talks with Ray, as the service sees it: here a script that talks with nobody."""

import sys
import time

import pytest

from geminid.serve.executors import bridge as module
from geminid.serve.executors.bridge import Bridge

SCRIPT = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(b'{"told": "nodes"}\\n')
word = line.recv(1000)
if b"hang" in word:
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
