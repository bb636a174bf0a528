"""The processes of a node: started, signalled, watched, and their logs passed on.

Nobody waits for logs: the service says how much of them it will take (``LOGS_ON_THE_WAY_BYTES`` at first), which is
shared out among the processes piece by piece. Of one that prints faster than that, parts are left out (``log.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from geminid.node import messages as m
from geminid.node.log import NodeLog
from geminid.process.descendants import MARK, signal_marked
from geminid.process.identity import identity_of, still_runs
from geminid.process.launch import SLOT_GONE, Launch, Launcher, WorkerProcess, end_left
from geminid.supervise.channel import ENDED
from geminid.supervise.handover import report_beside
from geminid.supervise.protocol import LONGEST_LINE_BYTES
from geminid.wire.reactor import Reactor

#: Longest piece of a log that is sent at a time.
PIECE_BYTES = 1 << 16

#: Most bytes of a node's logs that may be on their way to the service: all other messages come behind them.
LOGS_ON_THE_WAY_BYTES = 1 << 20

#: In an agent's folder: what runs, and on which slots.
PROCESSES = "processes.json"

#: In an agent's folder: its own process, and the warm one.
SERVER = "server.json"

#: The exit code of a process that could not be started.
NOT_STARTED = 127


@dataclass(slots=True)
class NodeProcess:
    """A process and its log.

    ``slots`` are those that it runs on, and ``slot_lost`` says whether one of them was taken away; ``well`` whether it
    has left word that its script ended well after training, ``report`` is its last one if it led, and ``codeless``
    says whether what was brought here for it to run is gone. ``reported``: the service knows how it ended.
    """

    log: NodeLog
    process: WorkerProcess | None = None
    code: int | None = None
    reason: str = ""
    reported: bool = False
    slots: frozenset[str] = frozenset()
    slot_lost: bool = False
    well: bool = False
    report: str = ""
    codeless: bool = False

    @property
    def end_mark(self) -> Path:
        """What a worker leaves when its script has ended well after training."""
        return self.log.path.with_suffix(".ended")

    def remove_files(self) -> None:
        """Remove its log, and what it has left."""
        for old in (self.log.path, self.end_mark, report_beside(self.end_mark)):
            old.unlink(missing_ok=True)


class ProcessTable:
    """All processes of an agent, by key.

    ``held_slots`` tells which slots are held: a process runs only on those. ``send`` sends something to the service, if
    it is connected, and ``on_started`` is called after each start. ``is_there`` says whether code that was brought is.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        launcher: Launcher,
        reactor: Reactor,
        *,
        send: Callable[[m.Answer], None],
        held_slots: Callable[[], Set[str]],
        is_there: Callable[[Path], bool],
        on_started: Callable[[], None],
    ) -> None:
        self._folder, self._environment, self._launcher, self._reactor = folder, environment, launcher, reactor
        self._send, self._held_slots, self._is_there, self._on_started = send, held_slots, is_there, on_started
        self._kept: dict[str, NodeProcess] = {}
        self._logs_left_bytes = 0
        self._is_connected = False

    def greet(self) -> m.Here:
        """A service has connected: what runs, and what has ended."""
        self._logs_left_bytes, self._is_connected = LOGS_ON_THE_WAY_BYTES, True
        for kept in self._kept.values():
            kept.log.sent, kept.reported = None, False
        return m.Here(
            running={key: one.process.pid for key, one in self._kept.items() if one.code is None and one.process},
            ended={key: one.code for key, one in self._kept.items() if one.code is not None},
            well=[key for key, one in self._kept.items() if one.well],
            reports={key: one.report for key, one in self._kept.items() if one.report},
        )

    def disconnected(self) -> None:
        """No service is connected: logs and ends are kept until one is."""
        self._is_connected = False

    def start(self, request: m.Start) -> None:
        """Start a process, unless it was started before."""
        key = request.key
        if key in self._kept:
            return
        job, _, worker = key.partition("/")
        logs = self._folder / job / "logs"
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = self._kept[key] = NodeProcess(NodeLog(logs / f"{worker}.log", sent=0), slots=frozenset(request.slots))
        folder = Path(request.folder or self._folder / job)
        kept.codeless = request.brought and not self._is_there(folder)
        environment = {**self._environment, **request.environment, MARK: self._mark(key), ENDED: str(kept.end_mark)}
        launch = Launch(tuple(request.command), environment, folder, kept.log.path)
        try:
            kept.remove_files()
            if kept.codeless:
                kept.code, kept.reason = SLOT_GONE, "could not be started: its code is not on the node any more"
            elif kept.slots <= self._held_slots():
                kept.process = self._launcher.start(launch)
            else:
                kept.code = SLOT_GONE
        except OSError as problem:
            kept.code, kept.reason = NOT_STARTED, f"could not be started: {problem.strerror or problem}"
        if kept.process is None:
            kept.log.path.touch()
            kept.log.finish()
            self.send_logs()
            return
        self._write()
        kept.process.begin()
        self._on_started()
        self._reactor.watch(kept.process, lambda: self._over(key))
        self._send(m.Started(key=key, pid=kept.process.pid))

    def follow(self, key: str, offset: int) -> None:
        """Send a process's log from an offset on."""
        if key in self._kept:
            self._kept[key].log.sent = offset

    def forget(self, key: str) -> None:
        """The service knows how a process ended, and has all of its log."""
        kept = self._kept.get(key)
        if kept is not None and kept.code is not None:
            kept.remove_files()
            del self._kept[key]

    def lose_slot(self, slot: str) -> None:
        """A slot has been taken away: what runs there ends."""
        for key, kept in self._kept.items():
            if slot in kept.slots and kept.process is not None and kept.code is None:
                kept.slot_lost = True
                self.send_signal(key, signal.SIGKILL)

    def send_signal(self, key: str, number: signal.Signals) -> None:
        """Send a signal to a process and its group; where the process is not asked, to all that it started, too."""
        kept = self._kept.get(key)
        if kept is not None and kept.process is not None:
            kept.process.signal(number)
            if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
                signal_marked(number, self._mark(key).__eq__)

    def signal_running(self, number: signal.Signals, key: str | None = None) -> None:
        """Send a signal to all processes that run, or to one if it does."""
        for name in list(self._kept) if key is None else [key]:
            if name in self._kept and self._kept[name].code is None:
                self.send_signal(name, number)

    def close(self) -> None:
        """End all processes."""
        for key in self._kept:
            self.send_signal(key, signal.SIGKILL)

    # --- Logs and ends ---

    def allow_logs(self, more_bytes: int) -> None:
        """The service takes this much more of logs."""
        self._logs_left_bytes += more_bytes

    def trim_logs(self) -> None:
        """Keep logs to their size."""
        for kept in self._kept.values():
            kept.log.trim()

    def send_logs(self) -> None:
        """Send what there is of logs, a piece of each in turn, until the service takes no more; and which are over."""
        sending = True
        while sending and self._logs_left_bytes > 0 and self._is_connected:
            sending = False
            for key in list(self._kept):
                sending = self._send_piece(key) or sending
        for key in list(self._kept):
            self._report_end(key)

    def _send_piece(self, key: str) -> bool:
        """Send the next piece of a log, if there is one; then it is the turn of all others."""
        kept = self._kept[key]
        if kept.log.sent is None or self._logs_left_bytes <= 0 or not self._is_connected:
            return False
        offset, piece = kept.log.piece(min(PIECE_BYTES, self._logs_left_bytes))
        if piece:
            self._kept[key] = self._kept.pop(key)
            self._logs_left_bytes -= len(piece)
            self._send(m.Log(key=key, offset=offset, text=piece.decode("latin-1")))
        return bool(piece)

    def _report_end(self, key: str) -> None:
        """Report how a process has ended, once all of its log has been sent."""
        kept = self._kept[key]
        if kept.code is not None and not kept.reported and kept.log.complete and self._is_connected:
            kept.reported = True
            self._send(
                m.Ended(
                    key=key,
                    code=kept.code,
                    reason=kept.reason,
                    well=kept.well,
                    report=kept.report,
                    codeless=kept.codeless,
                )
            )

    def _over(self, key: str) -> None:
        kept = self._kept[key]
        assert kept.process is not None
        code = kept.process.exit_code()
        if code is None:
            return
        self._reactor.unwatch(kept.process)
        self.send_signal(key, signal.SIGKILL)  # whatever it left ends with it
        kept.process.close()
        kept.code, kept.well = SLOT_GONE if kept.slot_lost else code, kept.end_mark.exists()
        with contextlib.suppress(OSError):
            kept.report = report_beside(kept.end_mark).read_text(encoding="utf-8")[:LONGEST_LINE_BYTES]
        kept.log.finish()
        self._write()
        self.send_logs()

    def _mark(self, key: str) -> str:
        """What is in the environment of all that a process starts."""
        return f"{self._folder}/{key}"

    def _write(self) -> None:
        """Write down what runs, for the next agent of this folder."""
        living = [
            {**kept.process.identity, "key": key, "slots": sorted(kept.slots)}
            for key, kept in self._kept.items()
            if kept.process is not None and kept.code is None
        ]
        made = self._folder / f"{PROCESSES}.new"
        made.write_text(json.dumps(living), encoding="utf-8")
        made.replace(self._folder / PROCESSES)


def write_agent(folder: Path, *pids: int | None) -> None:
    """Write down which processes are the agent of a folder, for the next one."""
    named = [identity_of(pid) for pid in pids if pid is not None]
    (folder / SERVER).write_text(json.dumps(named), encoding="utf-8")


def end_leftovers(folder: Path) -> None:
    """An earlier agent of a folder that was killed, or hangs, may have left processes: their slots are ours now."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for one in json.loads((folder / SERVER).read_text(encoding="utf-8")):
            if still_runs(one) and one["pid"] != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one["pid"], signal.SIGKILL)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for one in json.loads((folder / PROCESSES).read_text(encoding="utf-8")):
            end_left(one)
    signal_marked(signal.SIGKILL, lambda mark: mark.startswith(f"{folder}/"))
    for old in folder.iterdir():
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
