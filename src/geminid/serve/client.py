"""How the command line talks to a service: plain HTTP with the standard library, and one sentence for each mistake."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geminid.fields import MAX_TEXT_LENGTH
from geminid.serve.auth import TOKEN, challenge_of
from geminid.train.launcher import started_at

#: Where a service says how to reach it.
SERVICE = "service.json"

#: Jobs end within their grace period, which the service sees to; whoever has not after so long is given up on.
LONGEST_END_S = 600.0

#: What is asked for is answered within so long, and what is to be done as well, unless whoever asks says otherwise.
PATIENCE_S = 60.0

#: Long lists may take longer: a second for every so many things.
THINGS_A_SECOND = 1000

#: The header that says how many things there are where not all are told.
TOTAL = "X-Total-Count"

#: Exit codes, by what went wrong.
FAILED, BAD_INPUT, NO_SERVICE, NOT_ALLOWED, NOT_FOUND, OVER_BUDGET, TIMED_OUT = 1, 2, 3, 4, 5, 6, 124


class Trouble(Exception):
    """A request that did not work: one or several sentences, and the exit code to end with."""

    def __init__(self, code: int, *sentences: str) -> None:
        super().__init__(" ".join(sentences))
        self.code, self.sentences = code, sentences


def home() -> Path:
    """Where state lives: ``$GEMINID_HOME``, or ``~/.geminid``."""
    return Path(os.environ.get("GEMINID_HOME") or Path.home() / ".geminid").absolute()


class Client:
    """One service, as a user of it.

    A question that is not answered within ``patience_s`` (and what it asks to wait for) is given up; what is to be done
    always has its time.
    """

    def __init__(self, url: str, token: str, patience_s: float = PATIENCE_S) -> None:
        self.url, self._token, self._patience_s = url, token, patience_s

    @classmethod
    def here(cls, folder: Path | None = None, *, patience_s: float = PATIENCE_S) -> Client:
        """The service of ``$GEMINID_HOME`` (or the one at ``$GEMINID_URL``), with ``$GEMINID_TOKEN`` or its token file.

        With a folder, the service of that folder and its own token, whatever the environment says.

        The token is shown to nobody else: the process that said to listen there must still be the same one, or, where
        only an address is known, whoever answers must prove to know the token.

        Raises:
            Trouble: there is none, or it has been stopped.
        """
        given, token = (os.environ.get(name) if folder is None else None for name in ("GEMINID_URL", "GEMINID_TOKEN"))
        url, folder = given, folder or home()
        if url is not None and not url.startswith(("http://", "https://")):
            raise Trouble(BAD_INPUT, f"GEMINID_URL is {url!r}, but must be an address such as http://127.0.0.1:8000")
        if url is None:
            try:
                place = json.loads((folder / SERVICE).read_text(encoding="utf-8"))
                url, pid, since = str(place["url"]), int(place["pid"]), int(place["started_at"])
            except (OSError, ValueError, KeyError, TypeError):
                raise no_service(folder) from None
            if started_at(pid) != since:  # it was killed: somebody else may listen at its port by now
                raise no_service(folder)
            if _is_stopped(pid):
                told = f"the service on {folder} (process {pid}) has been stopped, and answers nobody"
                raise Trouble(NO_SERVICE, f"{told}; `kill -CONT {pid}` lets it go on")
        if token is None:
            try:
                token = (folder / TOKEN).read_text(encoding="utf-8").strip()
            except OSError as problem:
                told = f"the token in {folder / TOKEN} cannot be read ({problem.strerror}); set GEMINID_TOKEN"
                raise Trouble(NOT_ALLOWED, told) from None
        if not (token.isascii() and token.isprintable()):
            told = "GEMINID_TOKEN has characters that no token has, such as a line break"
            raise Trouble(BAD_INPUT, f"{told}: it must be what `geminid token` printed, and nothing else")
        client = cls(url, token, patience_s)
        if given is not None:
            client.verify()
        return client

    def verify(self) -> None:
        """Have whoever listens there prove to know this client's token.

        Raises:
            Trouble: it does not.
        """
        fingerprint, challenge, proof = challenge_of(self._token)
        stranger = Client(self.url, "", self._patience_s)
        told = stranger.get("proof", of=fingerprint, challenge=challenge)
        if not isinstance(told, dict) or not hmac.compare_digest(str(told.get("proof")), proof):
            raise Trouble(NOT_ALLOWED, f"whoever answers at {self.url} does not know your token, which was not shown")

    def get(self, path: str, **query: object) -> Any:
        """Ask for something."""
        return self._ask("GET", path, query)

    def some(self, path: str, **query: object) -> tuple[list[Any], int]:
        """Ask for a list of which not all may be told: what is, and how many there are."""
        patience_s = self._patience_for(query)
        with self._broken(patience_s), self._open("GET", path, query, None, None, timeout_s=patience_s) as answer:
            told = json.loads(answer.read())
            return told, int(answer.headers.get(TOTAL, len(told)))

    def post(self, path: str, body: object = None, *, headers: Mapping[str, str] | None = None, **query: object) -> Any:
        """Ask for something to be done."""
        return self._ask("POST", path, query, body, headers)

    def patch(self, path: str, body: object) -> Any:
        """Change something."""
        return self._ask("PATCH", path, {}, body)

    def put(self, path: str, **query: object) -> Any:
        """Set something."""
        return self._ask("PUT", path, query)

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """Read something as it comes."""
        with self._broken(3600.0), self._open("GET", path, query, None, None, timeout_s=3600.0) as answer:
            while piece := answer.read1(1 << 16):
                yield piece

    def frames(self, path: str, **query: object) -> Iterator[tuple[str, int, bytes]]:
        """Read logs as they come, whole pieces only: whose each is, where it ends in that log, and what it says."""
        read = b""
        for more in self.stream(path, frames=True, **query):
            read += more
            while b"\n" in read:
                line, _, rest = read.partition(b"\n")
                head = json.loads(line)
                if len(rest) < head["bytes"]:
                    break
                yield str(head["log"]), int(head["end"]), rest[: head["bytes"]]
                read = rest[head["bytes"] :]

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        patience_s = self._patience_for(query) if method == "GET" else PATIENCE_S
        with self._broken(patience_s), self._open(method, path, query, body, headers, timeout_s=patience_s) as answer:
            return json.loads(answer.read() or b"null")

    def _patience_for(self, query: Mapping[str, object]) -> float:
        """How long an answer may take: the longer, the more is asked for, or the longer it is to wait."""
        wait_s, limit = (query.get(name) for name in ("wait_s", "limit"))
        more_s = wait_s if isinstance(wait_s, float) else 0.0
        return self._patience_s + more_s + (limit / THINGS_A_SECOND if isinstance(limit, int) else 0.0)

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object,
        headers: Mapping[str, str] | None,
        *,
        timeout_s: float,
    ) -> Any:
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        url = f"{self.url}/api/v1/{urllib.parse.quote(path, safe='/%')}" + (
            f"?{urllib.parse.urlencode(given)}" if given else ""
        )
        data = None if body is None else json.dumps(body).encode()
        if data is not None and len(data) > MAX_TEXT_LENGTH:
            raise Trouble(BAD_INPUT, f"a request has at most {MAX_TEXT_LENGTH:,} bytes, and this one {len(data):,}")
        shown = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(url, data, shown, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            return _opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as problem:
            raise _told(problem) from None

    @contextlib.contextmanager
    def _broken(self, timeout_s: float) -> Iterator[None]:
        """A connection that cannot be made within, or breaks at any time, means that there is no service."""
        try:
            yield
        except (urllib.error.URLError, OSError, http.client.HTTPException, json.JSONDecodeError) as problem:
            reason = getattr(problem, "reason", problem)
            if isinstance(reason, TimeoutError):
                told = f"the service at {self.url} did not answer within {timeout_s:.0f} s"
                raise Trouble(NO_SERVICE, f"{told}: it hangs, or its machine is too busy") from None
            if isinstance(reason, ConnectionRefusedError):
                if self.url == os.environ.get("GEMINID_URL"):
                    raise Trouble(NO_SERVICE, f"no service answers at {self.url}") from None
                raise no_service(home()) from None
            told = f"the connection to the service at {self.url} broke: {reason}"
            raise Trouble(NO_SERVICE, told) from None


#: Without proxies: the service is on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def address(*parts: str) -> str:
    """The path of something, from names that may have been typed.

    Raises:
        Trouble: a name can be none.
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part:
            raise Trouble(BAD_INPUT, f"{part[:100]!r} is no name: one is not empty and has no slash")
    return "/".join(urllib.parse.quote(part, safe="") for part in parts)


def _is_stopped(pid: int) -> bool:
    """Whether a process has been stopped (SIGSTOP, or Ctrl-Z in its terminal)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except (OSError, IndexError):
        return False


def no_service(folder: Path) -> Trouble:
    """There is nobody to ask."""
    return Trouble(NO_SERVICE, f"no service is running on {folder}; start one with `geminid up --detach`")


def _told(problem: urllib.error.HTTPError) -> Trouble:
    codes = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 413: BAD_INPUT, 422: BAD_INPUT, 503: NO_SERVICE}
    try:
        with problem:
            document = json.loads(problem.read())
        sentences = document.get("errors") or [entry["msg"] for entry in document["detail"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        sentences = [f"the service answered {problem.code}: {problem.reason}"]
    return Trouble(codes.get(problem.code, FAILED), *map(str, sentences))
