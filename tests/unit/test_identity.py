"""A process is named by its id and the time it started, and asked how it is."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from geminid.process.identity import identity_of, is_running, is_stopped, still_runs
from geminid.process.interfaces import interfaces_with


@pytest.fixture
def child():
    """A process that has begun, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    with process:
        yield process
        process.kill()


def wait_for_state(pid, status):
    """Signals take effect a moment after they were sent."""
    process = psutil.Process(pid)
    while process.status() != status:
        os.sched_yield()


def test_the_time_of_start_is_the_kernels_and_not_that_of_the_clock():
    ticks = identity_of(os.getpid())["started_at"]
    since_boot_s = psutil.Process().create_time() - psutil.boot_time()
    assert abs(ticks / os.sysconf("SC_CLK_TCK") - since_boot_s) < 1.5


def test_another_process_with_the_same_id_is_not_the_same(child):
    named = identity_of(child.pid)
    assert still_runs(named)
    assert not still_runs({**named, "started_at": named["started_at"] - 1})
    assert not still_runs({"pid": child.pid, "started_at": None})
    assert not still_runs({"node": "n1", "key": "j1/w1.4f", "pid": child.pid})  # an agent on another node watches it
    assert still_runs({**named, "started_at": 1, "shim": identity_of(os.getpid())})


def test_a_process_that_has_ended_does_not_run_though_nobody_asked_how(child):
    assert is_running(child.pid)
    child.kill()
    wait_for_state(child.pid, psutil.STATUS_ZOMBIE)
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)
    assert identity_of(child.pid) == {"pid": child.pid, "started_at": None}


def test_a_process_that_was_stopped_is_known(child):
    assert not is_stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    wait_for_state(child.pid, psutil.STATUS_STOPPED)
    assert is_stopped(child.pid)
    assert is_running(child.pid)


def test_addresses_belong_to_interfaces():
    assert interfaces_with("127.9.9.9") == interfaces_with("127.0.0.1") != []
    assert interfaces_with("192.0.2.1") == []  # an address for documentation, which nobody has
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                assert name in interfaces_with(one.address)
