"""Real receivers of notifications on loopback: an HTTP server and an SMTP server that keep what they are sent."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def http_receiver(statuses: tuple[int, ...] = ()) -> Iterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """Yields its URL, and the headers and documents that were posted. The first requests are answered with these."""
    received: list[tuple[dict[str, str], Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((dict(self.headers), body))
            self.send_response(statuses[len(received) - 1] if len(received) <= len(statuses) else 204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _serving(server):
        yield f"http://127.0.0.1:{server.server_port}/secret-path", received


@contextlib.contextmanager
def smtp_receiver() -> Iterator[tuple[int, list[str]]]:
    """Yields its port, and the messages that were sent."""
    received: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().strip():
                if line.upper() == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    received.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.wfile.write(b"221 bye\r\n" if line.upper() == b"QUIT" else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server, _serving(server):
        yield server.server_address[1], received


@contextlib.contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
