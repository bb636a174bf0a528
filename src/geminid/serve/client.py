"""How the command line talks to a service: JSON over HTTP, and one sentence for each mistake."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from geminid.fields import MAX_TEXT_LENGTH
from geminid.process.identity import is_stopped, still_runs
from geminid.serve.auth import TOKEN, challenge_of

if TYPE_CHECKING:  # imported when a request is sent: many commands send none
    import httpx

#: The file in a home folder that says how to reach its service.
SERVICE = "service.json"

#: Longest time to wait for a service to end. It ends its jobs within their grace period by itself.
LONGEST_END_S = 600.0

#: Time for an answer to any request but a question for which the client was given another time.
TIMEOUT_S = 60.0

#: Time for the next piece of a stream.
STREAM_TIMEOUT_S = 3600.0

#: Long lists may take longer: a second for this many items.
ITEMS_PER_S = 1000

#: The header that says how many items there are where only some are returned.
TOTAL = "X-Total-Count"

#: The header that says after which record of the log to ask for more.
LAST_SEQ = "X-Last-Seq"

#: Variables of the submitter's environment that a job gets unless it sets them itself.
INHERITED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG")

#: Exit codes of commands, by what went wrong.
FAILED = 1
BAD_INPUT = 2
NO_SERVICE = 3
NOT_ALLOWED = 4
NOT_FOUND = 5
OVER_BUDGET = 6
TIMED_OUT = 124

#: Exit codes by the status of a refusal; ``FAILED`` for all others.
EXIT_CODES = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 413: BAD_INPUT, 422: BAD_INPUT, 503: NO_SERVICE}


class ServiceError(Exception):
    """A request that failed: one or several sentences, and the exit code for the command.

    ``status`` is the status code of the service's answer, if there was one.
    """

    def __init__(self, code: int, *sentences: str, status: int | None = None) -> None:
        super().__init__(" ".join(sentences))
        self.code, self.sentences, self.status = code, sentences, status


class NoAnswer(ServiceError):
    """A request that was sent but not answered: it may have had an effect or not."""


def home() -> Path:
    """The folder of the service's state: ``$GEMINID_HOME``, or ``~/.geminid``."""
    return Path(os.environ.get("GEMINID_HOME") or Path.home() / ".geminid").absolute()


def submitters_environment() -> str:
    """What a job gets of this process's environment, as JSON."""
    return json.dumps({name: os.environ[name] for name in INHERITED if name in os.environ}, ensure_ascii=False)


