"""Run a command and write down how it ended, even if nobody is there to hear it: the parent of every plain command.

Started as ``python -I shim.py EXIT_FILE COMMAND …`` in a session of its own, with standard library only. It outlives
the service, so that a service that comes back learns whether the command succeeded.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys

#: The most memory that the command may use, in bytes; there is no limit without.
MEMORY = "GEMINID_MEMORY_BYTES"


def main(exit_file: str, command: list[str]) -> int:
    """Run the command; signals that end a process group reach it by themselves, so this one only waits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = os.environ.pop(MEMORY, None)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(command, restore_signals=True)
    except OSError as problem:
        return _written(exit_file, {"code": 127, "problem": f"{command[0]}: {problem.strerror}"}, 127)
    while True:
        with contextlib.suppress(InterruptedError):
            code = child.wait()
            break
    return _written(exit_file, {"code": code, "problem": ""}, 0)


def _written(exit_file: str, document: dict[str, object], code: int) -> int:
    with open(exit_file + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(exit_file + ".new", exit_file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
