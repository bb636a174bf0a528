"""The zygote: a process that has imported what workers need, and from which they are forked in milliseconds.

Only Python scripts for the same interpreter can be forked; every other command is started as a new process. The zygote
never touches a GPU: CUDA does not survive a fork, so each worker initialises it for itself.

What is imported in advance is a module that is given by name. It may define ``before_script()``, which runs in a fork
just before its script, and ``after_script()``, which runs after a script that ended with exit code 0.

A forked worker waits for ``Begin`` before it runs its script. If the process that requested it is gone by then, the
worker ends: it is not recorded, and another may have been started in its place.

    with Zygote(preload="geminid.train.preload") as launcher:
        Supervisor(spec, launcher=launcher)
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
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
from typing import Any, NoReturn, Self, TypeVar

from geminid.process import shim
from geminid.process.descendants import MARK, signal_marked
from geminid.process.disk_full import keep_printing, open_log
from geminid.process.environment import clean_environment
from geminid.process.launch import Launch, PlainLauncher, WorkerProcess, _Watched, adopted
from geminid.process.python_command import PYTHONS, PythonLine, is_this_python
from geminid.wire.codec import Codec, Message, ProtocolError
from geminid.wire.connection import Connection

#: Variables of the interpreter that work in a fork, or that change nothing for a script.
WORKS_IN_A_FORK = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})

#: Longest request, in bytes: a command with its arguments, and an environment.
MAX_REQUEST_BYTES = 1 << 24

#: How long the zygote may take to accept a request, in seconds: it may still be importing PyTorch.
REQUEST_TIMEOUT_S = 600.0

#: How long the zygote may take to end after its connection was closed, in seconds; then it is killed.
CLOSE_TIMEOUT_S = 5.0


class Fork(Message, frozen=True):
    """Fork a worker that waits for ``Begin``. Without a ``program``, the command is a Python script.

    With ``keep``, the worker ends when the zygote does. ``name`` is what lists of processes show.
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    log: str
    program: str | None
    keep: bool
    exit_file: str
    name: str = ""


class Begin(Message, frozen=True):
    """Have the worker of this shim run its command."""

    shim: int


class Wait(Message, frozen=True):
    """Wait for the exit code of this shim, which has ended."""

    shim: int


class Forked(Message, frozen=True):
    """The answer to ``Fork``: a worker, and the shim above it."""

    pid: int
    shim: int


class Done(Message, frozen=True):
    """The answer to ``Begin`` and ``Wait``."""

    code: int = 0


Request = Fork | Begin | Wait
Answer = Forked | Done
A = TypeVar("A", Forked, Done)

_REQUESTS: Codec[Request] = Codec(Request, max_line_bytes=MAX_REQUEST_BYTES)
_ANSWERS: Codec[Answer] = Codec(Answer)


