"""How the script's process ends: by signal, by an exception, or because it is through."""

from __future__ import annotations

import atexit
import dis
import inspect
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from geminid.supervise import protocol
from geminid.train.agent import NoSupervisor
from geminid.train.session import Session
from geminid.train.shutdown import STOPPED_EXIT_CODE
from geminid.train.storage import AllDamaged, AllGone, reason


class ScriptEnd:
    """Saves and reports what is left to when the script ends. ``session`` is its training, once it is prepared."""

    def __init__(self, agent: NoSupervisor, checkpoints: Path | str | None) -> None:
        self._agent, self._checkpoints = agent, checkpoints
        self.session: Session | None = None
        self._failed = self._left_early = False
        self._loop_frame: FrameType | None = None

    def watch(self) -> None:
        """From now on, act when the process ends."""
        self._notice_failure()
        atexit.register(self.end)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def leave_loop(self, session: Session, generator: FrameType) -> None:
        """The loop over a generator of ``Run`` was left early, by choice or by a failure."""
        self._left_early, self._loop_frame = session.leave(), _calling_frame(generator)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Save and stop at the next boundary; at once if training has not begun."""
        self._agent.orders.terminated = True
        if self.session is None or not self.session.progress.training:
            raise SystemExit(STOPPED_EXIT_CODE)

    def end(self) -> None:
        """The script has ended: save if its loop was left by choice, report the end of training, and disconnect."""
        failure = self._conclude() if self.session is not None and not self._failed else None
        if failure is not None:
            print(f"geminid: error: {failure}", file=sys.stderr, flush=True)
            self._agent.send(protocol.Failed(reason=failure))
        self._agent.close()
        if failure is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the only way to make a script fail that has ended

    def _conclude(self) -> str | None:
        """Save what is unsaved and report the end of training; the reason, if that failed."""
        session = self.session
        assert session is not None
        saver = session.worker.saver
        problem = saver.save_kept() if saver is not None else None
        if problem is not None:
            return f"the last state was not saved in {self._checkpoints}: {reason(problem)}"
        try:
            if self._left_early:
                session.end_early(cut_short=_was_raised_through(self._loop_frame))
        except RuntimeError as different:
            return str(different)
        return None

    def _notice_failure(self) -> None:
        """Report an exception that ends the script to the supervisor, besides the usual traceback."""
        usual = sys.excepthook

        def hook(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            lines = str(problem).strip().splitlines()
            what = f"{kind.__name__}: {lines[0][:300]}" if lines else kind.__name__
            hold = isinstance(problem, AllDamaged | AllGone)
            self._agent.send(protocol.Failed(reason=lines[0] if hold else what, hold=hold))
            usual(kind, problem, trace)

        sys.excepthook = hook


def _calling_frame(generator: FrameType) -> FrameType | None:
    """The frame of the loop over a generator; generators in between are skipped."""
    frame = generator.f_back
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    return frame


def _was_raised_through(frame: FrameType | None) -> bool:
    """Whether a frame that has ended was left by an exception (such as SystemExit)."""
    if frame is None:
        return False
    return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
