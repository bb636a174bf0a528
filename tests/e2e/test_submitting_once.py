"""A connection that breaks while a job is submitted: there is one job, or none, and whoever asked learns which."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from live import Live


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(slots=1, grace_s=2.0) as running:
        yield running


class Proxy:
    """Passes requests on to a service, and cuts the first few connections on which a job is submitted.

    That is before the request is passed on, or after the service has answered it.
    """

    def __init__(self, url: str, *, cuts: int, after: bool) -> None:
        self._service = (urlsplit(url).hostname, urlsplit(url).port)
        self._cuts, self._after = cuts, after
        self.submissions = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *problem: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        request = _whole(client)
        submits = request.startswith(b"POST /api/v1/jobs?")
        self.submissions += submits
        cut = submits and self.submissions <= self._cuts
        if cut and not self._after:
            return
        with socket.create_connection(self._service) as service:
            service.sendall(request)
            answer = _whole(service)
        if not cut:
            client.sendall(answer)


def _whole(line: socket.socket) -> bytes:
    """A request or an answer with its body."""
    said = b""
    while b"\r\n\r\n" not in said and (piece := line.recv(1 << 16)):
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    lengths = [one for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0].split(b":")[1]) and (piece := line.recv(1 << 16)):
        body += piece
    return head + b"\r\n\r\n" + body


def submit(live: Live, url: str, *words: str, away_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """`geminid submit` through another address."""
    token = (live.home / "token").read_text().strip()
    env = {**live.env, "GEMINID_URL": url, "GEMINID_TOKEN": token, "GEMINID_AWAY": str(away_s)}
    command = [sys.executable, "-m", "geminid", "submit", *words]
    return subprocess.run(command, env=env, cwd=live.home, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("after", [False, True], ids=["before it was passed on", "after it was answered"])
def test_a_job_is_submitted_once_though_the_connection_breaks(live, after):
    name = f"once-{after}".lower()
    with Proxy(live.client.url, cuts=2, after=after) as proxy:
        done = submit(live, proxy.url, "--name", name, "--", "true")
    assert done.returncode == 0, done.stderr
    assert proxy.submissions == 3
    assert "the connection broke before the answer" in done.stderr
    (job,) = [job for job in live.json("queue", "--all") if job["name"] == name]
    assert done.stdout.startswith(f"submitted {job['id']} ")


def test_whoever_cannot_know_is_given_the_command_that_settles_it(live):
    with Proxy(live.client.url, cuts=1000, after=True) as proxy:
        done = submit(
            live, proxy.url, "--name", "perhaps", "--retries", "0", "--", "sh", "-c", "echo 'a b'", away_s=1.0
        )
    assert done.returncode == 3
    assert "the job may have been submitted, or not" in done.stderr
    command = shlex.split(done.stderr.strip().splitlines()[-1].partition("at most once: ")[2])
    assert command[:3] == ["geminid", "submit", "--key"]
    (job,) = [job for job in live.json("queue", "--all") if job["name"] == "perhaps"]
    for _ in range(2):
        settled = submit(live, live.client.url, *command[2:])
        assert settled.stdout.startswith(f"submitted {job['id']} "), settled.stderr
    assert len([job for job in live.json("queue", "--all") if job["name"] == "perhaps"]) == 1


def test_where_nobody_listens_nothing_was_submitted(live):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = submit(live, url, "--", "true")
    assert done.returncode == 3
    assert "may have been" not in done.stderr


def test_a_key_stands_for_one_job(live, tmp_path):
    script = Path(live.home / "gone.py")
    script.write_text("print('hello')\n")
    first = live.run("submit", "--key", "k1", "--working-dir", live.home, "--", "python", "gone.py")
    script.unlink()  # what was accepted is not looked at again
    (tmp_path / "gone.py").touch()
    again = live.client.post(
        "jobs",
        {"name": "gone", "command": ["python", "gone.py"], "working_dir": str(live.home)},
        headers={"Idempotency-Key": "k1"},
    )
    assert first.stdout.split()[1] == again["id"]
    other = live.run("submit", "--key", "k1", "--", "false")
    assert other.returncode == 2
    assert "use a key only once" in other.stderr
