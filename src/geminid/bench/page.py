"""How fast the web page is, in a real browser, and what watching costs the service.

A service is started with a queue of jobs that wait. Times count from the beginning of a navigation and are medians of
several; the browser's cache is empty each time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from geminid.bench.service_starts import queue_writer
from geminid.dashboard.pages import load_files
from geminid.job import JobSpec
from geminid.serve.auth import TOKEN
from geminid.serve.client import Client
from geminid.serve.server import Options
from geminid.testing.browser import NO_CHROMIUM, chromium_program
from geminid.testing.service import temporary_service

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from playwright.sync_api import Browser, BrowserContext, Page

#: Time that a page may take to show its rows, in milliseconds.
PATIENCE_MS = 60_000

#: Frames while a table is scrolled.
FRAMES = 120

#: Time for which the stream is read.
STREAM_S = 8.0

#: Viewers that watch at the same time.
VIEWERS = 50

#: What an open page reads again and again beside the stream.
READ_AGAIN = ("nodes", "lanes")

#: Time between two such readings of a page: as often as if a job was resized every ten seconds.
READ_AGAIN_S = 10.0

#: Requests of one round whose times are compared, with and without viewers.
REQUESTS = 100

#: What the page is measured against.
TARGETS = {
    "script_gzip_kb": 60.0,
    "first_paint_ms": 300.0,
    "jobs_1000_ms": 500.0,
    "jobs_10000_ms": 1000.0,
    "frame_p95_ms": 17.0,
    "stream_kb_per_s": 20.0,
    "slowdown_50_viewers": 0.2,
}

SCROLL = """frames => new Promise(done => {
  const box = document.querySelector(".windowed");
  const times = [];
  let last = performance.now();
  const step = now => {
    times.push(now - last);
    last = now;
    box.scrollTop += 90;
    if (times.length < frames) requestAnimationFrame(step);
    else done(times.slice(1));
  };
  requestAnimationFrame(step);
})"""


class NoBrowser(Exception):
    """Nothing to measure with; a sentence says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigures:
    """What was measured; None where it was left out."""

    script_gzip_kb: float
    first_paint_ms: float
    jobs_1000_ms: float
    jobs_10000_ms: float | None
    frame_p95_ms: float
    stream_kb_per_s: float
    slowdown_50_viewers: float

    def missed(self) -> list[str]:
        """The targets that were missed."""
        return [name for name, most in TARGETS.items() if (value := asdict(self)[name]) is not None and value > most]


def measure(*, repeats: int = 5, jobs: int = 1000, many_jobs: int | None = 10_000) -> PageFigures:
    """Measure everything; ``many_jobs`` None leaves the largest queue out.

    Raises:
        NoBrowser: there is no Chromium, or no Playwright to drive it.
    """
    with _browser() as browser:
        with _service(jobs) as (client, home), _logged_in(browser, client) as context:
            first_paint_ms, rows_ms = _loading(context, client.url, repeats)
            frame_ms = _scrolling(context, client.url)
            token = (home / TOKEN).read_text(encoding="utf-8").strip()
            stream_kb = _stream_kb_per_s(client.url, token)
            slowdown = _slowdown(client, token, rounds=3 if repeats > 1 else 1)
        many_ms = None
        if many_jobs is not None:
            with _service(many_jobs) as (client, _), _logged_in(browser, client) as context:
                many_ms = _loading(context, client.url, max(repeats // 2, 1))[1]
    scripts = [file for name, file in load_files().items() if name.endswith(".js")]
    return PageFigures(
        script_gzip_kb=sum(len(file.compressed) for file in scripts) / 1000.0,
        first_paint_ms=first_paint_ms,
        jobs_1000_ms=rows_ms,
        jobs_10000_ms=many_ms,
        frame_p95_ms=frame_ms,
        stream_kb_per_s=stream_kb,
        slowdown_50_viewers=slowdown,
    )


@contextlib.contextmanager
def _browser() -> Iterator[Browser]:
    program = chromium_program()
    if program is None:
        raise NoBrowser(NO_CHROMIUM)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("Playwright is not installed: pip install 'geminid[dev]'") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def _service(jobs: int) -> Iterator[tuple[Client, Path]]:
    """A service with jobs that wait behind two that take long."""
    sleep = shutil.which("sleep") or "/bin/sleep"
    spec = JobSpec(name="job", command=(sleep, "3600"), owner="bench", max_slots=1, working_dir="/", max_retries=0)
    specs = [replace(spec, name=f"job{i}", owner=f"user{i % 20}", priority=-(i % 5)) for i in range(jobs)]
    with temporary_service(Options(home=Path(), slots=2, grace_s=1.0), prepare=queue_writer(specs)) as found:
        yield found


@contextlib.contextmanager
def _logged_in(browser: Browser, client: Client) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(client.post("login-links")["url"])
    page.wait_for_selector(".windowed tbody tr", timeout=PATIENCE_MS)
    page.close()
    yield context
    context.close()


def _loading(context: BrowserContext, url: str, repeats: int) -> tuple[float, float]:
    """Medians of the first paint, and of the moment when all rows were shown, in milliseconds."""
    paints, shown = [], []
    for _ in range(repeats):
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})
        page.goto(url)
        page.wait_for_selector(".windowed tbody tr", timeout=PATIENCE_MS)
        shown.append(_mark(page, "mark", "geminid-rows"))
        paints.append(_mark(page, "paint", "first-contentful-paint"))
        page.close()
    return statistics.median(paints), statistics.median(shown)


