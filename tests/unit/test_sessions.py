"""Browser sessions: codes work once, cookies stand for tokens, and nothing secret is on disk."""

from __future__ import annotations

import pytest

from geminid.cli.service import checked_public_url
from geminid.fields import InvalidInput
from geminid.serve.auth import Tokens
from geminid.serve.sessions import CODE_LIFETIME_S, SESSION_LIFETIME_S, SESSIONS, Sessions
from geminid.testing.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path)


def opened(tmp_path, tokens, clock):
    sessions = Sessions(tmp_path, tokens, clock.now_s)
    ann = tokens.identify(tokens.add("ann", "user"))
    return sessions, sessions.make_code(ann)


def test_a_code_opens_one_session(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    cookie = sessions.redeem(code)
    assert sessions.identify(cookie).user == "ann"
    assert sessions.redeem(code) is None
    assert sessions.redeem("guess") is None
    assert sessions.identify("guess") is None


def test_codes_and_sessions_expire(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    clock.sleep(CODE_LIFETIME_S + 1)
    assert sessions.redeem(code) is None
    cookie = sessions.open(tokens.all()[0].hash)
    clock.sleep(SESSION_LIFETIME_S - 10)
    assert sessions.identify(cookie).user == "ann"
    clock.sleep(20)
    assert sessions.identify(cookie) is None


def test_a_session_ends_with_its_token_or_when_it_is_closed(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    first, second = sessions.redeem(code), sessions.open(tokens.all()[0].hash)
    sessions.close(first)
    assert sessions.identify(first) is None
    assert sessions.identify(second).user == "ann"
    tokens.revoke("ann")
    assert sessions.identify(second) is None
    assert sessions.open(tokens.all()[0].hash) is None


def test_sessions_survive_a_restart_and_only_hashes_are_kept(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    cookie = sessions.redeem(code)
    again = Sessions(tmp_path, tokens, clock.now_s)
    assert again.cookie_name == sessions.cookie_name
    assert again.identify(cookie).user == "ann"
    assert again.redeem(code) is None
    text = (tmp_path / SESSIONS).read_text()
    assert cookie not in text
    assert code not in text
    assert (tmp_path / SESSIONS).stat().st_mode & 0o077 == 0
    (tmp_path / SESSIONS).write_text("{")
    assert Sessions(tmp_path, tokens, clock.now_s).identify(cookie) is None  # everybody logs in again


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("https://train.example.org/", "https://train.example.org"),
        ("https://train.example.org:8443", "https://train.example.org:8443"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://[::1]:9000", "http://[::1]:9000"),
    ],
)
def test_public_addresses_are_https_or_on_this_machine(given, kept):
    assert checked_public_url(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        "http://train.example.org",
        "train.example.org",
        "https://",
        "https://a/b",
        "ftp://127.0.0.1",
        "https://u@a",
        "https://a:x",
    ],
)
def test_other_public_addresses_are_refused(given):
    with pytest.raises(InvalidInput, match="public-url"):
        checked_public_url(given)
