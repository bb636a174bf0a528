"""What a worker is doing, for its supervisor: phases, how long they usually take, and signs of life.

Most of a training step is known to the library: loading, the model's forward, backward, the optimiser's step. After a
few passes it knows how long these take, and one that takes far longer hangs. The rest is the script's own code, of any
duration: calls of the model, other use of PyTorch, file I/O and ``run.report`` show that it makes progress.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from geminid.supervise.protocol import Phase
from geminid.train.activity import Activity
from geminid.train.group_view import GroupView

#: The phases of a pass that take about the same time in every pass. Waiting for other workers does not.
REGULAR_PHASES: tuple[Phase, ...] = ("loading", "forward", "computing", "stepping")

#: The phases in which the script's own code runs, whose duration is not known.
SCRIPT_PHASES: tuple[Phase, ...] = ("training", "between")

#: Reading and writing this many bytes between two heartbeats is a sign of life.
LIVELY_BYTES = 1 << 16


class UsualTime:
    """The longest that any part of a pass took, after the first few passes, which are slower than usual."""

    #: How many passes are not counted.
    UNUSUAL_PASSES = 4

    def __init__(self) -> None:
        self._passes, self._longest_s = 0, 0.0

    def add(self, seconds: float) -> None:
        """A part of a pass took this long."""
        if self._passes >= self.UNUSUAL_PASSES:
            self._longest_s = max(self._longest_s, seconds)

    def end_pass(self) -> None:
        """A pass is over."""
        self._passes += 1

    def expect(self, growth: float) -> None:
        """From now on a pass has ``growth`` times as many samples."""
        self._longest_s *= max(1.0, growth)

    @property
    def seconds(self) -> float | None:
        """How long parts of a pass take at most, if that is known."""
        return self._longest_s if self._passes > self.UNUSUAL_PASSES else None


class _Hook:
    """Calls a function whenever a module is called.

    Copies of the module keep it (calls of a model's moving average are signs of life too), pickled ones do not, and a
    compiler does not see it.
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
    """Records what the training thread is doing. Without an ``activity`` (no supervisor) it does nothing.

    ``in_pass`` says whether a pass is under way, in which calls of the model are part of training.
    """

    def __init__(self, activity: Activity | None, group: GroupView) -> None:
        self._activity, self._group = activity, group
        self.in_pass = False
        self._usual = UsualTime()
        self._calls: list[Phase | None] = []
        self._compiling_in: Phase | None = None
        self._thread = 0
        self._undo: list[Callable[[], None]] = []
        self._moved_bytes, self._in_torch = 0, _in_torch(None)

    def begin(self, model: nn.Module) -> None:
        """Training begins, in this thread: watch the model, and the compiler if there is one."""
        if self._activity is None:
            return
        self._thread = threading.get_ident()
        self._activity.before_heartbeat = self._look
        for part in model.values() if type(model) is nn.ModuleDict else [model]:  # several models
            if not isinstance(part, torch.jit.ScriptModule):
                before = part.register_forward_pre_hook(_Hook(self._called))
                after = part.register_forward_hook(_Hook(self._returned), always_call=True)
                self._undo += [before.remove, after.remove]
        compiler = sys.modules.get("torch._dynamo.callback")
        if compiler is not None:
            handler = compiler.callback_handler
            self._register(handler.start_callbacks, self._compiling)
            self._register(handler.end_callbacks, self._compiled)

    def _register(self, callbacks: list[Any], own: Any) -> None:
        callbacks.append(own)
        self._undo.append(lambda: callbacks.remove(own) if own in callbacks else None)

    def end(self) -> None:
        """Training is over: leave the model as it was."""
        if self._activity is not None:
            self._activity.before_heartbeat = lambda: None
        while self._undo:
            self._undo.pop()()

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        activity = self._activity
        if activity is None:
            return
        before = activity.phase
        taken_s = activity.enter(phase)
        if before in REGULAR_PHASES or (before == "training" and not self._group.leads):
            self._usual.add(taken_s)

    def show_life(self) -> None:
        """Something shows that the script makes progress, in a phase whose duration is not known."""
        if self._activity is not None and self._activity.phase in SCRIPT_PHASES:
            self._activity.show_life()

    def end_pass(self) -> None:
        """A pass is over."""
        self._usual.end_pass()
        self._calls.clear()
        self._update_usual()

    def expect(self, growth: float) -> None:
        """From now on a pass has ``growth`` times as many samples."""
        self._usual.expect(growth)
        self._update_usual()

    def _update_usual(self) -> None:
        if self._activity is not None:
            self._activity.usual_s = self._usual.seconds

    # ------------------------------------------------------------------------------------------- signs of life

    def _called(self, model: nn.Module) -> None:
        """The model is called: to train, or for the script's own purposes."""
        if threading.get_ident() != self._thread or self._activity is None:
            return
        self.show_life()
        phase = self._activity.phase
        trains = model.training and torch.is_grad_enabled() and self.in_pass and phase == "training"
        self._calls.append(phase if trains else None)
        if trains:
            self.enter("forward")

    def _returned(self, model: nn.Module) -> None:
        if threading.get_ident() != self._thread:
            return
        before = self._calls.pop() if self._calls else None
        if before is not None:
            self.enter(before)
        self.show_life()

    def _look(self) -> None:
        """Look for signs of life of the training thread, from the agent's thread."""
        moved, position = _bytes_moved(), _in_torch(sys._current_frames().get(self._thread))
        if moved - self._moved_bytes > LIVELY_BYTES or (position and position != self._in_torch):
            self.show_life()
        self._moved_bytes, self._in_torch = moved, position

    def _compiling(self, arguments: Any) -> None:
        if self._activity is not None:
            self._compiling_in = self._activity.phase
            self.enter("compiling")

    def _compiled(self, arguments: Any) -> None:
        before, self._compiling_in = self._compiling_in, None
        if before is not None and self._activity is not None and self._activity.phase == "compiling":
            self.enter(before)


def _bytes_moved() -> int:
    """How much this process has read and written; 0 where the system does not count it."""
    try:
        fields = Path("/proc/self/io").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) + int(fields[3])


def _in_torch(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """Where in PyTorch a thread is: a thread that hangs there stays in the same position."""
    found = []
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch."):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
