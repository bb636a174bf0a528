"""Tokens: none is lost, none is shown to strangers, and what was done to them can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from geminid.process.identity import started_at
from geminid.serve.auth import DamagedTokens, Tokens, challenge_of, changes, first_token
from geminid.serve.client import Client, ServiceError


def test_tokens_that_are_made_at_the_same_time_are_all_there(tmp_path):
    def make(i: int) -> str:
        return Tokens(tmp_path).add(f"u{i}", "user")

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(make, range(32)))
    tokens = Tokens(tmp_path)
    assert [tokens.identify(token).user for token in made] == [f"u{i}" for i in range(32)]
    assert not [token for token in made if token in (tmp_path / "tokens.json").read_text()]


def test_what_was_done_to_tokens_is_kept_and_told(tmp_path):
    tokens = Tokens(tmp_path)
    other = Tokens(tmp_path)
    before = other.all()
    token = tokens.add("ann", "user")
    assert changes(before, other.all())[0].endswith("made a token for ann with role user")
    before = other.all()
    assert tokens.revoke("ann") == 1
    assert tokens.revoke("ann") == 0
    assert changes(before, other.all()) == ["a token of ann was revoked"]
    assert other.identify(token) is None
    assert changes(before, []) == ["a token of ann was deleted"]
    assert [one.user for one in other.all()] == ["ann"]


def test_a_service_proves_that_it_knows_a_token(tmp_path):
    token = Tokens(tmp_path).add("ann", "user")
    fingerprint, challenge, proof = challenge_of(token)
    assert Tokens(tmp_path).prove(fingerprint, challenge) == proof
    assert Tokens(tmp_path).prove(challenge_of("other")[0], challenge) is None


@pytest.fixture
def stranger():
    """Somebody who listens where a service was, and writes down what is shown."""
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(f"{self.path} {dict(self.headers)}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"proof": "trust me"}')

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", shown
    server.shutdown()
    server.server_close()


def test_no_token_is_shown_to_whoever_listens_at_the_port_of_a_service_that_is_gone(tmp_path, stranger, monkeypatch):
    url, shown = stranger
    monkeypatch.delenv("GEMINID_URL", raising=False)
    monkeypatch.setenv("GEMINID_HOME", str(tmp_path))
    (tmp_path / "token").write_text("gmd_secret\n")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for pid, since in ((int(gone.stdout), 1), (os.getpid(), started_at(os.getpid()) - 1)):
        (tmp_path / "service.json").write_text(json.dumps({"url": url, "pid": pid, "started_at": since}))
        with pytest.raises(ServiceError, match="no service is running"):
            Client.here()
    assert shown == []
    monkeypatch.setenv("GEMINID_URL", url)
    with pytest.raises(ServiceError, match="does not know your token"):
        Client.here()
    assert len(shown) == 1
    assert "secret" not in shown[0]
    assert "uthorization" not in shown[0]


def test_a_lost_file_of_tokens_is_named_and_not_made_anew(tmp_path):
    first_token(tmp_path)
    (tmp_path / "tokens.json").unlink()
    with pytest.raises(DamagedTokens, match=r"tokens\.json is missing.*remove .*/token for a new token"):
        first_token(tmp_path)
    (tmp_path / "token").unlink()
    first_token(tmp_path)
    assert Tokens(tmp_path).identify((tmp_path / "token").read_text().strip()) is not None


def test_a_damaged_file_of_tokens_is_named(tmp_path):
    tokens = Tokens(tmp_path)
    token = tokens.add("ann", "user")
    for damage in ("", "[{}]", "{", "7"):
        (tmp_path / "tokens.json").write_text(damage)
        with pytest.raises(DamagedTokens, match=r"tokens\.json is damaged"):
            tokens.identify(token)
