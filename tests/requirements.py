"""What a test may need that a fresh machine can lack: the only reasons for which a test is skipped.

A test names what it needs with a marker, such as ``@pytest.mark.needs_peers("gavel/traces")``. Packages that
``make test`` installs are no requirement: tests import them, and fail where they are missing. ``conftest.py`` evaluates
the markers and fails every test that is skipped in another way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from geminid.testing.browser import NO_CHROMIUM, chromium_program

#: Data of other systems, which is not ours to publish: beside the clone, where somebody has put it there.
PEERS = Path(__file__).parents[2] / "shared" / "peers"

#: A browser to open the page and reports with, where there is one.
CHROMIUM = chromium_program()


class Unmet(pytest.skip.Exception):
    """A requirement of a test is not met on this machine."""


def needs_peers(*paths: str) -> str | None:
    """``needs_peers(path, ...)``: files or folders of other systems' data, relative to ``shared/peers``."""
    missing = [path for path in paths if not (PEERS / path).exists()]
    return f"the peers' data is not at shared/peers/{missing[0]}" if missing else None


def needs_root() -> str | None:
    """``needs_root``: to act for several users."""
    return None if os.geteuid() == 0 else "only root may do this"


@cache
def needs_mounts() -> str | None:
    """``needs_mounts``: to mount a file system of a chosen size."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            return "only root, with the right to mount, can mount a file system of a chosen size"
        subprocess.run(["umount", "-l", folder], check=True)
    return None


@cache
def needs_network_namespaces() -> str | None:
    """``needs_network_namespaces``: to give nodes networks that can be cut and slowed down."""
    name = f"gmd{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "only root can make networks for nodes, with ip(8)"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if made.returncode == 0 else "network namespaces cannot be made on this machine"


def needs_chromium() -> str | None:
    """``needs_chromium``: a browser to open the page and reports with. In CI, a missing one is a failure."""
    if CHROMIUM is None and os.environ.get("CI"):
        pytest.fail(NO_CHROMIUM, pytrace=False)
    return None if CHROMIUM else NO_CHROMIUM


def slow(duration: str) -> str | None:
    """``slow(duration)``: takes minutes, so it runs only with GEMINID_TEST_SLOW=1."""
    return None if "GEMINID_TEST_SLOW" in os.environ else f"takes {duration}: set GEMINID_TEST_SLOW=1"


#: By the name of the marker: says why the requirement is not met, or None.
REQUIREMENTS: dict[str, Callable[..., str | None]] = {
    check.__name__: check
    for check in (needs_peers, needs_root, needs_mounts, needs_network_namespaces, needs_chromium, slow)
}


def check_requirements(item: pytest.Item) -> None:
    """Skip a test that needs what this machine lacks."""
    for name, check in REQUIREMENTS.items():
        for marker in item.iter_markers(name):
            reason = check(*marker.args)
            if reason is not None:
                raise Unmet(reason)
