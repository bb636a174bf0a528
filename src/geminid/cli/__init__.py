"""The command line: one file per command group."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

#: What shells report for a command that was ended by Ctrl-C.
INTERRUPTED = 130


@contextlib.contextmanager
def ends_when_interrupted() -> Iterator[None]:
    """Ctrl-C within ends the process with one line instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
