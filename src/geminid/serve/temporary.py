"""A service in a temporary folder, for demonstrations and measurements: nothing of it is left.

Whoever asked for it may be killed. So a process of its own cleans up: it waits until nobody holds the other end of a
pipe any more, ends the service with all its jobs, and removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from geminid.serve.client import SERVICE, Client, Trouble
from geminid.serve.server import Options, start_detached

#: How long the service has to end all jobs and itself.
PATIENCE_S = 60.0


@contextlib.contextmanager
def temporary_service(options: Options) -> Iterator[tuple[Client, Path]]:
    """A service with these options in a folder of its own; both are gone when the block ends, as are all jobs.

    Raises:
        Trouble: it did not start.
    """
    home = Path(tempfile.mkdtemp(prefix="geminid-"))
    cleaner = subprocess.Popen(
        (sys.executable, "-m", "geminid.serve.temporary", str(home)), stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        start_detached(replace(options, home=home))
        yield Client.here(home), home
    finally:
        cleaner.communicate()


def clean_up(home: Path) -> None:
    """End the service that has its things there, wait until it is gone, and remove them."""
    with contextlib.suppress(Trouble, OSError, ValueError, KeyError):
        pid = json.loads((home / SERVICE).read_text(encoding="utf-8"))["pid"]
        Client.here(home).post("shutdown")
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
            if not Path(f"/proc/{pid}/cmdline").read_bytes():
                break  # it has ended, and nobody has asked how
            time.sleep(0.05)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean_up(Path(sys.argv[1]))
