"""Processes on a node, started and watched from elsewhere; without Ray."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from geminid.node import agent
from geminid.node import log as nodelog
from geminid.node.agent import NodeServer
from geminid.node.log import KEPT_BYTES, STEP_BYTES, NodeLog
from geminid.node.machine import SLOTS
from geminid.node.messages import Identity
from geminid.process.identity import started_at
from geminid.process.launch import SLOT_GONE, Launch
from geminid.serve.executors import agentlinks, commands
from geminid.serve.executors.agentevents import (
    AgentConnected,
    AgentGone,
    AgentRefused,
    AgentSilent,
    CodeGone,
    NothingRuns,
)
from geminid.serve.executors.agents import AgentPool
from geminid.serve.executors.commands import RemoteCommand
from geminid.testing.clock import ManualClock
from waiting import until


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
    made = AgentPool(events.append)
    made.know("n", *server.address, "secret")
    until(lambda: AgentConnected("n") in events)
    yield made
    made.close()


def launch(tmp_path: Path, *command: str, name: str = "j1/w1") -> Launch:
    return Launch(command, {"WORD": "hello"}, Path(), tmp_path / "logs" / "w1.log", "n/0", name)


def started(nodes, launch):
    process = nodes.start(launch)
    process.begin()
    return process


def test_a_process_runs_there_and_its_log_is_here(nodes, tmp_path):
    process = started(nodes, launch(tmp_path, "sh", "-c", "echo $WORD from $WHERE; exit 3"))
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 3
    assert (tmp_path / "logs" / "w1.log").read_text() == "hello from there\n"
    process.close()


def test_nothing_runs_before_it_is_told_to_begin(nodes, tmp_path):
    process = nodes.start(launch(tmp_path, "touch", str(tmp_path / "ran")))
    assert process.identity.keys() == {"node", "key", "pid", "log"}  # what its supervisor writes down meanwhile
    after = started(nodes, launch(tmp_path, "true"))
    until(lambda: after.exit_code() == 0)
    assert process.key not in nodes.running()
    assert not (tmp_path / "ran").exists()
    process.begin()
    until(lambda: process.exit_code() == 0)
    assert (tmp_path / "ran").exists()
    process.close()
    after.close()


def test_a_command_that_is_to_end_is_told_so_until_it_has(nodes, tmp_path, monkeypatch):
    """Also if its line was cut at the moment when it was told first."""
    monkeypatch.setattr(commands, "SIGNAL_AGAIN_S", 0.0)
    process, ended = started(nodes, launch(tmp_path, "sleep", "300")), threading.Event()
    until(lambda: process.pid)
    command = RemoteCommand([process], lambda command: ended.set())
    with monkeypatch.context() as cut:
        cut.setattr(nodes, "send", lambda node, document: None)
        command.stop(0.0)
        command.tick()
    assert not ended.wait(0.5)
    until(lambda: command.tick() or ended.is_set())
    assert command.exit.code == -signal.SIGKILL


def test_what_cannot_be_started_says_so(nodes, tmp_path):
    process = started(nodes, launch(tmp_path, "no-such-program"))
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 127
    assert "no such program" in process.reason
    process.close()


def test_code_that_was_brought_and_is_gone_is_told_before_the_end_of_whoever_was_to_run_it(server, tmp_path):
    events = []
    gone = tmp_path / "gone"
    nodes = AgentPool(events.append, folder_on=lambda job, node: str(gone), holders_on=lambda node: {"0": None})
    nodes.know("n", *server.address, "secret")
    process = started(nodes, replace(launch(tmp_path, "true", name="j7/w1"), environment={SLOTS: "0"}))
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == SLOT_GONE
    assert "its code is not on the node" in process.reason
    assert CodeGone("j7", "n", frozenset({"n/0"})) in events
    gone.mkdir()
    again = started(nodes, replace(launch(tmp_path, "pwd", name="j7/w2"), environment={SLOTS: "0"}))
    until(lambda: again.exit_code() is not None)
    assert again.exit_code() == 0
    for one in (process, again):
        one.close()
    nodes.close()


def test_a_process_ends_with_whatever_holds_its_slot(server, tmp_path):
    holders = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    held = {"0": None}
    nodes = AgentPool(lambda event: None, holders_on=lambda node: held)
    nodes.know("n", *server.address, "secret")
    on = {slot: launch(tmp_path, "sleep", "600", name=f"j{slot}/w1") for slot in ("0", "1")}
    on = {slot: replace(one, environment={SLOTS: slot}) for slot, one in on.items()}
    process = started(nodes, on["0"])
    until(lambda: process.pid)
    refused = started(nodes, on["1"])  # nobody holds its slot
    until(lambda: refused.exit_code() is not None)
    assert refused.exit_code() == SLOT_GONE
    held |= {slot: Identity(one.pid, started_at(one.pid)) for slot, one in zip("01", holders, strict=True)}
    nodes.hold("n")
    other = started(nodes, on["1"])
    until(lambda: other.pid)
    holders[0].kill()
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == SLOT_GONE
    assert not runs(process.pid)
    assert runs(other.pid)
    again = started(nodes, on["0"])
    until(lambda: again.exit_code() is not None)
    assert again.exit_code() == SLOT_GONE
    held["1"] = held["0"]  # one that is gone already
    nodes.hold("n")
    until(lambda: other.exit_code() is not None)
    assert other.exit_code() == SLOT_GONE
    for one in holders:
        one.kill()
        one.wait()
    for one in (process, refused, other, again):
        one.close()
    nodes.close()


def test_a_process_is_taken_over_with_the_rest_of_its_log(nodes, server, tmp_path):
    process = started(nodes, launch(tmp_path, "sh", "-c", "echo one; sleep 300", name="j2/w1"))
    until(lambda: process.pid and (tmp_path / "logs" / "w1.log").exists())
    nodes.close()
    events = []
    later = AgentPool(events.append)
    later.know("n", *server.address, "secret")
    until(lambda: AgentConnected("n") in events)
    adopted = later.adopt(process.identity)
    assert later.adopt({**process.identity, "key": "j2/w9.00"}) is None
    adopted.signal(signal.SIGTERM)
    until(lambda: adopted.exit_code() is not None)
    assert (tmp_path / "logs" / "w1.log").read_text().startswith("one\n")
    for one in (process, adopted, later):
        one.close()


def on_node(server, process) -> Path:
    """The log of a process on its node."""
    job, _, worker = process.key.partition("/")
    return server.folder / job / "logs" / f"{worker}.log"


#: What is printed by ``seq`` with these: lines of nine bytes, in which every place can be told from any other.
NUMBERS = (10_000_000, 14_999_999)
LEFT_OUT = re.compile(rb"\n==> (\d+) bytes are left out here <==\n")


def brought(log: Path) -> tuple[int, int]:
    """How much of the numbers a log accounts for, and how much of that it says to be left out; the rest is right."""
    first, *others = LEFT_OUT.split(log.read_bytes()) if log.exists() else [b""]
    at, left_out = 0, 0
    for gap, piece in [(0, first), *zip(map(int, others[::2]), others[1::2], strict=True)]:
        left_out += gap
        at += gap
        number = NUMBERS[0] + at // 9
        expected = "".join(f"{number + more}\n" for more in range(len(piece) // 9 + 2)).encode()
        assert expected[at % 9 :].startswith(piece)
        at += len(piece)
    return at, left_out


def test_of_a_log_that_outruns_the_line_the_middle_is_left_out_and_the_rest_comes_once(nodes, server, tmp_path):
    command = ("sh", "-c", f"seq {NUMBERS[0]} {NUMBERS[1]}; exec sleep 600")
    process = started(nodes, launch(tmp_path, *command, name="j6/w1"))
    log, printed = tmp_path / "logs" / "w1.log", 9 * (NUMBERS[1] - NUMBERS[0] + 1)
    until(lambda: log.exists() and log.stat().st_size)
    nodes.close()  # in the middle of it
    there = on_node(server, process)
    until(lambda: there.stat().st_size == printed)
    until(lambda: there.stat().st_blocks * 512 < KEPT_BYTES + 2 * STEP_BYTES)  # though nobody has taken it
    events = []
    later = AgentPool(events.append)
    later.know("n", *server.address, "secret")
    until(lambda: AgentConnected("n") in events)
    adopted = later.adopt(process.identity)
    until(lambda: adopted.collected.bytes == printed)
    accounted, left_out = brought(log)
    assert accounted == printed
    assert printed - left_out >= KEPT_BYTES
    assert left_out > 0
    adopted.signal(signal.SIGKILL)
    until(lambda: adopted.exit_code() is not None)
    assert brought(log) == (accounted, left_out)
    for one in (process, adopted, later):
        one.close()


#: Prints as fast as it can for as long as it lives, and does not end when it is asked to.
FLOOD = ("sh", "-c", "trap '' TERM; exec yes 'a line that somebody forgot in an inner loop'")


def test_a_process_that_never_stops_printing_is_ended_and_delays_nobody(nodes, server, tmp_path):
    flood = started(nodes, replace(launch(tmp_path, *FLOOD, name="j7/w1"), log=tmp_path / "flood.log"))
    there = on_node(server, flood)
    until(lambda: there.exists() and there.stat().st_size > 4 * KEPT_BYTES)
    other = started(nodes, launch(tmp_path, "seq", "100000", name="j8/w1"))
    until(lambda: other.exit_code() is not None)
    assert (tmp_path / "logs" / "w1.log").read_text() == "".join(f"{number}\n" for number in range(1, 100_001))
    assert flood.exit_code() is None
    flood.signal(signal.SIGTERM)
    flood.signal(signal.SIGKILL)
    until(lambda: flood.exit_code() is not None)
    assert flood.exit_code() == -signal.SIGKILL
    assert LEFT_OUT.search((tmp_path / "flood.log").read_bytes())
    for one in (flood, other):
        one.close()


def test_a_service_that_takes_nothing_is_obeyed_all_the_same(server, tmp_path):
    def start(key: str, *command: str) -> dict:
        return {"do": "start", "key": key, "command": command, "environment": {}, "folder": "", "slots": []}

    with socket.create_connection(server.address) as line:

        def tell(*documents: dict) -> None:
            line.sendall("".join(f"{json.dumps(document)}\n" for document in documents).encode())

        tell({"do": "hello", "token": "secret"}, start("j9/w1", *FLOOD), {"do": "more", "bytes": 32 << 20})
        there = server.folder / "j9" / "logs" / "w1.log"
        until(lambda: there.exists() and there.stat().st_size > 4 * KEPT_BYTES)
        tell(start("j9/w2", "touch", str(tmp_path / "ran")))
        until(lambda: (tmp_path / "ran").exists())
        pid = server._processes._kept["j9/w1"].process.pid
        tell({"do": "signal", "key": "j9/w1", "signal": int(signal.SIGKILL)})
        until(lambda: not runs(pid))


def test_a_log_goes_on_where_files_can_only_be_emptied(tmp_path, monkeypatch):
    monkeypatch.setattr(nodelog, "free_beginning", lambda descriptor, length: False)
    log = NodeLog(tmp_path / "w1.log", sent=0)
    with log.path.open("ab") as file:
        file.write(b"x" * (KEPT_BYTES + STEP_BYTES))
    log.trim()
    assert log.path.stat().st_size == 0
    assert log.piece(100) == (KEPT_BYTES + STEP_BYTES, b"")
    with log.path.open("ab") as file:
        file.write(b"yz")
    assert log.piece(1) == (KEPT_BYTES + STEP_BYTES, b"y")
    log.finish()
    assert not log.complete
    with log.path.open("ab") as file:
        file.write(b"by whoever outlived the process")
    assert log.piece(100) == (KEPT_BYTES + STEP_BYTES + 1, b"z")
    assert log.complete


def test_nodes_that_nobody_reaches_delay_no_other(server, tmp_path, monkeypatch):
    monkeypatch.setattr(agentlinks, "CONNECT_S", 3600.0)
    events = []
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        before = []
        for _ in range(8):  # when its queue is full, whoever else comes hears nothing
            before.append(socket.socket())
            before[-1].setblocking(False)
            before[-1].connect_ex(full.getsockname())
        nodes = AgentPool(events.append)
        for name in "abc":
            nodes.know(name, *full.getsockname(), "secret")
        nodes.know("n", *server.address, "secret")
        process = started(nodes, launch(tmp_path, "true"))
        until(lambda: process.exit_code() == 0)
        assert events == [AgentConnected("n")]
        process.close()
        nodes.close()
        for one in before:
            one.close()


def test_a_server_that_sends_logs_and_answers_nothing_hangs():
    events = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nodes = AgentPool(events.append, silent_s=1.0, ping_s=0.1)
        nodes.know("n", *listener.getsockname(), "secret")
        line, _ = listener.accept()
        line.sendall(b'{"told": "here", "running": {}, "ended": {}, "well": []}\n')

        def silent() -> bool:
            line.sendall(b'{"told": "log", "key": "j1/w1.00", "offset": 0, "text": "x"}\n')
            return AgentSilent("n") in events

        until(silent)
        line.close()
        nodes.close()


@pytest.mark.parametrize(
    "hello", ['{"do": "hello", "token": "guess"}', '{"token": "secret"}', '{"do": "ping"}', "hello"]
)
def test_a_stranger_is_not_heard(server, hello):
    with socket.create_connection(server.address) as line:
        line.sendall(f"{hello}\n".encode() + b'{"do": "start", "key": "x/y", "command": ["touch", "/tmp/x"]}\n')
        line.settimeout(10)
        assert line.recv(100) == b""


def test_a_service_of_another_version_is_refused_with_the_reason(server):
    with socket.create_connection(server.address) as line:
        line.sendall(b'{"do": "hello", "token": "secret", "version": 99}\n')
        line.settimeout(10)
        reason = "the service speaks version 99 of the protocol, not 1"
        assert json.loads(line.recv(1000)) == {"told": "refused", "reason": reason}
        assert line.recv(100) == b""


def test_a_service_hears_why_it_is_refused():
    events = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nodes = AgentPool(events.append)
        nodes.know("n", *listener.getsockname(), "secret")
        line, _ = listener.accept()
        line.sendall(b'{"told": "refused", "reason": "too old"}\n')
        until(lambda: AgentRefused("n", "too old") in events)
        line.close()
        nodes.close()


#: A command that starts one process in its group and one in a session of its own, says which they are, and waits.
FAMILY = "sleep 600 & echo $! > $0.new; setsid sleep 600 & echo $! >> $0.new; mv $0.new $0; wait"

SERVER = (
    "import sys, os; from pathlib import Path; from geminid.node.agent import NodeServer\n"
    "server = NodeServer('127.0.0.1', Path(sys.argv[1]), 'secret', dict(os.environ))\n"
    "print(server.address[1], server._warm.pid, flush=True); server.serve()"
)


@pytest.mark.parametrize("victim", ["server", "warm process", "both"])
def test_processes_end_with_their_server_however_it_ends(tmp_path, victim):
    child = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path / "node")], stdout=subprocess.PIPE)
    port, warm = map(int, child.stdout.readline().split())
    events = []
    nodes = AgentPool(events.append)
    nodes.know("n", "127.0.0.1", port, "secret")
    process = started(nodes, launch(tmp_path, "sh", "-c", FAMILY, str(tmp_path / "family")))
    until(lambda: process.pid and (tmp_path / "family").exists())
    family = [process.pid, *map(int, (tmp_path / "family").read_text().split())]
    assert all(map(runs, family))
    if victim != "server":
        os.kill(warm, signal.SIGKILL)
    if victim != "warm process":
        child.kill()
    child.wait()
    child.stdout.close()
    until(lambda: NothingRuns("n") in events)  # nobody listens there: that is proof
    assert events.index(AgentGone("n")) < events.index(NothingRuns("n"))
    if victim == "both":  # nobody was left to see to it: the next server does, before anything else
        NodeServer("127.0.0.1", tmp_path / "node", "secret", os.environ).close()
    until(lambda: not any(map(runs, family)))
    process.close()
    nodes.close()


def test_a_command_is_started_once_whenever_its_service_dies(nodes, server, tmp_path):
    count = ("sh", "-c", f"echo once >> {tmp_path / 'count'}; exec sleep $0")
    never = nodes.announce(launch(tmp_path, *count, "300", name="j3/out"))
    running = nodes.announce(launch(tmp_path, *count, "300", name="j4/out"))
    short = nodes.announce(launch(tmp_path, *count, "0", name="j5/out"))
    kept = []
    short.on_end = lambda code, reason: kept.append((code, reason))
    identities = [dict(process.identity) for process in (never, running, short)]
    nodes.begin(running)
    nodes.begin(short)
    until(lambda: running.pid and short.exit_code() is not None)
    assert kept == [(0, "")]
    nodes.close()  # the service dies, and the next one comes
    events = []
    later = AgentPool(events.append)
    later.know("n", *server.address, "secret")
    until(lambda: AgentConnected("n") in events)
    assert later.recover(identities[0], None, begin=False) is None  # nobody wants it any more
    found = [later.recover(one, end, begin=True) for one, end in zip(identities, (None, None, kept[0]), strict=True)]
    until(lambda: found[0].pid and (tmp_path / "count").read_text() == 3 * "once\n")
    assert later.recover({**identities[0], "key": "j3/out.00", "server": "another"}, None, begin=True) is None
    assert found[2].exit_code() == 0
    for process in found[:2]:
        process.signal(signal.SIGKILL)
        until(lambda process=process: process.exit_code() is not None)
    assert (tmp_path / "count").read_text() == 3 * "once\n"
    for one in (never, running, short, *found, later):
        one.close()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_processes_of_a_node_that_is_cut_off_are_stopped_until_it_counts_again(tmp_path):
    counts = threading.Event()
    made = NodeServer("127.0.0.1", tmp_path / "node", "secret", os.environ, lease_s=1.0, vouched=counts.is_set)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    events = []
    nodes = AgentPool(events.append, ping_s=0.1)
    nodes.know("n", *made.address, "secret")
    process = started(nodes, launch(tmp_path, "sh", "-c", FAMILY, str(tmp_path / "family")))
    until(lambda: process.pid and (tmp_path / "family").exists())
    family = [process.pid, *map(int, (tmp_path / "family").read_text().split())]
    time.sleep(1.5)
    assert state(process.pid) == "S"  # nobody vouches for it, but the service is heard
    nodes.close()
    until(lambda: {state(pid) for pid in family} == {"T"})
    counts.set()
    until(lambda: {state(pid) for pid in family} == {"S"})
    counts.clear()
    until(lambda: state(process.pid) == "T")
    later = AgentPool(events.append, ping_s=0.1, fence_s=60.0)
    later.know("n", *made.address, "secret")
    until(lambda: events.count(AgentConnected("n")) == 2)
    counts.set()  # while a service is heard again
    until(lambda: state(process.pid) == "S")
    later.forget("n")  # there is a line after all: it is told to end everything, and seen to be gone
    until(lambda: NothingRuns("n") in events)
    until(lambda: not any(map(runs, family)))
    thread.join(10.0)
    process.close()
    later.close()


def test_what_may_run_on_a_node_that_nobody_reaches_is_waited_for():
    clock = ManualClock(1000.0)
    events = []
    nodes = AgentPool(events.append, clock=clock)

    def look_again():
        """Have its thread look at the clock once more."""
        for _ in range(2):
            looked = threading.Event()
            nodes._links.reactor.call_soon(looked.set)
            assert looked.wait(60.0)

    nodes.doubt("n")
    look_again()
    clock.at_s += agent.FENCE_S - 0.1
    look_again()
    assert NothingRuns("n") not in events
    clock.at_s += 0.2
    until(lambda: NothingRuns("n") in events)
    nodes.close()


def test_a_service_whose_machine_has_vanished_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    """Its line stays open, and nothing is heard on it."""
    monkeypatch.setattr(agent, "DEAF_S", 0.3)
    server = NodeServer("127.0.0.1", tmp_path / "node", "secret", os.environ, forsaken_s=0.3)
    thread = threading.Thread(target=server.serve)
    thread.start()
    with socket.create_connection(server.address) as line:
        line.sendall(b'{"do": "hello", "token": "secret"}\n')
        assert b"here" in line.recv(1000)
        thread.join(60.0)
        assert not thread.is_alive()
    assert server.forsaken


def test_a_server_that_hangs_is_noticed_and_ended_by_the_next(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path / "node")], stdout=subprocess.PIPE)
    port, warm = map(int, child.stdout.readline().split())
    events = []
    nodes = AgentPool(events.append, silent_s=1.0, ping_s=0.1)
    nodes.know("n", "127.0.0.1", port, "secret")
    until(lambda: AgentConnected("n") in events)
    time.sleep(1.5)
    assert AgentSilent("n") not in events  # it has nothing to tell, but answers
    nodes._links.do(lambda: time.sleep(1.5))  # now we are the one that stands still
    time.sleep(2.0)
    assert AgentSilent("n") not in events
    child.send_signal(signal.SIGSTOP)
    until(lambda: AgentSilent("n") in events)
    assert runs(warm)
    NodeServer("127.0.0.1", tmp_path / "node", "secret", os.environ).close()
    assert child.wait() == -signal.SIGKILL
    until(lambda: not runs(warm))
    child.stdout.close()
    nodes.close()
