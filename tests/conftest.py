"""Settings shared by all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests share few cores. OpenMP's threads wait for each other by spinning, which takes many times as long then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The many processes that tests start are not to compile the package each for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples are the same in every run (a failure must not depend on luck), and slow machines are not failures.
settings.register_profile("geminid", deadline=None, derandomize=True, database=None)
settings.load_profile("geminid")
