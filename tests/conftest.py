"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import settings

# Examples are the same in every run (a failure must not depend on luck), and slow machines are not failures.
settings.register_profile("geminid", deadline=None, derandomize=True, database=None)
settings.load_profile("geminid")
