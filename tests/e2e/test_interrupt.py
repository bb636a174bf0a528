"""Ctrl-C, as a terminal sends it: one line, exit code 130, and nothing left running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from geminid.testing.ray_cluster import marked_processes
from waiting import until

GEMINID = [sys.executable, "-m", "geminid"]
SCRIPTS = Path(__file__).parent / "scripts"

#: A shell says 130 for both: where the interrupt hits an ``exec``, of which imports have many, CPython ends by the
#: signal itself.
ENDED_BY_CTRL_C = (130, -signal.SIGINT)


def heed_interrupts() -> None:
    """As in a terminal: a shell has the commands that it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("after_s", [1.5, 6.0])
def test_an_interrupted_command_ends_at_once_with_one_line(after_s: float, tmp_path: Path) -> None:
    mark = f"GEMINID_TEST_MARK={tmp_path}"  # workers have sessions of their own: all are found by their environment
    script = ["python", str(SCRIPTS / "regression.py"), str(tmp_path / "out"), "--epochs", "100000"]
    with subprocess.Popen(
        [*GEMINID, "profile", "--slots", "2", "--seconds", "30", "--", *script],
        env={**os.environ, **dict([mark.split("=", 1)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    ) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process
        out, err = process.communicate(timeout=60)
    assert process.returncode in ENDED_BY_CTRL_C
    assert (out, err.strip()) == ("", "interrupted")
    until(lambda: not marked_processes(mark), seen=lambda: marked_processes(mark))


@pytest.mark.parametrize("module", ["typer", "geminid.cluster"], ids=["before the command", "within the command"])
def test_an_interrupt_during_imports_is_one_line_as_well(module: str, tmp_path: Path) -> None:
    code = f"""
import builtins, os, signal, sys
real = builtins.__import__
def importing(name, *rest, **more):
    if name == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest, **more)
builtins.__import__ = importing
from geminid.__main__ import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", code, "validate", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=heed_interrupts,
    )
    assert result.returncode in ENDED_BY_CTRL_C
    assert (result.stdout, result.stderr) == ("", "interrupted\n")
