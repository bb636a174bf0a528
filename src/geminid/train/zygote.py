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
from geminid.supervise import channel
from geminid.supervise.handover import write_end
from geminid.train.agent import mind_until_init
from geminid.wire.codec import Codec, Message, ProtocolError
from geminid.wire.connection import Connection

#: Variables of Python's own that a fork minds, or that change nothing for a script.
WORKS_IN_A_FORK = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})


#: Longest request: a command with its arguments, and an environment.
MAX_REQUEST_BYTES = 1 << 24

#: Longest time in which the warm process has to take a request: it may still be importing PyTorch.
ASK_S = 600.0


class Fork(Message, frozen=True):
    """Fork a worker that waits until it is to begin. Without a ``program``, the command is a Python script."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    log: str
    program: str | None
    keep: bool
    exit_file: str


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
    """Starts worker processes by forking a warm one; may be shared by several supervisors.

    With ``keep``, every command is started by the warm process, and whatever it started ends when it ends. It keeps
    the descriptors that it is given to ``hold`` open until then. Its own environment is none of this process's: whoever
    looks into the system's table of processes finds it with every worker. ``environment`` is what else is in it.
    """

    def __init__(
        self, *, keep: bool = False, hold: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._keep = keep
        self._plain = PlainLauncher()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "geminid.train.zygote", *map(str, (theirs.fileno(), *hold))],
                pass_fds=[theirs.fileno(), *hold],
                env={**clean_environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection: Connection[Answer, Request] = Connection(
            ours, _ANSWERS, _REQUESTS, max_unsent_bytes=MAX_REQUEST_BYTES
        )

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
        forks = forks and not any(_counts_at_the_start(name) for name in launch.environment)
        if not forks and not self._keep:
            return self._plain.start(launch)
        if not launch.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(launch.folder))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such program", launch.command[0])
        wanted = Fork(
            command=[launch.command[0], str(line.script), *line.arguments] if forks and line else list(launch.command),
            environment=dict(launch.environment),
            folder=str(launch.folder),
            log=str(launch.log),
            program=None if forks else program,
            keep=self._keep,
            exit_file=str(launch.exit_file or ""),
        )
        try:
            answer = self._ask(wanted, Forked)
        except OSError as problem:  # slower, but the job goes on
            if self._keep:
                raise
            print(f"geminid: warning: a worker is started afresh: {problem}", file=sys.stderr, flush=True)
            return self._plain.start(launch)
        return ForkedProcess(answer.pid, answer.shim, launch.exit_file, self)

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a worker that another warm process forked."""
        return adopted(identity)

    def begin(self, shim_pid: int) -> None:
        """Have the worker of a shim run its command."""
        self._ask(Begin(shim=shim_pid), Done)

    def exit_code(self, shim_pid: int) -> int:
        """The exit code of a worker whose shim has ended, as it did."""
        return self._ask(Wait(shim=shim_pid), Done).code

    def _ask(self, request: Request, kind: type[A]) -> A:
        with self._lock:
            try:
                self._connection.send(request)
                self._connection.drain(ASK_S)
                while self._connection.wait(None):
                    for answer in self._connection.receive():
                        assert isinstance(answer, kind)
                        return answer
            except ProtocolError as problem:
                raise OSError(errno.E2BIG, str(problem)) from None
            except (OSError, EOFError, ValueError):
                pass
        raise OSError("the process that workers are forked from is gone")

    def close(self) -> None:
        """End the warm process; workers stay as they are."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class ForkedProcess(_Watched):
    """A worker that was forked from the warm process, which alone can ask its shim for its exit code."""

    def __init__(self, pid: int, shim_pid: int, exit_file: Path | None, zygote: Zygote) -> None:
        super().__init__(pid, shim_pid, exit_file)
        self._zygote, self._forked_shim = zygote, shim_pid
        self._code: int | None = None

    def begin(self) -> None:
        """Let it run its command; without the warm process it cannot, and ends."""
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


def _counts_at_the_start(name: str) -> bool:
    """Whether a variable means something only to a process that is just being started, which a fork is not."""
    return name.startswith("LD_") or (name.startswith("PYTHON") and name not in WORKS_IN_A_FORK)


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
    kept: dict[int, str] = {}  # the shims of those that are not to outlive this process, and their marks
    waiting: dict[int, int] = {}  # the shims of those that have not begun, and the pipe on which each waits for that
    connection: Connection[Request, Answer] = Connection(line, _REQUESTS, _ANSWERS)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError), contextlib.closing(connection):
        while connection.wait(None):
            for request in connection.receive():
                answer: Answer = Done()
                match request:
                    case Fork():
                        pid, shim_pid, tell = _fork(request, (line.fileno(), *waiting.values(), *held))
                        waiting[shim_pid] = tell
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


def _fork(start: Fork, held: Sequence[int]) -> tuple[int, int, int]:
    """Fork a worker and, above it, its shim: their process ids, and the pipe by which the worker is told to begin."""
    begins, tell = os.pipe()
    named, name = os.pipe()
    parent = os.getpid()
    shim_pid = os.fork()
    if shim_pid == 0:
        _watch_over(start, (*held, tell, named), begins, name, parent)
    os.close(begins)
    os.close(name)
    with open(named, "rb") as file:
        told = file.read()
    return int(told or shim_pid), shim_pid, tell


def _watch_over(start: Fork, held: Sequence[int], begins: int, name: int, parent: int) -> NoReturn:
    """Be the shim of a worker that is forked from this process; ends as it does."""
    code = 1
    try:
        for descriptor in held:
            os.close(descriptor)
        os.setsid()
        shim.mind_only_the_worker()
        if start.keep:
            shim.die_with_parent(parent, shim.END_ALL)
        group, ours = shim.make_group(), os.getpid()
        begun, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in (name, begun):
                os.close(descriptor)
            shim.enter_group(group)
            _become(start, begins, begin, ours)
        os.write(name, str(pid).encode())
        os.close(name)
        os.close(begins)
        os.close(begin)
        ctypes.CDLL(None).prctl(shim.PR_SET_NAME, b"geminid shim")
        code = shim.keep(pid, start.exit_file, group, has_begun=lambda: bool(os.read(begun, 1)))
    except BaseException:
        traceback.print_exc()
    finally:
        shim.end_like(code)
        os._exit(1)


def _become(start: Fork, begins: int, begin: int, parent: int) -> NoReturn:
    """Be the worker, in a session of its own, as if the command had been started afresh, once it is to begin."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, shim.END_ALL):  # its shim minds none of them
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        shim.die_with_parent(parent)
        if not os.read(begins, 1):  # whoever wanted it is gone
            os._exit(1)
        os.write(begin, b"\0")
        os.close(begin)
        os.close(begins)
        os.chdir(start.folder)
        log = open_log(Path(start.log))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        before = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ.clear()
        os.environ.update(start.environment)
        name = "/".join(os.environ[part] for part in (channel.JOB, channel.WORKER) if part in os.environ)
        if name:
            ctypes.CDLL(None).prctl(shim.PR_SET_NAME, name.encode()[:15])
        if start.program is not None:
            os.execve(start.program, start.command, start.environment)
        keep_printing()
        own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in before]
        script = str(Path(start.command[1]).absolute())  # as python has it, for processes that the script spawns
        sys.argv = start.command[1:]
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