class Client:
    """One service, with one user's token.

    A GET request fails after ``timeout_s``, and what it asks the service to wait; all others after ``TIMEOUT_S``.
    """

    def __init__(self, url: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url, self._token, self._timeout_s = url, token, timeout_s

    @classmethod
    def here(cls, folder: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> Client:
        """The service of ``$GEMINID_HOME`` (or the one at ``$GEMINID_URL``), with ``$GEMINID_TOKEN`` or its token file.

        With a folder, the service of that folder and its own token, whatever the environment says.

        The token is sent to no other process: the one that wrote ``service.json`` must still be running, or, where only
        an address is known, the server must prove that it knows the token.

        Raises:
            ServiceError: there is no service, or its process is stopped.
        """
        given, token = (os.environ.get(name) if folder is None else None for name in ("GEMINID_URL", "GEMINID_TOKEN"))
        folder = folder or home()
        if given is not None and not given.startswith(("http://", "https://")):
            raise ServiceError(
                BAD_INPUT, f"GEMINID_URL is {given!r}, but must be an address such as http://127.0.0.1:8000"
            )
        url = _url_of(folder) if given is None else given
        if token is None:
            try:
                token = (folder / TOKEN).read_text(encoding="utf-8").strip()
            except OSError as problem:
                sentence = f"the token in {folder / TOKEN} cannot be read ({problem.strerror}); set GEMINID_TOKEN"
                raise ServiceError(NOT_ALLOWED, sentence) from None
        if not (token.isascii() and token.isprintable()):
            sentence = "GEMINID_TOKEN has characters that no token has, such as a line break"
            raise ServiceError(BAD_INPUT, f"{sentence}: it must be what `geminid token` printed, and nothing else")
        client = cls(url, token, timeout_s)
        if given is not None:
            client.verify()
        return client

    def verify(self) -> None:
        """Have the server prove that it knows this client's token, before the token is sent.

        Raises:
            ServiceError: it does not.
        """
        fingerprint, challenge, proof = challenge_of(self._token)
        anonymous = Client(self.url, "", self._timeout_s)
        answer = anonymous.get("proof", of=fingerprint, challenge=challenge)
        if not isinstance(answer, dict) or not hmac.compare_digest(str(answer.get("proof")), proof):
            raise ServiceError(NOT_ALLOWED, f"the server at {self.url} does not know your token, which was not sent")

    def get(self, path: str, **query: object) -> Any:
        """Read something."""
        return self._send("GET", path, query)[0]

    def get_counted(self, path: str, *, count: str = TOTAL, **query: object) -> tuple[Any, int]:
        """Read some of many items: those, and the number in the header ``count``; without it, how many these are."""
        items, headers = self._send("GET", path, query)
        return items, int(headers.get(count, len(items)))

    def post(self, path: str, body: object = None, *, headers: Mapping[str, str] | None = None, **query: object) -> Any:
        """Have something done."""
        return self._send("POST", path, query, body, headers)[0]

    def patch(self, path: str, body: object) -> Any:
        """Change something."""
        return self._send("PATCH", path, {}, body)[0]

    def put(self, path: str, **query: object) -> Any:
        """Set something."""
        return self._send("PUT", path, query)[0]

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """Read something piece by piece, as it arrives."""
        with self._open("GET", path, query, timeout_s=STREAM_TIMEOUT_S) as response:
            yield from response.iter_raw()

    def frames(self, path: str, **query: object) -> Iterator[tuple[str, int, bytes]]:
        """Read logs as they grow, in whole pieces: the log's name, where the piece ends in it, and its bytes."""
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

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Mapping[str, str]]:
        """The answer to a request, with its headers."""
        timeout_s = self._timeout_for(query) if method == "GET" else TIMEOUT_S
        with self._open(method, path, query, body, headers, timeout_s=timeout_s) as response:
            return json.loads(response.read() or b"null"), response.headers

    def _timeout_for(self, query: Mapping[str, object]) -> float:
        """How long an answer may take: longer if the request asks for many items, or asks the service to wait."""
        wait_s, limit = (query.get(name) for name in ("wait_s", "limit"))
        more_s = wait_s if isinstance(wait_s, float) else 0.0
        return self._timeout_s + more_s + (limit / ITEMS_PER_S if isinstance(limit, int) else 0.0)

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> Iterator[httpx.Response]:
        """Send a request; its response, to be read. Whatever fails until it has been read is a ``ServiceError``."""
        import httpx

        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        url = f"{self.url}/api/v1/{quote(path, safe='/%')}" + (f"?{urlencode(given)}" if given else "")
        content = None if body is None else json.dumps(body).encode()
        if content is not None and len(content) > MAX_TEXT_LENGTH:
            sentence = f"a request has at most {MAX_TEXT_LENGTH:,} bytes, and this one {len(content):,}"
            raise ServiceError(BAD_INPUT, sentence)
        own = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        own |= {"Content-Type": "application/json"} if content is not None else {}
        try:
            # Without proxies: the service is on this machine. Certificates are read only where they are needed.
            with (
                httpx.Client(trust_env=False, timeout=timeout_s, verify=url.startswith("https:")) as client,
                client.stream(method, url, content=content, headers={**own, **(headers or {})}) as response,
            ):
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield response
        except httpx.TimeoutException:
            sentence = f"the service at {self.url} did not answer within {timeout_s:.0f} s"
            raise NoAnswer(NO_SERVICE, f"{sentence}: it hangs, or its machine is too busy") from None
        except (httpx.TransportError, httpx.InvalidURL, OSError, json.JSONDecodeError) as problem:
            raise self._broken(problem) from None

    def _broken(self, problem: Exception) -> ServiceError:
        """The error of a connection that cannot be made, or that broke."""
        cause: BaseException | None = problem
        while cause is not None and not isinstance(cause, ConnectionRefusedError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return NoAnswer(NO_SERVICE, f"the connection to the service at {self.url} broke: {problem}")
        if self.url == os.environ.get("GEMINID_URL"):
            return ServiceError(NO_SERVICE, f"no service answers at {self.url}")
        return no_service(home())


def address(*parts: str) -> str:
    """The path of something, from names that may have been typed.

    Raises:
        ServiceError: one of them cannot be a name.
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part:
            raise ServiceError(BAD_INPUT, f"{part[:100]!r} is not a name: names are not empty and have no slash")
    return "/".join(quote(part, safe="") for part in parts)


def no_service(folder: Path) -> ServiceError:
    """The error that there is no service on a folder."""
    return ServiceError(NO_SERVICE, f"no service is running on {folder}; start one with `geminid up --detach`")


def _url_of(folder: Path) -> str:
    """Where the service of a folder listens, if the process that wrote that runs and is not stopped."""
    try:
        place = json.loads((folder / SERVICE).read_text(encoding="utf-8"))
        url, service = str(place["url"]), {name: int(place[name]) for name in ("pid", "started_at")}
    except (OSError, ValueError, KeyError, TypeError):
        raise no_service(folder) from None
    if not still_runs(service):  # it was killed: another program may listen at its port by now
        raise no_service(folder)
    if is_stopped(pid := service["pid"]):
        sentence = f"the service on {folder} (process {pid}) is stopped and cannot answer"
        raise ServiceError(NO_SERVICE, f"{sentence}; `kill -CONT {pid}` lets it continue")
    return url


def _refusal(response: httpx.Response) -> ServiceError:
    """Why the service does not meet a request."""
    try:
        document = json.loads(response.content)
        sentences = document.get("errors") or [entry["msg"] for entry in document["detail"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        sentences = [f"the service answered {response.status_code}: {response.reason_phrase}"]
    code = EXIT_CODES.get(response.status_code, FAILED)
    return ServiceError(code, *map(str, sentences), status=response.status_code)
