"""A real service in a temporary home, for demonstrations, measurements and tests. Nothing of it is left.

The process that uses it may be killed, so a cleaner process ends the service with all its jobs and removes the home.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from geminid.serve.client import SERVICE, Client, ServiceError
from geminid.serve.server import Options, start_detached
from geminid.testing.processes import command_line, start_cleaner, wait_for_owner
from geminid.testing.waiting import wait_until

#: How long the service may take to end all jobs and itself, in seconds.
SHUTDOWN_TIMEOUT_S = 60.0


@contextlib.contextmanager
def temporary_service(
    options: Options, prepare: Callable[[Path], None] = lambda home: None
) -> Iterator[tuple[Client, Path]]:
    """A service with these options in a temporary home; service, jobs and home are gone when the block ends.

    Yields a client of the service and the home. ``prepare`` is called with the home before the service starts.

    Raises:
        ServiceError: the service did not start.
    """
    home = Path(tempfile.mkdtemp(prefix="geminid-"))
    cleaner = start_cleaner("geminid.testing.service", home)
    try:
        prepare(home)
        start_detached(replace(options, home=home))
        yield Client.here(home), home
    finally:
        cleaner.communicate()


def clean_up(home: Path) -> None:
    """End the service of this home, wait until its process has ended, and remove the home."""
    with contextlib.suppress(ServiceError, OSError, ValueError, KeyError):  # TimeoutError is an OSError
        pid = json.loads((home / SERVICE).read_text(encoding="utf-8"))["pid"]
        Client.here(home).post("shutdown")
        # A process that has ended but whose parent has not collected it yet has an empty command line.
        wait_until(
            lambda: not command_line(pid),
            timeout_s=SHUTDOWN_TIMEOUT_S,
            problem="the service did not end",
            every_s=0.05,
        )
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    wait_for_owner()
    clean_up(Path(sys.argv[1]))
