"""A warm process that worker processes are forked from: PyTorch is imported once, not by every worker.

Only Python scripts for the same interpreter can be started this way; everything else is started afresh. The warm
process never touches a GPU: CUDA does not survive a fork, and is initialised by each worker for itself.

A worker that was forked does nothing until it is told to begin. Should whoever asked for it be gone by then, it ends:
nobody knows of it, and another may have been started in its place.

    with Zygote() as launcher:
        Supervisor(spec, launcher=launcher)
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import json
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from geminid.train import channel
from geminid.train.agent import mind_until_init
from geminid.train.launcher import Launch, PlainLauncher, WorkerProcess, _Watched, adopted
from geminid.train.offspring import MARK, signal_marked
from geminid.train.pythonline import PYTHONS, PythonLine, is_this_python
from geminid.train.room import keep_printing, open_log
from geminid.train.takeover import write_end

#: Of prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: And what it is called in lists of processes.
PR_SET_NAME = 15


class Zygote:
    """Starts worker processes by forking a warm one; may be shared by several supervisors.

    With ``keep``, every command is started by the warm process, and whatever it started ends when it ends. It keeps
    the descriptors that it is given to ``hold`` open until then.
    """

    def __init__(self, *, keep: bool = False, hold: Sequence[int] = ()) -> None:
        self._keep = keep
        self._plain = PlainLauncher()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "geminid.train.zygote", *map(str, (theirs.fileno(), *hold))],
                pass_fds=[theirs.fileno(), *hold],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._line = ours.makefile("rw", encoding="utf-8")
        ours.close()

    def __enter__(self) -> Self:
        """Nothing more is needed: the process warms up by itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the warm process."""
        self.close()

    @property
    def pid(self) -> int:
        """The warm process."""
        return self._process.pid

    def start(self, launch: Launch) -> WorkerProcess:
        """Fork a worker, if the command is a Python script for this interpreter; otherwise start it afresh."""
        program = shutil.which(launch.command[0], path=launch.environment.get("PATH"))
        if program is None and launch.command[0] in PYTHONS:
            program = sys.executable
        line = PythonLine.of(launch.command)
        forks = program is not None and is_this_python(program) and line is not None and line.forks
        if not forks and not self._keep:
            return self._plain.start(launch)
        if not launch.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(launch.folder))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such program", launch.command[0])
        wanted = {
            "command": [launch.command[0], line.script, *line.arguments] if forks and line else list(launch.command),
            "environment": dict(launch.environment),
            "folder": str(launch.folder),
            "log": str(launch.log),
            "program": None if forks else program,
            "keep": self._keep,
        }
        try:
            answer = self._ask({"start": wanted})
        except OSError as problem:  # slower, but the job goes on
            if self._keep:
                raise
            print(f"geminid: warning: a worker is started afresh: {problem}", file=sys.stderr, flush=True)
            return self._plain.start(launch)
        return ForkedProcess(int(answer["pid"]), self)

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a worker that another warm process forked."""
        return adopted(identity)

    def begin(self, pid: int) -> None:
        """Have a worker run its command."""
        self._ask({"begin": pid})

    def exit_code(self, pid: int) -> int:
        """The exit code of a worker that has ended."""
        return int(self._ask({"wait": pid})["code"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                self._line.write(json.dumps(request) + "\n")
                self._line.flush()
                line = self._line.readline()
            except (OSError, ValueError):
                line = ""
        if not line:
            raise OSError("the process that workers are forked from is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the warm process; workers stay as they are."""
        with contextlib.suppress(OSError):
            self._line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class ForkedProcess(_Watched):
    """A worker that was forked from the warm process, which alone can ask for its exit code."""

    def __init__(self, pid: int, zygote: Zygote) -> None:
        super().__init__(pid)
        self._zygote = zygote
        self._code: int | None = None

    def begin(self) -> None:
        """Let it run its command; without the warm process it cannot, and ends."""
        with contextlib.suppress(OSError):
            self._zygote.begin(self.pid)

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        if self._code is None and self.ended():
            try:
                self._code = self._zygote.exit_code(self.pid)
            except OSError:
                self._code = self.UNKNOWN_CODE
        return self._code


def serve(line: socket.socket, held: Sequence[int] = ()) -> None:
    """Import what workers need, then fork one for every request until the other side hangs up.

    Those that are not to outlive this process end then, with all that they started.
    """
    with contextlib.suppress(ImportError):
        import torch

        import geminid.train.run  # noqa: F401

        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimiser imports half of PyTorch
    gc.collect()
    gc.freeze()
    kept: dict[int, str] = {}
    waiting: dict[int, int] = {}  # those that have not begun, and the pipe on which each waits for that
    parent = os.getpid()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError), line, line.makefile(encoding="utf-8") as file:
        for text in file:
            request, answer = json.loads(text), {}
            if "start" in request:
                begins, tell = os.pipe()
                pid = os.fork()
                if pid == 0:
                    _become(request["start"], (line.fileno(), tell, *waiting.values(), *held), begins, parent)
                os.close(begins)
                waiting[pid] = tell
                if request["start"]["keep"]:
                    kept[pid] = request["start"]["environment"].get(MARK, "")
                answer = {"pid": pid}
            elif "begin" in request:
                with contextlib.suppress(BrokenPipeError):  # it was ended before it began
                    os.write(waiting[request["begin"]], b"\0")
                os.close(waiting.pop(request["begin"]))
            else:
                _, status = os.waitpid(request["wait"], 0)
                kept.pop(request["wait"], None)
                if request["wait"] in waiting:
                    os.close(waiting.pop(request["wait"]))
                answer = {"code": os.waitstatus_to_exitcode(status)}
            line.sendall(json.dumps(answer).encode() + b"\n")
    for pid in kept:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    if kept:
        signal_marked(signal.SIGKILL, set(kept.values()).__contains__)


def _become(start: dict[str, Any], held: Sequence[int], begins: int, parent: int) -> NoReturn:
    """Be the worker, in a session of its own, as if the command had been started afresh, once it is to begin."""
    code = 1
    try:
        for descriptor in held:
            os.close(descriptor)
        if start["keep"]:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it has ended meanwhile
                os._exit(1)
        os.setsid()
        if not os.read(begins, 1):  # whoever wanted it is gone
            os._exit(1)
        os.close(begins)
        os.chdir(start["folder"])
        log = open_log(Path(start["log"]))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        before = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ.clear()
        os.environ.update(start["environment"])
        name = "/".join(os.environ[part] for part in (channel.JOB, channel.WORKER) if part in os.environ)
        if name:
            ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        if start["program"] is not None:
            os.execve(start["program"], start["command"], start["environment"])
        keep_printing()
        own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in before]
        script = str(Path(start["command"][1]).absolute())  # as python has it, for processes that the script spawns
        sys.argv = start["command"][1:]
        sys.path[:0] = [str(Path(script).parent), *own]
        random.seed()
        mind_until_init()
        _use_threads(os.environ.get("OMP_NUM_THREADS", ""))
        code = _run(script)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        if code == 0:
            write_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _use_threads(count: str) -> None:
    import torch

    if count.isdigit() and int(count) > 0:
        torch.set_num_threads(int(count))


def _run(script: str) -> int:
    """Run a script as the main program; its exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), [int(word) for word in sys.argv[2:]])
