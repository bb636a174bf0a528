"""How thoroughly properties are tried: ``make check`` is for every few minutes, ``make test`` for every submission."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """How many examples of a property to try: with GEMINID_TEST_QUICK, as ``make check`` sets it, a quarter."""
    return max(5, count // 4) if "GEMINID_TEST_QUICK" in os.environ else count