class Zygote:
    """A launcher that forks workers from a process which has imported ``preload``; several supervisors may share it.

    With ``keep``, the zygote starts every command, and all of them end when it ends; it keeps the descriptors ``hold``
    open until then. Its environment is not this process's, because the system shows it for every forked worker: it is
    a clean one with ``environment`` added.
    """

    def __init__(
        self,
        *,
        preload: str,
        keep: bool = False,
        hold: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._keep = keep
        self._plain = PlainLauncher()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "geminid.process.zygote", preload, *map(str, (theirs.fileno(), *hold))],
                pass_fds=[theirs.fileno(), *hold],
                env={**clean_environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection: Connection[Answer, Request] = Connection(
            ours, _ANSWERS, _REQUESTS, max_unsent_bytes=MAX_REQUEST_BYTES
        )

    def __enter__(self) -> Self:
        """Nothing more is needed: the process imports by itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the zygote."""
        self.close()

    @property
    def pid(self) -> int:
        """The id of the zygote process."""
        return self._process.pid

    def start(self, launch: Launch) -> WorkerProcess:
        """Fork a worker, if the command is a Python script for this interpreter; otherwise start a new process."""
        program = shutil.which(launch.command[0], path=launch.environment.get("PATH"))
        if program is None and launch.command[0] in PYTHONS:
            program = sys.executable
        line = PythonLine.of(launch.command)
        forks = program is not None and is_this_python(program) and line is not None and line.forks
        forks = forks and not any(_needs_new_process(name) for name in launch.environment)
        if not forks and not self._keep:
            return self._plain.start(launch)
        if not launch.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(launch.folder))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such program", launch.command[0])
        request = Fork(
            command=[launch.command[0], str(line.script), *line.arguments] if forks and line else list(launch.command),
            environment=dict(launch.environment),
            folder=str(launch.folder),
            log=str(launch.log),
            program=None if forks else program,
            keep=self._keep,
            exit_file=str(launch.exit_file or ""),
            name=launch.name,
        )
        try:
            answer = self._request(request, Forked)
        except OSError as problem:  # slower, but the job goes on
            if self._keep:
                raise
            print(f"geminid: warning: a worker starts without the zygote: {problem}", file=sys.stderr, flush=True)
            return self._plain.start(launch)
        return ForkedProcess(answer.pid, answer.shim, launch.exit_file, self)

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a worker that another zygote forked."""
        return adopted(identity)

    def begin(self, shim_pid: int) -> None:
        """Have the worker of a shim run its command."""
        self._request(Begin(shim=shim_pid), Done)

    def exit_code(self, shim_pid: int) -> int:
        """The exit code of a worker whose shim has ended, as it did."""
        return self._request(Wait(shim=shim_pid), Done).code

    def _request(self, request: Request, kind: type[A]) -> A:
        with self._lock:
            try:
                self._connection.send(request)
                self._connection.drain(REQUEST_TIMEOUT_S)
                while self._connection.wait(None):
                    for answer in self._connection.receive():
                        assert isinstance(answer, kind)
                        return answer
            except ProtocolError as problem:
                raise OSError(errno.E2BIG, str(problem)) from None
            except (OSError, EOFError, ValueError):
                pass
        raise OSError(f"the process that workers are forked from (process {self._process.pid}) is gone")

    def close(self) -> None:
        """End the zygote; workers stay as they are."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_TIMEOUT_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class ForkedProcess(_Watched):
    """A worker that was forked from the zygote, which is the only process that can wait for its shim."""

    def __init__(self, pid: int, shim_pid: int, exit_file: Path | None, zygote: Zygote) -> None:
        super().__init__(pid, shim_pid, exit_file)
        self._zygote, self._forked_shim = zygote, shim_pid
        self._code: int | None = None

    def begin(self) -> None:
        """Let it run its command; without the zygote it cannot, and ends."""
        with contextlib.suppress(OSError):
            self._zygote.begin(self._forked_shim)

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        if self._code is None and self.ended():
            try:
                self._code = self._zygote.exit_code(self._forked_shim)
            except OSError:
                self._code = super().exit_code()
        return self._code


def _needs_new_process(name: str) -> bool:
    """Whether a variable only has an effect on a new process, not on a fork."""
    return name.startswith("LD_") or (name.startswith("PYTHON") and name not in WORKS_IN_A_FORK)


