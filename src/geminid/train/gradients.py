"""Gradients of one optimiser step: summed over passes, averaged over workers, weighted by samples or by tokens.

The user's loop stays as it is: after the ``backward`` of a step's last pass, every ``.grad`` holds the average over all
samples of the step, so clipping, unscaling and stepping mean what they mean on one worker. A parameter that no pass of
any worker used keeps the ``.grad`` that it had, which is None after ``zero_grad()``. During the passes before the last,
``.grad`` holds that pass's own gradient, and the sum so far is kept elsewhere: whatever the loop does to ``.grad`` then
(clipping, zeroing) loses nothing. The body of the loop may call ``backward`` several times for one batch
(``further_backwards``), with or without stepping and zeroing in between, or hold several together as one gradient.

With several workers, gradients travel in buckets, each as soon as backward has filled it, and the numbers of the
``Agreement`` travel with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from geminid.clock import Clock
from geminid.train.buckets import GradientSums
from geminid.train.further_backwards import FurtherBackwards
from geminid.train.trained import TrainedParameters


class BackwardListener(Protocol):
    """What is informed of the first backward of every pass."""

    def backward_begins(self) -> None:
        """Backward has reached the first parameter."""

    def pass_is_through(self) -> None:
        """Backward has ended, and the pass's own gradients are in place."""

    def before_sending(self, numbers: Tensor) -> None:
        """All gradients of a step are known on this worker: fill in the numbers to send along with them."""

    def averages_are_in_place(self) -> None:
        """The gradients of a whole step are in place."""


class _Hooks:
    """Autograd hooks on parameters, around the moment when backward adds to a gradient.

    Where it is enough to know that backward is under way, only the parameter that it reaches first has hooks.
    """

    def __init__(self, before: Callable[[nn.Parameter], None], after: Callable[[nn.Parameter], None]) -> None:
        self._before, self._after = before, after
        self._handles: list[tuple[Any, Any]] = []

    @property
    def count(self) -> int:
        """How many parameters have hooks."""
        return len(self._handles)

    def put_on(self, parameters: Sequence[nn.Parameter]) -> None:
        """Have hooks on these parameters, and on no others."""
        for before, after in self._handles:
            before.remove()
            after.remove()
        self._handles = [self._put_on(parameter) for parameter in parameters]

    def _put_on(self, parameter: nn.Parameter) -> tuple[Any, Any]:
        trained = parameter.requires_grad
        parameter.requires_grad_(True)  # PyTorch accepts no hooks on a parameter that is frozen
        handles = (
            parameter.register_hook(lambda _: self._before(parameter)),  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(self._after),  # type: ignore[no-untyped-call]
        )
        parameter.requires_grad_(trained)
        return handles


@dataclass(slots=True)
class Weights:
    """The weight of the pass under way, the sum of the weights of a step's ``passes``, and how many the script gave.

    Those that it did not give are shares of the step's samples, and add up to 1 over all workers. ``is_given`` says
    whether it gave the one of the pass under way.
    """

    current: float = 1.0
    is_given: bool = False
    total: float = 0.0
    given: int = 0
    passes: int = 0

    def count(self) -> None:
        """The pass under way is through backward.

        Raises:
            RuntimeError: the script gave the weights of some passes of a step only.
        """
        self.passes += 1
        self.given += self.is_given
        if self.given not in (0, self.passes):
            raise RuntimeError(
                f"run.weight() was called in {self.given} of {self.passes} passes of a step: call it in every pass"
            )
        self.total += self.current
        self.is_given = False


