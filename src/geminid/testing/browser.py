"""The browser of this machine, for tests, benches and screenshots of the web page."""

from __future__ import annotations

import shutil

#: Browsers that can be driven, by the names of their programs.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

#: What to say where there is none.
NO_CHROMIUM = "there is no Chromium on this machine: apt-get install chromium"


def chromium_program() -> str | None:
    """The path of Chromium; None where it is not installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)
