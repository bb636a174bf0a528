"""The screenshot of the web page for README and docs, from a real run: ``python benchmarks/screenshots.py``.

Starts a service on this machine, submits the examples as ``geminid demo`` does, and saves the picture to docs/figures.
Needs Chromium and the package's extra ``dev``; takes about a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from geminid.serve.server import Options
from geminid.testing.browser import NO_CHROMIUM, chromium_program
from geminid.testing.service import temporary_service

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

#: When jobs come, in seconds from the start, what they are, and how many epochs they train.
SUBMISSIONS = (
    (0.0, "images", 60),
    (6.0, "language", 24),
    (14.0, "recommender", 60),
    (22.0, "images", 40),
    (30.0, "recommender", 60),
    (34.0, "language", 20),
)

#: When the picture is taken, in seconds from the start.
PICTURE_AT_S = 48.0

POLICY = "geminid:gap=2,refresh=10,fill=true"


def main() -> None:
    """Run the jobs and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--slots", type=int, default=6)
    given = parser.parse_args()
    options = Options(home=Path(), slots=given.slots, policy=POLICY, grace_s=5.0)
    with temporary_service(options) as (client, _), sync_playwright() as playwright:
        program = chromium_program() or sys.exit(NO_CHROMIUM)
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        page.goto(client.post("login-links")["url"])
        began_s = time.monotonic()
        for due_s, name, epochs in SUBMISSIONS:
            time.sleep(max(began_s + due_s - time.monotonic(), 0.0))
            command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--epochs", str(epochs)]
            client.post("jobs", {"name": name, "command": command, "working_dir": str(EXAMPLES)})
        time.sleep(max(began_s + PICTURE_AT_S - time.monotonic(), 0.0))
        page.screenshot(path=given.out / "dashboard-now.png", clip={"x": 0, "y": 0, "width": 1240, "height": 760})
        browser.close()


if __name__ == "__main__":
    main()
