"""Settings shared by all tests."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import settings

# Tests share few cores. OpenMP's threads wait for each other by spinning, which takes many times as long then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The many processes that tests start are not to compile the package each for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples are the same in every run (a failure must not depend on luck), and slow machines are not failures.
settings.register_profile("geminid", deadline=None, derandomize=True, database=None)
settings.load_profile("geminid")


@pytest.fixture
def small_file_system():
    """Mounts a file system of its own, of a size such as ``256k``, on a folder for the length of a test."""
    mounted = []

    def mount(folder, size: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a file system of a chosen size can only be mounted by root")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)
