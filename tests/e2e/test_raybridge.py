"""The process that talks with Ray, as the service sees it: here a script that talks with nobody."""

import sys

import pytest

from geminid.serve.executors.ray import bridge as module
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.bridge import Bridge
from waiting import until

NODE = b'{"id":"1","name":"%s","address":"","gpu_type":"cpu","slots":1,"unit":"CPU","bundle":{},"accelerator":null}'
SCRIPT = f"""
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(b'{{"told": "nodes", "nodes": []}}\\n')
word = line.recv(1000)
if b"hang" in word:
    time.sleep(600)
if b"much" in word:
    many = {NODE!r} % ((12 << 20) * b"n")
    lost = b'{{"told": "lost", "slots": [], "reason": ""}}\\n'
    line.sendall(lost + b'{{"told": "nodes", "nodes": [' + many + b']}}\\n' + lost)
    time.sleep(600)
if b"trouble" in word:
    line.sendall(b'{{"told": "trouble", "text": "no head"}}\\n')
if b"nonsense" in word:
    line.sendall(b'{{"told": "nonsense"}}\\n')
    time.sleep(600)
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


def test_one_that_ends_is_started_again_and_nothing_is_sent_into_the_void(bridge):
    until(lambda: bridge.heard)
    assert bridge.send(b.Rest(node="trouble")) == 1
    until(lambda: len(bridge.heard) >= 2)
    assert bridge.heard[1] == b.Away(bridge=1, trouble="no head")
    assert bridge.send(b.Lease(id=1, slots=[])) is None  # whoever asks must ask again
    until(lambda: len(bridge.heard) >= 3)
    assert bridge.send(b.End()) == 2


def test_one_that_hangs_is_replaced(bridge):
    until(lambda: bridge.heard)
    bridge.send(b.Rest(node="hang"))
    until(lambda: len(bridge.heard) >= 3)
    assert bridge.heard[1].bridge == 1
    assert "has said nothing for 1 s" in bridge.heard[1].trouble
    assert bridge.heard[2] == b.Nodes(nodes=[])


def test_all_nodes_of_a_large_cluster_are_told_in_one_line(bridge):
    until(lambda: bridge.heard)
    bridge.send(b.Rest(node="much"))
    until(lambda: len(bridge.heard) >= 4)
    assert [type(told) for told in bridge.heard] == [b.Nodes, b.Lost, b.Nodes, b.Lost]
    assert len(bridge.heard[2].nodes[0].name) == 12 << 20


def test_one_that_is_not_understood_is_replaced_and_what_it_said_is_told(bridge):
    until(lambda: bridge.heard)
    bridge.send(b.Rest(node="nonsense"))
    until(lambda: len(bridge.heard) >= 3)
    unreadable = "cannot be read: not a message of this protocol: Invalid value 'nonsense'"
    assert unreadable in bridge.heard[1].trouble
    assert bridge.heard[2] == b.Nodes(nodes=[])
