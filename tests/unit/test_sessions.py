"""Browser sessions: codes work once, cookies with secrets stand for tokens, and nothing secret is on disk."""

from __future__ import annotations

import json

import pytest

from geminid.cli.service import checked_public_url
from geminid.fields import InvalidInput
from geminid.serve.auth import Tokens
from geminid.serve.sessions import (
    CODE_LIFETIME_S,
    FAILURES_WINDOW_S,
    MAX_CODES_PER_USER,
    MAX_FAILURES,
    MAX_SESSIONS_PER_USER,
    SESSION_LIFETIME_S,
    SESSIONS,
    FailedLogIns,
    Sessions,
)
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


def user_of(sessions, opened):
    found = sessions.identify(opened.cookie, opened.secret)
    return None if found is None else found.user


def test_a_code_opens_one_session(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    session = sessions.redeem(code)
    assert user_of(sessions, session) == "ann"
    assert sessions.redeem(code) is None
    assert sessions.redeem("guess") is None
    assert sessions.identify("guess", session.secret) is None


def test_a_cookie_is_nothing_without_the_secret_of_its_own_session(tmp_path, tokens, clock):
    """Browsers send cookies to every port of a machine, where another program may listen."""
    sessions, code = opened(tmp_path, tokens, clock)
    session, other = sessions.redeem(code), sessions.open(tokens.all()[0].hash)
    assert sessions.identify(session.cookie, "") is None
    assert sessions.identify(session.cookie, session.cookie) is None
    assert sessions.identify(session.cookie, other.secret) is None


def test_codes_and_sessions_expire(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    clock.sleep(CODE_LIFETIME_S + 1)
    assert sessions.redeem(code) is None
    session = sessions.open(tokens.all()[0].hash)
    clock.sleep(SESSION_LIFETIME_S - 10)
    assert user_of(sessions, session) == "ann"
    clock.sleep(20)
    assert user_of(sessions, session) is None


def test_a_session_ends_with_its_token_or_when_it_is_closed(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    first, second = sessions.redeem(code), sessions.open(tokens.all()[0].hash)
    sessions.close(first.cookie)
    assert user_of(sessions, first) is None
    assert user_of(sessions, second) == "ann"
    tokens.revoke("ann")
    assert user_of(sessions, second) is None
    assert sessions.open(tokens.all()[0].hash) is None


def test_nobody_takes_the_codes_and_sessions_of_others_away(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    eve = tokens.identify(tokens.add("eve", "viewer"))
    codes = [sessions.make_code(eve) for _ in range(MAX_CODES_PER_USER + 1)]
    assert sessions.redeem(codes[0]) is None
    hers = [sessions.redeem(codes[-1]), *(sessions.open(eve.hash) for _ in range(MAX_SESSIONS_PER_USER))]
    assert [user_of(sessions, one) for one in (hers[0], hers[1], hers[-1])] == [None, "eve", "eve"]
    assert user_of(sessions, sessions.redeem(code)) == "ann"


def test_failed_log_ins_are_limited_for_each_address_and_forgotten_after_a_while(clock):
    failed = FailedLogIns(clock.monotonic_s)
    for _ in range(MAX_FAILURES):
        assert not failed.are_too_many("10.0.0.1")
        failed.note("10.0.0.1")
    assert failed.are_too_many("10.0.0.1")
    assert not failed.are_too_many("10.0.0.2")
    clock.sleep(FAILURES_WINDOW_S + 1)
    assert not failed.are_too_many("10.0.0.1")


def test_sessions_survive_a_restart_and_only_hashes_are_kept(tmp_path, tokens, clock):
    sessions, code = opened(tmp_path, tokens, clock)
    session = sessions.redeem(code)
    again = Sessions(tmp_path, tokens, clock.now_s)
    assert again.cookie_name == sessions.cookie_name
    assert user_of(again, session) == "ann"
    assert again.redeem(code) is None
    text = (tmp_path / SESSIONS).read_text()
    assert not any(secret in text for secret in (session.cookie, session.secret, code))
    assert (tmp_path / SESSIONS).stat().st_mode & 0o077 == 0
    (tmp_path / SESSIONS).write_text("{")
    assert user_of(Sessions(tmp_path, tokens, clock.now_s), session) is None  # everybody logs in again


def test_sessions_from_before_there_were_secrets_are_over(tmp_path, tokens, clock):
    old = {"cookie_hash": "a", "token_hash": "b", "expires_at_s": 1e12}
    (tmp_path / SESSIONS).write_text(json.dumps({"service_id": "beef", "sessions": [old]}))
    sessions = Sessions(tmp_path, tokens, clock.now_s)
    assert sessions.cookie_name == "__Host-geminid-beef"
    ann = tokens.identify(tokens.add("ann", "user"))
    assert user_of(sessions, sessions.open(ann.hash)) == "ann"


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
