"""What a worker is doing, for its supervisor to see: phases, how long they usually take, and signs of life.

Most of a training step is known to the library: loading, the model's forward, backward, the optimiser's step. How long
these take is known after a few passes, and what takes far longer hangs. In between, the script does what it likes:
calls of the model show that it lives then, other things that it does with PyTorch, reading and writing files, and
``run.report``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from geminid.supervise.protocol import Phase
from geminid.train.agent import Agent

#: What belongs to a pass and should take about as long as it did before; waiting for others does not.
PARTS: tuple[Phase, ...] = ("loading", "forward", "computing", "stepping")


#: Reading and writing so much between two heartbeats shows that somebody loads or saves something.
LIVELY_BYTES = 1 << 16


class UsualTime:
    """The longest that any part of a pass took, after the first few passes (which may allocate, or tune themselves)."""

    UNUSUAL_PASSES = 4

    def __init__(self) -> None:
        self._passes, self._longest_s = 0, 0.0

    def add(self, seconds: float) -> None:
        """A part of a pass took so long."""
        if self._passes >= self.UNUSUAL_PASSES:
            self._longest_s = max(self._longest_s, seconds)

    def end_pass(self) -> None:
        """A pass is over."""
        self._passes += 1

    def expect(self, growth: float) -> None:
        """From now on a pass has so many times as many samples."""
        self._longest_s *= max(1.0, growth)

    @property
    def seconds(self) -> float | None:
        """How long parts of a pass take at most, if that is known."""
        return self._longest_s if self._passes > self.UNUSUAL_PASSES else None


class _Hook:
    """Calls a function whenever a module is called.

    Copies of the module keep it (a moving average of a model lives as the model does), pickled ones do not, and what
    compiles the module sees nothing of it.
    """

    def __init__(self, function: Callable[[nn.Module], None]) -> None:
        self._function = function

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._function(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return self

    def __reduce__(self) -> Any:
        return _idle_hook, ()


def _idle_hook() -> _Hook:
    return _Hook(lambda module: None)


class Watch:
    """Says what the training thread is doing. Without an agent there is nobody to tell.

    ``in_pass`` says whether a pass is under way, in which calls of the model are training's; ``leads`` whether this
    worker may do more than others in the body of the loop.
    """

    def __init__(self, agent: Agent | None, *, in_pass: Callable[[], bool], leads: Callable[[], bool]) -> None:
        self._agent, self._in_pass, self._leads = agent, in_pass, leads
        self._usual = UsualTime()
        self._phase: Phase = "waiting"
        self._since_s = monotonic()
        self._calls: list[Phase | None] = []
        self._compiling_in: Phase | None = None
        self._thread = 0
        self._undo: list[Callable[[], None]] = []
        self._moved_bytes, self._in_torch = 0, _in_torch(None)

    def begin(self, model: nn.Module) -> None:
        """Training begins, in this thread: watch the model, and the compiler if there is one."""
        if self._agent is None:
            return
        self._thread = threading.get_ident()
        self._agent.before_beat = self._look
        if not isinstance(model, torch.jit.ScriptModule):
            before = model.register_forward_pre_hook(_Hook(self._called))
            after = model.register_forward_hook(_Hook(self._returned), always_call=True)
            self._undo += [before.remove, after.remove]
        compiler = sys.modules.get("torch._dynamo.callback")
        if compiler is not None:
            handler = compiler.callback_handler
            self._join_in(handler.start_callbacks, self._compiling)
            self._join_in(handler.end_callbacks, self._compiled)

    def _join_in(self, callbacks: list[Any], own: Any) -> None:
        callbacks.append(own)
        self._undo.append(lambda: callbacks.remove(own) if own in callbacks else None)

    def end(self) -> None:
        """Training is over: leave the model as it was."""
        if self._agent is not None:
            self._agent.before_beat = lambda: None
        while self._undo:
            self._undo.pop()()

    def enter(self, phase: Phase) -> None:
        """Do this from now on."""
        if self._agent is None:
            return
        now = monotonic()
        if self._phase in PARTS or (self._phase == "training" and not self._leads()):
            self._usual.add(now - self._since_s)
        self._phase, self._since_s = phase, now
        self._agent.enter(phase)

    def alive(self) -> None:
        """Something shows that the script lives, where nobody knows how long it should take."""
        if self._agent is not None and self._phase in ("training", "between"):
            self._agent.enter(self._phase)

    def end_pass(self) -> None:
        """A pass is over."""
        self._usual.end_pass()
        self._calls.clear()
        self._tell()

    def expect(self, growth: float) -> None:
        """From now on a pass has so many times as many samples."""
        self._usual.expect(growth)
        self._tell()

    def _tell(self) -> None:
        if self._agent is not None:
            self._agent.usual_s = self._usual.seconds

    # ------------------------------------------------------------------------------------------- signs of life

    def _called(self, model: nn.Module) -> None:
        """The model is called: to train, or for what only the script knows."""
        if threading.get_ident() != self._thread:
            return
        self.alive()
        trains = model.training and torch.is_grad_enabled() and self._in_pass() and self._phase == "training"
        self._calls.append(self._phase if trains else None)
        if trains:
            self.enter("forward")

    def _returned(self, model: nn.Module) -> None:
        if threading.get_ident() != self._thread:
            return
        before = self._calls.pop() if self._calls else None
        if before is not None:
            self.enter(before)
        self.alive()

    def _look(self) -> None:
        """Look what the training thread is at, from the agent's thread."""
        moved, place = _bytes_moved(), _in_torch(sys._current_frames().get(self._thread))
        if moved - self._moved_bytes > LIVELY_BYTES or (place and place != self._in_torch):
            self.alive()
        self._moved_bytes, self._in_torch = moved, place

    def _compiling(self, arguments: Any) -> None:
        self._compiling_in = self._phase
        self.enter("compiling")

    def _compiled(self, arguments: Any) -> None:
        before, self._compiling_in = self._compiling_in, None
        if before is not None and self._phase == "compiling":
            self.enter(before)


def _bytes_moved() -> int:
    """How much this process has read and written, where that is counted."""
    try:
        fields = Path("/proc/self/io").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) + int(fields[3])


def _in_torch(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """Where in PyTorch a thread is: whoever hangs there is always at the same place."""
    found = []
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch."):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
