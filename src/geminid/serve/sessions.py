"""Browser sessions: a one-time code becomes a cookie, which stands for a token.

A browser cannot send a token with an event stream, and a token in an address would stay in its history. So a client
with a token asks for a code, which is good for one use within a minute; the page posts the code and gets a cookie that
only the browser sees. A session lasts until it is ended or expires, or the token that it stands for does. Only hashes
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

#: Codes that may wait to be used, and sessions that may be open; the oldest make room.
MAX_CODES = 100
MAX_SESSIONS = 1000


@dataclass(frozen=True, slots=True)
class Session:
    """An open session: the hash of its cookie, the hash of the token that it stands for, and when it expires."""

    cookie_hash: str
    token_hash: str
    expires_at_s: float


@dataclass(slots=True)
class Sessions:
    """Codes and sessions of a service. ``now_s`` is the time since the epoch."""

    home: Path
    tokens: Tokens
    now_s: Callable[[], float]
    service_id: str = ""
    _codes: dict[str, tuple[str, float]] = field(default_factory=dict)
    _sessions: list[Session] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # without it, everybody logs in again
            saved = json.loads((self.home / SESSIONS).read_text(encoding="utf-8"))
            self.service_id = str(saved["service_id"])
            self._sessions = [Session(**one) for one in saved["sessions"]]
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
            self._codes = {one: found for one, found in self._codes.items() if found[1] > now_s}
            while len(self._codes) >= MAX_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_hash(code)] = (identity.hash, now_s + CODE_LIFETIME_S)
        return code

    def redeem(self, code: str) -> str | None:
        """Open a session with a code; the value of its cookie, or None if the code is not, or no longer, good."""
        with self._lock:
            token_hash, until_s = self._codes.pop(_hash(code), ("", 0.0))
        if until_s <= self.now_s():
            return None
        return self.open(token_hash)

    def open(self, token_hash: str) -> str | None:
        """Open a session for a token; the value of its cookie, or None if the token is not valid."""
        if self.tokens.by_hash(token_hash) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            now_s = self.now_s()
            kept = [one for one in self._sessions if one.expires_at_s > now_s][-(MAX_SESSIONS - 1) :]
            self._sessions = [*kept, Session(_hash(cookie), token_hash, now_s + SESSION_LIFETIME_S)]
            self._save()
        return cookie

    def identify(self, cookie: str) -> Identity | None:
        """In whose name a session is; None if it is not open."""
        digest, now_s, found = _hash(cookie), self.now_s(), None
        for one in self._sessions:  # all of them, so that the time it takes says nothing
            if hmac.compare_digest(one.cookie_hash, digest):
                found = one
        if found is None or found.expires_at_s <= now_s:
            return None
        return self.tokens.by_hash(found.token_hash)

    def close(self, cookie: str) -> None:
        """End a session."""
        digest = _hash(cookie)
        with self._lock:
            self._sessions = [one for one in self._sessions if one.cookie_hash != digest]
            self._save()

    def _save(self) -> None:
        plain = {"service_id": self.service_id, "sessions": [asdict(one) for one in self._sessions]}
        with contextlib.suppress(OSError):  # a full disk: sessions end with the process
            write_private(self.home / SESSIONS, json.dumps(plain))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
