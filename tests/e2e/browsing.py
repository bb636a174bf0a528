"""A real browser: the system's Chromium, driven by Playwright. Whatever the page complains about fails the test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from requirements import CHROMIUM

#: How long an element may take to appear, in milliseconds: the machine may be busy.
PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)

#: What the browser itself says when the service is away for a moment, as some tests want it to be.
EXPECTED_WHILE_AWAY = (
    "net::ERR_CONNECTION_",  # REFUSED, RESET, CLOSED, ABORTED
    "net::ERR_SOCKET_NOT_CONNECTED",
    "net::ERR_EMPTY_RESPONSE",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. No security feature of it is turned off for pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page, and what it complained about: errors, uncaught exceptions and violations of its security policy."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "favicon" not in message.text:
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def check(self, *allowed: str) -> None:
        """Fail if the page has complained, but for what contains one of ``allowed``."""
        left = [one for one in self.complaints if not any(part in one for part in allowed)]
        assert not left, "\n".join(left)

    def check_accessible(self) -> None:
        """Fail if axe-core finds a violation of WCAG 2 A or AA on the page as it is now."""
        found = Axe().run(self.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
        violations = {
            one["id"]: [node["html"][:160] for node in one["nodes"][:3]] for one in found.response["violations"]
        }
        assert not violations, json.dumps(violations, indent=1)

    def screenshot(self, path: Path) -> None:
        """Keep a picture of what is shown."""
        self.page.screenshot(path=path)
