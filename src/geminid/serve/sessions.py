"""Browser sessions: a one-time code becomes a cookie and a secret, which together stand for a token.

A token in an address would stay in the browser's history. So a client with a token asks for a code, which is good for
one use within a minute; the page posts the code and gets a cookie that scripts cannot read, and a secret that it sends
in a header. Neither is enough alone: a browser sends the cookie to every port of this machine, the secret stays with
the page's own address. A session lasts until it is ended or expires, or the token that it stands for does. Only hashes
are kept on disk, in ``sessions.json``, so that open pages survive a restart of the service.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from geminid.serve.auth import Identity, Tokens, write_private

#: The file in the home folder.
SESSIONS = "sessions.json"

#: Time for which a code can be used.
CODE_LIFETIME_S = 60.0

#: Time for which a session lasts.
SESSION_LIFETIME_S = 14 * 86_400.0

#: Codes of one user that may wait to be used; the oldest makes room.
MAX_CODES_PER_USER = 10

#: Sessions of one user that may be open; the oldest makes room.
MAX_SESSIONS_PER_USER = 50

#: Failed log-ins with tokens from one address within ``FAILURES_WINDOW_S`` after which no token is looked at.
MAX_FAILURES = 20

#: Time after which failed log-ins are forgotten.
FAILURES_WINDOW_S = 60.0

#: Addresses whose failed log-ins are counted at the same time.
MAX_ADDRESSES = 1000


@dataclass(frozen=True, slots=True)
class Session:
    """An open session: hashes of its cookie, its secret and the token that it stands for, its user, and its end."""

    cookie_hash: str
    secret_hash: str
    token_hash: str
    user: str
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """What a browser gets when a session begins: the value of a cookie, and a secret for a header."""

    cookie: str
    secret: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class Code:
    """A code that waits to be used."""

    identity: Identity
    expires_at_s: float


@dataclass(slots=True)
class Sessions:
    """Codes and sessions of a service, by the hashes of codes and cookies. ``now_s`` is the time since the epoch."""

    home: Path
    tokens: Tokens
    now_s: Callable[[], float]
    service_id: str = ""
    _codes: dict[str, Code] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # without it, everybody logs in again
            saved = json.loads((self.home / SESSIONS).read_text(encoding="utf-8"))
            self.service_id = str(saved["service_id"])
            # Sessions from before there were secrets cannot be used any more.
            kept = (Session(**one) for one in saved["sessions"] if "secret_hash" in one)
            self._sessions = {one.cookie_hash: one for one in kept}
        if not self.service_id.isalnum():
            self.service_id = secrets.token_hex(4)
            self._save()

    @property
    def cookie_name(self) -> str:
        """Services on other ports of this machine share cookies with this one: each has a name of its own."""
        return f"__Host-geminid-{self.service_id}"

    def make_code(self, identity: Identity) -> str:
        """A code that opens one session in the name of a token's user."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            now_s = self.now_s()
            self._codes = {digest: one for digest, one in self._codes.items() if one.expires_at_s > now_s}
            own = [digest for digest, one in self._codes.items() if one.identity.user == identity.user]
            for oldest in own[: max(len(own) - MAX_CODES_PER_USER + 1, 0)]:
                del self._codes[oldest]
            self._codes[_hash(code)] = Code(identity, now_s + CODE_LIFETIME_S)
        return code

    def redeem(self, code: str) -> Opened | None:
        """Open a session with a code; None if the code is not, or no longer, good."""
        with self._lock:
            found = self._codes.pop(_hash(code), None)
        if found is None or found.expires_at_s <= self.now_s():
            return None
        return self.open(found.identity.hash)

    def open(self, token_hash: str) -> Opened | None:
        """Open a session for a token; None if the token is not valid."""
        identity = self.tokens.by_hash(token_hash)
        if identity is None:
            return None
        opened = Opened(secrets.token_urlsafe(32), secrets.token_urlsafe(32), identity)
        with self._lock:
            now_s = self.now_s()
            self._sessions = {digest: one for digest, one in self._sessions.items() if one.expires_at_s > now_s}
            own = [digest for digest, one in self._sessions.items() if one.user == identity.user]
            for oldest in own[: max(len(own) - MAX_SESSIONS_PER_USER + 1, 0)]:
                del self._sessions[oldest]
            made = Session(
                cookie_hash=_hash(opened.cookie),
                secret_hash=_hash(opened.secret),
                token_hash=token_hash,
                user=identity.user,
                expires_at_s=now_s + SESSION_LIFETIME_S,
            )
            self._sessions[made.cookie_hash] = made
            self._save()
        return opened

    def identify(self, cookie: str, secret: str) -> Identity | None:
        """In whose name a session is; None if it is not open, or the secret is not its own."""
        found = self._sessions.get(_hash(cookie))
        if found is None or not hmac.compare_digest(found.secret_hash, _hash(secret)):
            return None
        return None if found.expires_at_s <= self.now_s() else self.tokens.by_hash(found.token_hash)

    def close(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            if self._sessions.pop(_hash(cookie), None) is not None:
                self._save()

    def _save(self) -> None:
        plain = {"service_id": self.service_id, "sessions": [asdict(one) for one in self._sessions.values()]}
        with contextlib.suppress(OSError):  # a full disk: sessions end with the process
            write_private(self.home / SESSIONS, json.dumps(plain))


@dataclass(slots=True)
class FailedLogIns:
    """Counts failed log-ins by address, so that nobody tries tokens quickly. ``now_s`` is any clock that goes on."""

    now_s: Callable[[], float]
    _failures: dict[str, tuple[float, int]] = field(default_factory=dict)

    def note(self, address: str) -> None:
        """A log-in from an address has failed."""
        began_s, count = self._current(address)
        self._failures.pop(address, None)
        while len(self._failures) >= MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = (began_s, count + 1)

    def are_too_many(self, address: str) -> bool:
        """Whether an address has to wait before another token is looked at."""
        return self._current(address)[1] >= MAX_FAILURES

    def _current(self, address: str) -> tuple[float, int]:
        """When the failures of an address that count began, and how many there are."""
        now_s = self.now_s()
        began_s, count = self._failures.get(address, (now_s, 0))
        return (began_s, count) if now_s < began_s + FAILURES_WINDOW_S else (now_s, 0)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