def serve(preload: str, line: socket.socket, held: Sequence[int] = ()) -> None:
    """Import what workers need, then fork one for every request until the other side closes the connection.

    Workers that were forked with ``keep`` end then, with everything that they started.
    """
    hooks = None
    with contextlib.suppress(ImportError):  # workers that need it say that it is missing
        hooks = importlib.import_module(preload)
    gc.collect()
    gc.freeze()
    kept: dict[int, str] = {}  # by shim, the marks of workers that end with this process
    waiting: dict[int, int] = {}  # by shim, the pipe on which a worker waits for Begin
    connection: Connection[Request, Answer] = Connection(line, _REQUESTS, _ANSWERS)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError), contextlib.closing(connection):
        while connection.wait(None):
            for request in connection.receive():
                answer: Answer = Done()
                match request:
                    case Fork():
                        pid, shim_pid, begin = _fork(request, hooks, (line.fileno(), *waiting.values(), *held))
                        waiting[shim_pid] = begin
                        if request.keep:
                            kept[shim_pid] = request.environment.get(MARK, "")
                        answer = Forked(pid=pid, shim=shim_pid)
                    case Begin():
                        with contextlib.suppress(BrokenPipeError):  # it was ended before it began
                            os.write(waiting[request.shim], b"\0")
                        os.close(waiting.pop(request.shim))
                    case Wait():
                        _, status = os.waitpid(request.shim, 0)
                        kept.pop(request.shim, None)
                        if request.shim in waiting:
                            os.close(waiting.pop(request.shim))
                        answer = Done(code=os.waitstatus_to_exitcode(status))
                connection.send(answer)
    for shim_pid in kept:
        shim.signal_below(shim_pid, signal.SIGKILL)
    if kept:
        signal_marked(signal.SIGKILL, set(kept.values()).__contains__)


def _fork(start: Fork, hooks: object, held: Sequence[int]) -> tuple[int, int, int]:
    """Fork a worker and its shim: the ids of both, and the pipe on which the worker waits for ``Begin``."""
    begins, begin = os.pipe()
    named, name = os.pipe()
    parent = os.getpid()
    shim_pid = os.fork()
    if shim_pid == 0:
        _become_shim(start, hooks, (*held, begin, named), begins, name, parent)
    os.close(begins)
    os.close(name)
    with open(named, "rb") as file:
        pid = file.read()
    return int(pid or shim_pid), shim_pid, begin


def _become_shim(start: Fork, hooks: object, held: Sequence[int], begins: int, name: int, parent: int) -> NoReturn:
    """Be the shim of a worker that is forked from this process, and end as the worker does."""
    code = 1
    try:
        for descriptor in held:
            os.close(descriptor)
        os.setsid()
        shim.ignore_all_but_worker()
        if start.keep:
            shim.die_with_parent(parent, shim.END_ALL)
        group, own_pid = shim.make_group(), os.getpid()
        has_begun, report_begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in (name, has_begun):
                os.close(descriptor)
            shim.enter_group(group)
            _become_worker(start, hooks, begins, report_begun, own_pid)
        os.write(name, str(pid).encode())
        os.close(name)
        os.close(begins)
        os.close(report_begun)
        ctypes.CDLL(None).prctl(shim.PR_SET_NAME, b"geminid shim")
        code = shim.keep(pid, start.exit_file, group, has_begun=lambda: bool(os.read(has_begun, 1)))
    except BaseException:
        traceback.print_exc()
    finally:
        shim.end_like(code)
        os._exit(1)


def _become_worker(start: Fork, hooks: object, begins: int, report_begun: int, parent: int) -> NoReturn:
    """Be the worker, in a session of its own, as if the command had been started as a new process."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, shim.END_ALL):  # the shim's handlers
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        shim.die_with_parent(parent)
        if not os.read(begins, 1):  # the process that requested it is gone
            os._exit(1)
        os.write(report_begun, b"\0")
        os.close(report_begun)
        os.close(begins)
        os.chdir(start.folder)
        log = open_log(Path(start.log))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        before = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ.clear()
        os.environ.update(start.environment)
        if start.name:
            ctypes.CDLL(None).prctl(shim.PR_SET_NAME, start.name.encode()[:15])
        if start.program is not None:
            os.execve(start.program, start.command, start.environment)
        keep_printing()
        own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in before]
        script = str(Path(start.command[1]).absolute())  # as python has it, for processes that the script spawns
        sys.argv = start.command[1:]
        sys.path[:0] = [str(Path(script).parent), *own]
        random.seed()
        _call(hooks, "before_script")
        code = _run(script)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        if code == 0:
            _call(hooks, "after_script")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(hooks: object, name: str) -> None:
    """Call a function of the preloaded module, if it has one of this name."""
    getattr(hooks, name, lambda: None)()


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
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), [int(word) for word in sys.argv[3:]])
