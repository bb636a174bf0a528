"""Who may ask the service for what: bearer tokens, of which only hashes are kept.

The first start makes a token for the operator and writes it to a file of mode 0600 beside the store, where the command
line finds it. Further tokens are made for single users, who may submit jobs and change their own. The file of hashes
also says who made a token when, and when it was revoked: nothing is deleted from it.

A client can have a service prove that it knows the client's token before the token is sent: the client sends a
challenge and the token's *fingerprint*, from which the token cannot be found, and only a service with the token's hash
can compute the answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

#: The file with the operator's token, in the home folder.
TOKEN = "token"

#: The file with the hashes of all tokens.
TOKENS = "tokens.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user that a token stands for; ``made_by`` is the account that made it.

    ``role`` is ``admin``, who may do everything, ``user``, who may change their own jobs, or ``viewer``, who may change
    nothing.
    """

    user: str
    role: str
    hash: str
    expires_at_s: float | None = None
    made_at_s: float | None = None
    made_by: str = ""
    revoked_at_s: float | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return self.role == "admin"

    @property
    def is_viewer(self) -> bool:
        """Whether it may change nothing."""
        return self.role == "viewer"


class DamagedTokens(Exception):
    """The file of the tokens cannot be used; one sentence says which it is."""


class Tokens:
    """The tokens of a service, read again when their file has changed. Any process may change them, one at a time."""

    def __init__(self, home: Path) -> None:
        self._path = home / TOKENS
        self._read: tuple[int, ...] | None = None
        self._known: list[Identity] = []

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; None if it is not known, has expired or was revoked."""
        return self.by_hash(_hash(token))

    def by_hash(self, digest: str) -> Identity | None:
        """The same for the hash of a token."""
        self._refresh()
        found = None
        for known in self._known:  # all of them, so that the duration reveals nothing
            if hmac.compare_digest(known.hash, digest):
                found = known
        if found is None or found.revoked_at_s is not None:
            return None
        expired = found.expires_at_s is not None and found.expires_at_s < time.time()
        return None if expired else found

    def prove(self, fingerprint: str, challenge: str) -> str | None:
        """That the token of a fingerprint is known; None if it is not."""
        self._refresh()
        given = fingerprint.encode("utf-8", "replace")  # text that is not ASCII cannot be compared so
        found = [one for one in self._known if hmac.compare_digest(_fingerprint(one.hash).encode(), given)]
        return _proof(found[0].hash, challenge) if found else None

    def add(self, user: str, role: str, lasts_s: float | None = None) -> str:
        """Make a token. It is returned here only: the file has its hash."""
        token, now_s = "gmd_" + secrets.token_urlsafe(32), time.time()
        expires = None if lasts_s is None else now_s + lasts_s
        made = Identity(
            user=user, role=role, hash=_hash(token), expires_at_s=expires, made_at_s=now_s, made_by=operator()
        )
        with self._changing() as known:
            known.append(made)
        return token

    def revoke(self, user: str) -> int:
        """Take all tokens of a user back; how many there were."""
        gone = 0
        with self._changing() as known:
            for i, one in enumerate(known):
                if one.user == user and one.revoked_at_s is None:
                    known[i], gone = replace(one, revoked_at_s=time.time()), gone + 1
        return gone

    @property
    def exist(self) -> bool:
        """Whether there is a file of tokens."""
        return self._path.exists()

    def all(self) -> list[Identity]:
        """All that there are and were, oldest first."""
        self._refresh()
        return list(self._known)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Identity]]:
        """All tokens, to be changed; a lock keeps other processes from changing them at the same time."""
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.all()
            yield known
            write_private(self._path, json.dumps([asdict(one) for one in known], indent=1))
        finally:
            os.close(lock)

    def _refresh(self) -> None:
        try:
            now = self._path.stat()
            changed = (now.st_mtime_ns, now.st_ino, now.st_size)
            if changed != self._read:
                self._known = [Identity(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
                self._read = changed
        except FileNotFoundError:
            self._known = []
        except (ValueError, TypeError) as problem:
            sentence = f"{self._path} is damaged ({type(problem).__name__}), so no token can be checked"
            new = f"remove it and {self._path.with_name(TOKEN)} for new tokens"
            raise DamagedTokens(f"{sentence}: restore a copy of it, or {new}") from None


def changes(before: list[Identity], after: list[Identity]) -> list[str]:
    """What was done to tokens, in words."""
    were = {one.hash: one for one in before}
    sentences = []
    for one in after:
        was = were.get(one.hash)
        if was is None:
            sentences.append(f"{one.made_by or 'an unknown user'} made a token for {one.user} with role {one.role}")
        elif one.revoked_at_s is not None and was.revoked_at_s is None:
            sentences.append(f"a token of {one.user} was revoked")
    gone = set(were) - {one.hash for one in after}
    return sentences + [f"a token of {were[digest].user} was deleted" for digest in gone]


def first_token(home: Path) -> None:
    """Make the operator's token, if there is none yet.

    Raises:
        DamagedTokens: there is one, but what the service knows of it is gone.
    """
    tokens = Tokens(home)
    if not (home / TOKEN).exists():
        write_private(home / TOKEN, tokens.add(operator(), "admin") + "\n")
    elif not tokens.exist:
        missing = f"{home / TOKENS} is missing, so that no token is valid"
        raise DamagedTokens(f"{missing}: put a copy of it back, or remove {home / TOKEN} for a new token")


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
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


def challenge_of(token: str) -> tuple[str, str, str]:
    """A new challenge for a service: the token's fingerprint, the challenge, and the right answer."""
    challenge, digest = secrets.token_hex(16), _hash(token)
    return _fingerprint(digest), challenge, _proof(digest, challenge)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _fingerprint(digest: str) -> str:
    return hashlib.sha256(f"geminid fingerprint {digest}".encode()).hexdigest()[:32]


def _proof(digest: str, challenge: str) -> str:
    return hmac.new(digest.encode(), f"geminid proof {challenge}".encode("utf-8", "replace"), "sha256").hexdigest()
