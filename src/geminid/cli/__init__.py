"""The command line: one file per command group."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

#: What shells report for a command that was ended by Ctrl-C.
INTERRUPTED = 130

#: … by SIGTERM.
TERMINATED = 143


@contextlib.contextmanager
def ends_when_terminated() -> Iterator[None]:
    """SIGTERM within ends what is under way as Ctrl-C does, so that nothing that was started is left behind."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ends_when_interrupted() -> Iterator[None]:
    """Ctrl-C within ends the process with one line instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
