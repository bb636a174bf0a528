"""Settings shared by all tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from effort import examples
from requirements import REQUIREMENTS, Unmet, check_requirements

# Tests share few cores. OpenMP's threads wait for each other by spinning, which takes many times as long then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What commands print is compared as it goes to a pipe, whatever the size of the terminal that the tests are started in.
os.environ.pop("COLUMNS", None)

# The many processes that tests start are not to compile the package each for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples are the same in every run (a failure must not depend on luck), and slow machines are not failures.
settings.register_profile("geminid", max_examples=examples(100), deadline=None, derandomize=True, database=None)
settings.load_profile("geminid")


def pytest_configure(config: pytest.Config) -> None:
    for requirement in REQUIREMENTS.values():
        config.addinivalue_line("markers", (requirement.__doc__ or "").strip("`").replace("``", ""))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    check_requirements(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Fail a test that is skipped for another reason than those in ``requirements.py``."""
    report = yield
    if call.excinfo is not None and is_unlisted_skip(call.excinfo.value):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is skipped ({call.excinfo.value}): {SKIPS}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Fail a module that skips itself, as ``importorskip`` does."""
    report = yield
    if report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} is skipped ({report.longrepr[-1]}): {SKIPS}"
    return report


SKIPS = "the reasons for which tests are skipped are listed in tests/requirements.py"


def is_unlisted_skip(problem: BaseException) -> bool:
    return isinstance(problem, pytest.skip.Exception) and not isinstance(problem, Unmet)


@pytest.fixture
def small_file_system() -> Iterator[Callable[[Path, str], None]]:
    """Mounts a file system of a size such as ``256k`` on a folder, for tests that are marked ``needs_mounts``."""
    mounted = []

    def mount(folder: Path, size: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)
