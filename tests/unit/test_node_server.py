"""Processes on a node, started and watched from elsewhere; without Ray."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from geminid.serve.executors.nodeserver import NodeServer
from geminid.serve.executors.remote import NodeGone, NodeHere, Nodes
from geminid.train.launcher import Launch


def until(reached, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    made = NodeServer("127.0.0.1", folder, "secret", {**os.environ, "WHERE": "there"})
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made._ended = True
    thread.join()


@pytest.fixture
def nodes(server):
    events = []
    made = Nodes(events.append)
    made.know("n", *server.address, "secret")
    until(lambda: NodeHere("n") in events)
    yield made
    made.close()


def launch(tmp_path: Path, *command: str, name: str = "j1/w1") -> Launch:
    return Launch(command, {"WORD": "hello"}, Path(), tmp_path / "logs" / "w1.log", "n/0", name)


def test_a_process_runs_there_and_its_log_is_here(nodes, tmp_path):
    process = nodes.start(launch(tmp_path, "sh", "-c", "echo $WORD from $WHERE; exit 3"))
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 3
    assert (tmp_path / "logs" / "w1.log").read_text() == "hello from there\n"
    process.close()


def test_what_cannot_be_started_says_so(nodes, tmp_path):
    process = nodes.start(launch(tmp_path, "no-such-program"))
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 127
    assert "no such program" in process.reason
    process.close()


def test_a_process_is_taken_over_with_the_rest_of_its_log(nodes, server, tmp_path):
    process = nodes.start(launch(tmp_path, "sh", "-c", "echo one; sleep 300", name="j2/w1"))
    until(lambda: process.pid and (tmp_path / "logs" / "w1.log").exists())
    nodes.close()
    events = []
    later = Nodes(events.append)
    later.know("n", *server.address, "secret")
    until(lambda: NodeHere("n") in events)
    adopted = later.adopt(process.identity)
    assert later.adopt({**process.identity, "key": "j2/w9.00"}) is None
    adopted.signal(signal.SIGTERM)
    until(lambda: adopted.exit_code() is not None)
    assert (tmp_path / "logs" / "w1.log").read_text().startswith("one\n")
    for one in (process, adopted, later):
        one.close()


def test_a_stranger_is_not_heard(server):
    with socket.create_connection(server.address) as line:
        line.sendall(b'{"token": "guess"}\n{"do": "start", "key": "x/y", "command": ["touch", "/tmp/x"]}\n')
        line.settimeout(10)
        assert line.recv(100) == b""


def test_processes_end_with_their_server_however_it_ends(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from geminid.serve.executors.nodeserver import NodeServer\n"
        "server = NodeServer('127.0.0.1', Path(sys.argv[1]), 'secret', dict(os.environ))\n"
        "print(server.address[1], flush=True); server.serve()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "node")], stdout=subprocess.PIPE)
    port = int(child.stdout.readline())
    events = []
    nodes = Nodes(events.append)
    nodes.know("n", "127.0.0.1", port, "secret")
    process = nodes.start(launch(tmp_path, "sleep", "600"))
    until(lambda: process.pid)
    assert runs(process.pid)
    child.kill()
    child.wait()
    child.stdout.close()
    until(lambda: NodeGone("n") in events)
    until(lambda: not runs(process.pid))
    process.close()
    nodes.close()
