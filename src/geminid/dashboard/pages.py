"""Serves the page's files around the HTTP interface: from memory, compressed once, under a strict security policy.

The page is one document for all of its addresses; what it shows, it asks the interface for. It holds no data, so it
needs no log-in itself.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from geminid.serve.server import App

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Where the page's files are served.
STATIC = "/static/"

#: Addresses of the page; those of the interface begin with /api, and Prometheus reads /metrics.
PAGES = ("/", "/login", "/jobs", "/nodes", "/users", "/history", "/what-if")

#: Pages with something behind their address, such as /jobs/j7.
PAGES_WITH_NAMES = ("/jobs/", "/nodes/", "/users/")

#: What the page may load and run: its own files. Scripts cannot turn text into code or markup; ``geminid`` is the one
#: policy by which it may name a script, its own worker.
SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types geminid",
    )
)

#: The one document.
DOCUMENT = f"{STATIC}index.html"

#: Where it names its modules, so that the browser asks for all of them at once.
MODULES = b"<!-- modules -->"

#: The script that runs beside the page.
WORKER = f"{STATIC}stream-worker.js"

#: Scripts that the simulation report uses as well.
SHARED_WITH_REPORT = ("lanes.js",)

HEADERS = {
    "content-security-policy": SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is served."""

    content_type: str
    plain: bytes
    compressed: bytes
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> File:
        """A file with this name and content."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        return cls(TYPES[name.rpartition(".")[2]], content, gzip.compress(content, 9, mtime=0), tag)


def load_files() -> dict[str, File]:
    """The page's files, by the address that each is served at."""
    found: dict[str, File] = {}

    def collect(folder: Traversable, prefix: str) -> None:
        for one in folder.iterdir():
            if one.is_dir():
                collect(one, f"{prefix}{one.name}/")
            elif one.name.rpartition(".")[2] in TYPES:
                is_own = one.name.endswith(".js") and not prefix.endswith("/vendor/")
                content = without_comments(one.read_bytes()) if is_own else one.read_bytes()
                found[prefix + one.name] = File.of(one.name, content)

    collect(files("geminid.dashboard").joinpath("static"), STATIC)
    for name in SHARED_WITH_REPORT:
        content = files("geminid.sim").joinpath("report_assets", name).read_bytes()
        found[STATIC + name] = File.of(name, without_comments(content))
    page = found[DOCUMENT]
    modules = sorted(name for name in found if name.endswith(".js") and name != WORKER)
    links = "\n".join(f'<link rel="modulepreload" href="{name}">' for name in modules)
    found[DOCUMENT] = File.of(DOCUMENT, page.plain.replace(MODULES, links.encode()))
    return found


def without_comments(script: bytes) -> bytes:
    """A script without comments that end a line, empty lines and indentation: a fifth less to send."""
    code = re.sub(rb"(?:^[ \t]*|(?<=[;{,]) )//[^\n]*$", b"", script, flags=re.MULTILINE)
    return re.sub(rb"^\s+", b"", code, flags=re.MULTILINE)


def is_page(path: str) -> bool:
    """Whether an address is one of the page's."""
    return path in PAGES or path.startswith(PAGES_WITH_NAMES)


def with_dashboard(app: App) -> App:
    """The interface with the page around it."""
    known = load_files()
    document = known[DOCUMENT]

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        file = known.get(path) or (document if is_page(path) else None)
        if scope["type"] != "http" or file is None or scope["method"] not in ("GET", "HEAD"):
            await app(scope, receive, send)
            return
        given = {name.lower(): value for name, value in scope["headers"]}
        unchanged = given.get(b"if-none-match", b"").decode("latin-1") == file.tag
        zipped = b"gzip" in given.get(b"accept-encoding", b"")
        body = b"" if unchanged else file.compressed if zipped else file.plain
        headers = {**HEADERS, "content-type": file.content_type, "etag": file.tag, "vary": "accept-encoding"}
        if zipped and not unchanged:
            headers["content-encoding"] = "gzip"
        if not unchanged:
            headers["content-length"] = str(len(body))
        await send(
            {
                "type": "http.response.start",
                "status": 304 if unchanged else 200,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return wrapped
