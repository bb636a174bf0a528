"""A service in a temporary folder, for demonstrations and measurements: nothing of it is left."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from geminid.serve.client import Client, Trouble
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
    pid = 0
    try:
        pid = int(str(start_detached(replace(options, home=home))["pid"]))
        yield Client.here(home), home
    finally:
        with contextlib.suppress(Trouble, OSError):
            Client.here(home).post("shutdown")
            deadline = time.monotonic() + PATIENCE_S
            while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
                if not Path(f"/proc/{pid}/cmdline").read_bytes():
                    break  # it has ended, and nobody has asked how
                time.sleep(0.05)
        shutil.rmtree(home, ignore_errors=True)