class Gradients:
    """The gradients of a model's parameters, over passes and workers.

    ``failed`` says why a collective operation failed, if one did: the gradients must not be used then. Outside of
    passes (``active`` is false) gradients are the script's own. Which parameters are trained is looked at when a step
    begins: one that is unfrozen in the middle of a step has no gradient until the next. ``sync_s`` is how long the last
    pass waited for other workers.
    """

    def __init__(
        self,
        trained: TrainedParameters,
        listener: BackwardListener,
        clock: Clock,
        *,
        extras: int,
        scaler: Any,
        wait: Callable[[Any], None],
    ) -> None:
        self._trained, self._listener, self._clock = trained, listener, clock
        self._extras, self._wait = extras, wait
        self._further = FurtherBackwards(scaler)
        self.hooks = _Hooks(self._reaches, self._filled)
        self._sums: GradientSums | None = None
        self._size = 1
        self.active = False
        self.sync_s = 0.0
        self._weights, self._first, self._last, self._alone = Weights(), True, True, False
        self._used: list[bool] = []
        self._backwards, self._queued, self._held = 0, False, False
        self._trigger: nn.Parameter | None = None
        self.spread_over(1)

    # --------------------------------------------------------------------------------------- set-up

    def spread_over(self, size: int) -> None:
        """From now on, average over this many workers of the default process group."""
        if not self._trained.current:
            raise ValueError("none of the optimizer's parameters requires a gradient: there is nothing to train")
        self._size, self._sums, self._trigger = size, None, None
        self.hooks.put_on(self._trained.current)

    def release(self) -> None:
        """Drop all references to the process group."""
        if self._sums is not None:
            self._sums.release()

    def _have_sums(self) -> GradientSums:
        if self._sums is None:
            self._sums = GradientSums(self._trained.current, self._extras, self._wait)
        return self._sums

    # --------------------------------------------------------------------------------------- one pass

    def begin_pass(self, *, weight: float, first: bool, last: bool, alone: bool = False) -> None:
        """The next backward belongs to this pass of a step; ``weight`` is its share of the step's samples."""
        if first:
            if self._trained.update():
                self.spread_over(self._size)
            self._used = [False] * len(self._trained.current)
            self._further.begin_step()
            self._weights = Weights()
        if not self._last:  # the pass before only accumulated: its gradient is kept elsewhere
            for parameter in self._trained.current:
                parameter.grad = None
        self._weights.current, self._first, self._last, self._alone = weight, first, last, alone
        self._backwards, self.active = 0, True
        self._queued = self._held = False  # a backward that failed has not reached its end
        self._further.begin_pass()
        self.sync_s = 0.0
        if self._needs_sums:
            if self.hooks.count < len(self._trained.current):
                self.hooks.put_on(self._trained.current)
            if first:
                self._have_sums().clear()
        if self._sums is not None:
            self._sums.begin_pass()

    def end_pass(self) -> None:
        """The loop's body is through with the pass: what backward does from now on is the script's own."""
        if self.active:
            self._trained.note_switched()
        self.active = False

    def weigh(self, weight: float) -> None:
        """Give the pass under way this weight instead of its share of the samples; all passes of a step need one.

        Raises:
            RuntimeError: the pass has been through backward.
        """
        if self._backwards or self._queued:
            raise RuntimeError("run.weight() must be called before backward(), which uses the weight")
        self._weights.current, self._weights.is_given = weight, True

    @property
    def weighed(self) -> bool:
        """Whether the script has given the weights of the step's passes."""
        return self._weights.given > 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """What all backwards within give together is one gradient, which is averaged at the end."""
        if not self.active or self._held:
            yield
            return
        self._held = True
        try:
            yield
        except BaseException:
            self._held = False
            raise
        self._held = False
        self.complete()

    def check_backwards(self) -> None:
        """The loop's body is through with a step: make sure that all of its gradients were used.

        Raises:
            RuntimeError: there was a backward in an earlier pass that has no counterpart in the last one.
        """
        if self._further.most_carried and self.failed is None:
            raise RuntimeError(
                f"backward() was called {self._further.most_carried} times for one part of a step and "
                f"{self._backwards} times for its last part: call it as often in every pass of a step (decide by "
                "run.step, which is the same in all of them, and not by a count of batches)"
            )

    @property
    def failed(self) -> str | None:
        """Why a collective operation failed."""
        return self._sums.failed if self._sums is not None else None

    @property
    def numbers(self) -> Tensor:
        """What the workers sent along with the last step, summed."""
        return self._have_sums().received

    @property
    def pass_is_last(self) -> bool:
        """Whether the pass under way ends a step."""
        return self._last

    @property
    def finished_pass(self) -> bool:
        """Whether the pass under way has been through backward."""
        return self._backwards > 0

    @property
    def _spread(self) -> bool:
        return self._size > 1 and not self._alone

    @property
    def _needs_sums(self) -> bool:
        return self._spread or not (self._first and self._last)

    # --------------------------------------------------------------------------------------- backward

    def _reaches(self, parameter: nn.Parameter) -> None:
        """Backward is about to add to this parameter's gradient."""
        if self._backwards and self.active and self._needs_sums and self.failed is None:
            self._further.set_aside(parameter)

    def _filled(self, parameter: nn.Parameter) -> None:
        """Backward has added to this parameter's gradient."""
        if not self.active:
            return
        if self._held:
            return
        if not self._queued:
            self._queued = True
            if not self._backwards:
                self._listener.backward_begins()
            if self._trigger is None:
                self._trigger = parameter
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if self._last and self._spread and not self._backwards and self.failed is None:
            self._have_sums().add_filled(parameter, self._weights.current)

    def _end_of_backward(self) -> None:
        self._queued = False
        if self.hooks.count > 1 and not self._needs_sums and self._size == 1 and self._trigger is not None:
            self.hooks.put_on([self._trigger])  # without sums it is enough to know when backward has ended
        self.complete()

    @torch.no_grad()
    def complete(self) -> None:
        """Finish the pass: after backward, or before a step whose gradients were not made by backward."""
        if self.failed is not None:
            return
        for parameter in self._trained.frozen:
            if parameter.requires_grad:
                parameter.grad = None
        self._backwards += 1
        if self._backwards > 1:
            self._complete_further(self._backwards - 1)
            return
        self._listener.pass_is_through()
        self._weights.count()
        if self._needs_sums:
            trained = self._trained.current
            self._used = [used or one.grad is not None for used, one in zip(self._used, trained, strict=True)]
            self._add_to_sums(self._have_sums())
        if self._last and self.failed is None:
            self._listener.averages_are_in_place()

    def _complete_further(self, number: int) -> None:
        if self._needs_sums and self._last:
            close = self._exchange if self._spread else self._close
            self._further.average(number, self._weights.current, self._trained.current, self._have_sums(), close)
        elif self._needs_sums:
            self._further.carry(number, self._weights.current)

    def _add_to_sums(self, sums: GradientSums) -> None:
        """Add the pass's gradients; in the last pass, put the averages in their place."""
        used = self._used
        if self._last and self._spread:
            begin_s = self._clock.monotonic_s()
            sums.add_rest(self._weights.current)
            self._listener.before_sending(sums.to_send)
            used = self._exchange(used)
            self.sync_s = self._clock.monotonic_s() - begin_s
        else:
            sums.add(self._weights.current)
            if self._last:
                self._close(used)
        if self._last and sums.failed is None:
            sums.write_back(used)

    def _exchange(self, used: list[bool]) -> list[bool]:
        """Sum over all workers, and make averages of sums; which parameters any worker has used."""
        sums = self._have_sums()
        used = sums.exchange(used, self._weights.total)
        if self.weighed and sums.failed is None:
            sums.divide_by_weight()
        return used

    def _close(self, used: list[bool]) -> list[bool]:
        """Make averages of the sums over the passes of one worker."""
        if self.weighed:
            self._have_sums().set_weight(self._weights.total)
            self._have_sums().divide_by_weight()
        return used

    def exchange_numbers(self) -> None:
        """Exchange the workers' numbers without gradients, by the same operations as in a step.

        A worker that is in a step at the same time, because it does not do what the others do, receives them too.
        """
        if self._trained.update():
            self.spread_over(self._size)
        sums = self._have_sums()
        sums.clear()
        self._listener.before_sending(sums.to_send)
        sums.begin_pass()
        sums.exchange([False] * len(self._trained.current), 0.0)
