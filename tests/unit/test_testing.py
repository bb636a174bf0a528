"""The public test doubles: what people outside rely on."""

from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

from geminid import testing
from geminid.serve.executors.base import Executor
from geminid.testing.clock import ManualClock
from geminid.testing.executor import PretendExecutor
from geminid.testing.processes import command_line, marked_processes
from geminid.testing.waiting import wait_until


def test_the_package_says_what_it_offers():
    for module in pkgutil.iter_modules(testing.__path__):
        assert f"``{module.name}" in testing.__doc__


def test_a_pretend_executor_has_all_that_the_service_asks_of_an_executor():
    asked = {name for name in vars(Executor) if not name.startswith("_")}
    assert asked
    for name in asked:
        expected, found = inspect.getattr_static(Executor, name), inspect.getattr_static(PretendExecutor, name)
        assert isinstance(found, property) == isinstance(expected, property)
        if not isinstance(expected, property):
            assert list(inspect.signature(found).parameters) == list(inspect.signature(expected).parameters)


def test_a_clock_stands_still_until_it_is_set():
    clock = ManualClock(5.0)
    assert clock.now_s() == clock.now_s() == 5.0
    clock.at_s += 1.5
    assert clock.now_s() == clock.monotonic_s() == 6.5
    clock.sleep(60.0)
    assert clock.now_s() == 66.5


def test_waiting_ends_with_the_condition_or_with_a_sentence():
    looks = iter([False, False, True])
    wait_until(lambda: next(looks), timeout_s=60.0, problem="never", every_s=0.0)
    assert next(looks, None) is None
    with pytest.raises(TimeoutError, match=r"^the job did not start: it waits \(waited 0 s\)$"):
        wait_until(lambda: False, timeout_s=0.0, problem=lambda: "the job did not start: it waits", every_s=0.001)


def test_processes_are_found_by_their_environment():
    mark = f"GEMINID_TEST_MARK={os.getpid()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, name: value}) as process:
        wait_until(lambda: marked_processes(mark), timeout_s=60.0, problem="it did not start")
        assert marked_processes(mark) == [(process.pid, " ".join(command))]
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert marked_processes(mark) == []
    assert command_line(process.pid) == ""
