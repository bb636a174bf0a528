"""What the command line says of a service that does not answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from geminid.process.identity import started_at
from geminid.serve import client
from geminid.serve.client import NO_SERVICE, Client, ServiceError


@pytest.fixture
def silent():
    """The address of somebody who listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_question_is_given_up_sooner_than_what_is_to_be_done(silent, monkeypatch):
    monkeypatch.setattr(client, "TIMEOUT_S", 0.6)
    hasty = Client(silent, "gmd_secret", timeout_s=0.1)
    for ask, within_s in (
        (hasty.get, 0),
        (hasty.get_counted, 0),
        (hasty.post, 1),
        (Client(silent, "gmd_secret", 0.6).get, 1),
    ):
        with pytest.raises(ServiceError, match=f"did not answer within {within_s} s: it hangs") as told:
            ask("jobs")
        assert told.value.code == NO_SERVICE


def test_whoever_asks_for_much_or_to_wait_waits_longer():
    hasty = Client("http://nowhere", "gmd_secret", timeout_s=10.0)
    assert hasty._timeout_for({}) == 10.0
    assert hasty._timeout_for({"wait_s": 25.0, "limit": None}) == 35.0
    assert hasty._timeout_for({"limit": 100_000}) == 110.0


def test_a_service_that_was_stopped_is_told_at_once(tmp_path, silent):
    (tmp_path / "token").write_text("gmd_secret\n")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        place = {"url": silent, "pid": child.pid, "started_at": started_at(child.pid)}
        (tmp_path / "service.json").write_text(json.dumps(place))
        assert Client.here(tmp_path).url == silent
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        with pytest.raises(ServiceError, match=f"is stopped and cannot answer; `kill -CONT {child.pid}`") as told:
            Client.here(tmp_path)
        assert told.value.code == NO_SERVICE
        child.kill()