def _mark(page: Page, kind: str, name: str) -> float:
    """When something happened, in milliseconds since the navigation began."""
    find = "([kind, name]) => performance.getEntriesByType(kind).find(one => one.name === name)?.startTime ?? null"
    for _ in range(200):
        found: Any = page.evaluate(find, [kind, name])
        if found is not None:
            return float(found)
        page.wait_for_timeout(20)
    raise TimeoutError(f"the page never noted {name}")


def _scrolling(context: BrowserContext, url: str) -> float:
    """The 95th percentile of the time between two frames while the table of jobs is scrolled, in milliseconds."""
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".windowed tbody tr", timeout=PATIENCE_MS)
    times: list[float] = page.evaluate(SCROLL, FRAMES)
    page.close()
    return statistics.quantiles(times, n=20)[-1]


def _stream_kb_per_s(url: str, token: str) -> float:
    """What a viewer is sent while nothing but time and forecasts change, in kB per second."""
    with _open_stream(url, token) as stream:
        received, began_s = 0, time.monotonic()
        while time.monotonic() < began_s + STREAM_S:
            with contextlib.suppress(TimeoutError):
                received += len(stream.recv(1 << 16))
        return received / 1000.0 / (time.monotonic() - began_s)


def _slowdown(client: Client, token: str, rounds: int) -> float:
    """By which share the median answer is slower while many watch: alone and watched take turns."""
    alone: list[float] = []
    watched: list[float] = []
    _answer_times(client)  # the first ones find nothing prepared
    for _ in range(rounds):
        alone += _answer_times(client)
        with _viewers(client.url, token):
            watched += _answer_times(client)
    return statistics.median(watched) / statistics.median(alone) - 1.0


def _answer_times(client: Client) -> list[float]:
    times = []
    for _ in range(REQUESTS):
        began_s = time.perf_counter()
        client.get("jobs/j1")
        times.append(time.perf_counter() - began_s)
    return times


@contextlib.contextmanager
def _viewers(url: str, token: str) -> Iterator[None]:
    """Many open pages, in another process: this one only measures."""
    spawning = multiprocessing.get_context("spawn")
    ready, over = spawning.Event(), spawning.Event()
    viewers = spawning.Process(target=watch_as_many, args=(url, token, ready, over), daemon=True)
    viewers.start()
    try:
        if not ready.wait(PATIENCE_MS / 1000.0):
            raise TimeoutError(f"{VIEWERS} viewers could not connect")
        yield
    finally:
        over.set()
        viewers.join(10.0)
        viewers.kill()


def _open_stream(url: str, token: str) -> socket.socket:
    """A viewer's connection to the stream, by itself: what arrives on it is not interpreted."""
    place = urlsplit(url)
    opened = socket.create_connection((place.hostname or "", place.port or 80), timeout=60.0)
    head = f"GET /api/v1/stream HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    opened.sendall(head.encode())
    opened.recv(1 << 16)
    opened.settimeout(0.2)
    return opened


def watch_as_many(url: str, token: str, ready: Event, over: Event) -> None:
    """Do what ``VIEWERS`` open pages do: each reads the stream, and what the page asks for again and again."""
    import httpx

    headers, turn = {"Authorization": f"Bearer {token}"}, 0
    with contextlib.ExitStack() as closing:
        streams = [closing.enter_context(_open_stream(url, token)) for _ in range(VIEWERS)]
        client = closing.enter_context(httpx.Client(base_url=f"{url}/api/v1/", headers=headers, trust_env=False))
        for stream in streams:
            stream.setblocking(False)
        ready.set()
        began_s = time.monotonic()
        while not over.wait(0.02):
            for stream in streams:
                with contextlib.suppress(BlockingIOError):
                    stream.recv(1 << 16)
            due = int((time.monotonic() - began_s) * VIEWERS / READ_AGAIN_S)
            if turn < due:
                turn += 1
                for path in READ_AGAIN:
                    client.get(path)
