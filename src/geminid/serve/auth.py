"""Who may ask the service for what: bearer tokens, of which only hashes are kept.

The first start makes a token for the operator and writes it to a file of mode 0600 beside the store, where the command
line finds it. Further tokens are made for single users, who may submit jobs and change their own.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

TOKEN, TOKENS = "token", "tokens.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a token stands for. ``role`` is ``admin`` or ``user``."""

    user: str
    role: str
    hash: str
    expires_at_s: float | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return self.role == "admin"


class Tokens:
    """The tokens of a service, read again when their file has changed."""

    def __init__(self, home: Path) -> None:
        self._path = home / TOKENS
        self._read_at: int | None = None
        self._known: list[Identity] = []

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; None if it is nobody's, or has expired."""
        self._refresh()
        digest = _hash(token)
        found = None
        for known in self._known:  # all of them, so that the time it takes tells nothing
            if hmac.compare_digest(known.hash, digest):
                found = known
        if found is not None and found.expires_at_s is not None and found.expires_at_s < time.time():
            return None
        return found

    def add(self, user: str, role: str, lasts_s: float | None = None) -> str:
        """Make a token; it is told this once and never again."""
        self._refresh()
        token = "gmd_" + secrets.token_urlsafe(32)
        expires = None if lasts_s is None else time.time() + lasts_s
        self._write([*self._known, Identity(user=user, role=role, hash=_hash(token), expires_at_s=expires)])
        return token

    def revoke(self, user: str) -> int:
        """Take all tokens of a user back; how many there were."""
        self._refresh()
        kept = [known for known in self._known if known.user != user]
        gone = len(self._known) - len(kept)
        self._write(kept)
        return gone

    def all(self) -> list[Identity]:
        """All that there are."""
        self._refresh()
        return list(self._known)

    def _refresh(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._read_at:
                self._known = [Identity(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
                self._read_at = changed
        except FileNotFoundError:
            self._known = []

    def _write(self, known: list[Identity]) -> None:
        write_private(self._path, json.dumps([asdict(one) for one in known], indent=1))
        self._known, self._read_at = known, self._path.stat().st_mtime_ns


def first_token(home: Path) -> None:
    """Make the operator's token, if there is none yet."""
    if not (home / TOKEN).exists():
        write_private(home / TOKEN, Tokens(home).add(operator(), "admin") + "\n")


def operator() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    made = path.with_name(path.name + ".new")
    made.unlink(missing_ok=True)
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    made.replace(path)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
