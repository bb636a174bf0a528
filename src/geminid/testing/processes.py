"""Finding and cleaning up processes that a test or a benchmark started, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil


def marked_processes(*marks: str) -> list[tuple[int, str]]:
    """Processes that have all of these ``NAME=value`` entries in their environment, with their command lines."""
    wanted = dict(mark.split("=", 1) for mark in marks).items()
    return [
        (process.pid, " ".join(process.info["cmdline"] or ()))
        for process in psutil.process_iter(["environ", "cmdline"])
        if process.pid != os.getpid() and wanted <= (process.info["environ"] or {}).items()
    ]


def command_line(pid: int) -> str:
    """The command line of a process; empty if the process has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def start_cleaner(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start ``python -m module arguments``, which cleans up after this process, even if this one is killed.

    The module's main part calls :func:`wait_for_owner` and then cleans up. The owner calls ``communicate()`` on the
    result to have that done now, and waits for it.
    """
    command = (sys.executable, "-m", module, *map(str, arguments))
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def wait_for_owner() -> None:
    """In a cleaner: wait until the process that started it closes its end of the pipe, or ends."""
    sys.stdin.buffer.read()
