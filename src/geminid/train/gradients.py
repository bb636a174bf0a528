"""Gradients of one optimiser step: summed over passes, averaged over workers, weighted by samples.

The user's loop stays as it is: after the ``backward`` of a step's last pass, every ``.grad`` holds the average over all
samples of the step, so clipping, unscaling and stepping mean what they mean on one worker. A parameter that no pass of
any worker used keeps the ``.grad`` that it had, which is None after ``zero_grad()``. During the passes before the last,
``.grad`` holds that pass's own gradient, and what has been summed so far is kept elsewhere: whatever the loop does to
``.grad`` then (clipping, zeroing) loses nothing.

The body of the loop may call ``backward`` several times for one batch, with or without stepping and zeroing in between.
The first ``backward`` of all passes and workers makes one average, the second another, and so on; each is added to what
``.grad`` was before it, as PyTorch does.

With several workers, gradients travel in buckets, each as soon as backward has filled it. A few numbers that the
workers need from each other ride along with the last bucket: those of the ``Agreement``, and which parameters a worker
has used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geminid.train.buckets import Bucket, buckets_for


@dataclass(slots=True)
class _Carried:
    """What the second (third, …) backward of the passes so far has given, and the loss scale that it was taken at."""

    sums: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    loss_scale: Tensor | None = None


class Gradients:
    """The gradients of a model's parameters, over passes and workers.

    ``on_backward`` is called when backward has reached a parameter, ``on_pass`` at its end with the pass's own
    gradients in place, ``before_sending`` when all of a step's are known on this worker and its numbers are to be
    filled in, ``on_step`` when the averages are in place; all of them for the first backward of a pass only. ``failed``
    says why a collective operation failed, if one did: the gradients are then not to be used. Outside of passes
    (``active`` is false) gradients are the script's own.

    Which of the parameters are trained is looked at when a step begins: one that is unfrozen in the middle of a step
    has no gradient until the next. One whose ``requires_grad`` the body of the loop switches off and on counts as
    trained from then on; ``switched`` holds the numbers of those parameters, which all workers must have alike.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        extras: int,
        on_pass: Callable[[], None],
        before_sending: Callable[[Tensor], None],
        on_step: Callable[[], None],
        on_backward: Callable[[], None] = lambda: None,
        wait: Callable[[Any], None] = lambda work: work.wait(),
        loss_scale: Callable[[], Tensor | None] = lambda: None,
        switched: set[int] | None = None,
    ) -> None:
        self._all = list(parameters)
        self._wait = wait
        self.failed: str | None = None
        self.sync_s = 0.0
        self._extras_count = extras
        self._on_pass, self._before_sending, self._on_step = on_pass, before_sending, on_step
        self._on_backward, self._loss_scale = on_backward, loss_scale
        self._switched = switched if switched is not None else set()
        self._own_extras: Tensor | None = None
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[nn.Parameter, Bucket] = {}
        self._hooks: list[tuple[Any, Any]] = []
        self._size = 1
        self._sent = 0
        self._weight, self._first, self._last, self._alone = 1.0, True, True, False
        self._backwards = 0
        self._used: list[bool] = []
        self._before: dict[nn.Parameter, Tensor | None] = {}
        self._carried: dict[int, _Carried] = {}
        self.active = False
        self._queued = False
        self._trigger: nn.Parameter | None = None
        self._look_again()

    # --------------------------------------------------------------------------------------- set-up

    def spread_over(self, size: int) -> None:
        """From now on, average over this many workers of the default process group."""
        self._size, self.failed = size, None
        self._buckets, self._bucket_of, self._own_extras = [], {}, None
        self._trigger = None
        self._hook_all()

    def _is_trained(self) -> list[bool]:
        return [one.requires_grad or number in self._switched for number, one in enumerate(self._all)]

    def _keep_up(self) -> None:
        if self._trained != self._is_trained():
            self._look_again()

    def _look_again(self) -> None:
        """Find out which parameters are trained."""
        self._trained = self._is_trained()
        self.parameters = [one for one, trained in zip(self._all, self._trained, strict=True) if trained]
        self._frozen = [one for one, trained in zip(self._all, self._trained, strict=True) if not trained]
        if not self.parameters:
            raise ValueError("none of the optimizer's parameters requires a gradient: there is nothing to train")
        self._number = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._extras = torch.zeros(self._extras_count + len(self.parameters), device=self.parameters[0].device)
        self.spread_over(self._size)

    def release(self) -> None:
        """Let go of the process group: as long as anything of it is held, peers do not notice that it is left."""
        for bucket in self._buckets:
            bucket.work = None

    def _hook_all(self) -> None:
        self._remove_hooks()
        self._hooks = [self._hooks_of(parameter) for parameter in self.parameters]

    def _remove_hooks(self) -> None:
        for before, after in self._hooks:
            before.remove()
            after.remove()

    def _hooks_of(self, parameter: nn.Parameter) -> tuple[Any, Any]:
        """Hooks around the moment when backward adds to a parameter's gradient."""
        trained = parameter.requires_grad
        parameter.requires_grad_(True)  # PyTorch accepts no hooks on one that is frozen at the moment
        hooks = (
            parameter.register_hook(  # type: ignore[no-untyped-call]
                lambda _: self._comes_to(parameter) if self._backwards else None  # quick in the first backward
            ),
            parameter.register_post_accumulate_grad_hook(self._filled),  # type: ignore[no-untyped-call]
        )
        parameter.requires_grad_(trained)
        return hooks

    def _make_buckets(self) -> None:
        count = self._extras_count + len(self.parameters)
        self._buckets, rides_along = buckets_for(self.parameters, count)
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        if not rides_along:
            self._own_extras = torch.zeros(count, device=self.parameters[0].device)

    # --------------------------------------------------------------------------------------- one pass

    def begin_pass(self, *, weight: float, first: bool, last: bool, alone: bool = False) -> None:
        """The next backward belongs to this pass of a step; ``weight`` is its share of the step's samples."""
        if first:
            self._keep_up()
            self._used = [False] * len(self.parameters)
            self._carried.clear()
        if not self._last:  # the pass before only accumulated: its gradient is kept elsewhere
            for parameter in self.parameters:
                parameter.grad = None
        self._weight, self._first, self._last, self._alone = weight, first, last, alone
        self._backwards, self.active = 0, True
        self._queued = False  # a backward that failed never came to its end
        self._before.clear()
        if len(self._hooks) < len(self.parameters) and self._needs_buckets:
            self._hook_all()
        self.sync_s = 0.0
        if first and self._needs_buckets:
            if not self._buckets:
                self._make_buckets()
            self._empty_buckets()
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.parameters), None

    def _empty_buckets(self) -> None:
        for bucket in self._buckets:
            bucket.flat.zero_()

    def end_pass(self) -> None:
        """The loop's body is through with the pass: what backward does from now on is none of ours."""
        if self.active:
            for number, parameter in enumerate(self._all):
                if self._trained[number] != parameter.requires_grad:
                    self._switched.add(number)
        self.active = False

    def check_backwards(self) -> None:
        """The loop's body is through with a step: make sure that all of its gradients were used.

        Raises:
            RuntimeError: there was a backward in an earlier pass that the last one had no counterpart of.
        """
        if self._carried and self.failed is None:
            raise RuntimeError(
                f"backward() was called {max(self._carried) + 1} times for one part of a step and "
                f"{self._backwards} times for its last part: call it as often in every pass of a step (decide by "
                "run.step, which is the same in all of them, and not by a count of batches)"
            )

    @property
    def _spread(self) -> bool:
        return self._size > 1 and not self._alone

    @property
    def _needs_buckets(self) -> bool:
        return self._spread or not (self._first and self._last)

    def _comes_to(self, parameter: nn.Parameter) -> None:
        """Backward is about to add to this parameter's gradient.

        From the second backward of a pass on, what it adds is needed apart from what is averaged already.
        """
        further = self.active and self._backwards > 0 and self._needs_buckets and self.failed is None
        if further and parameter not in self._before:
            self._before[parameter] = parameter.grad
            parameter.grad = None

    def _filled(self, parameter: nn.Parameter) -> None:
        """Backward has come past this parameter."""
        if not self.active:
            return
        if not self._queued:
            self._queued = True
            if not self._backwards:
                self._on_backward()
            if self._trigger is None:
                self._trigger = parameter
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if self._last and self._spread and not self._backwards and self.failed is None:
            self._bucket_of[parameter].missing -= 1
            while self._sent < len(self._buckets) - 1 and self._buckets[self._sent].missing <= 0:
                self._add_and_send(self._buckets[self._sent])

    def _add_and_send(self, bucket: Bucket) -> None:
        bucket.add(self._weight)
        self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        self._sent += 1
        try:
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        except RuntimeError as problem:
            self._fail(problem)

    def _end_of_backward(self) -> None:
        self._queued = False
        if len(self._hooks) > 1 and not self._needs_buckets and self._size == 1 and self._trigger is not None:
            self._remove_hooks()  # without buckets it is enough to know when backward has ended
            self._hooks = [self._hooks_of(self._trigger)]
        self.complete()

    @torch.no_grad()
    def complete(self) -> None:
        """Finish the pass: after backward, or before a step whose backward did not come past us."""
        if self.failed is not None:
            return
        for parameter in self._frozen:
            if parameter.requires_grad:
                parameter.grad = None
        self._backwards += 1
        if self._backwards > 1:
            if self._needs_buckets:
                self._complete_further(self._backwards - 1)
            return
        self._on_pass()
        if self._needs_buckets:
            self._used = [
                used or parameter.grad is not None for used, parameter in zip(self._used, self.parameters, strict=True)
            ]
        if not self._last:
            for bucket in self._buckets:
                bucket.add(self._weight)
            return
        if self._spread:
            self._average()
        elif self._needs_buckets:
            for bucket in self._buckets:
                bucket.add(self._weight)
                self._put_back(bucket, self._used)
        if self.failed is None:
            self._on_step()

    # --------------------------------------------------------------------------------------- averages

    def _average(self) -> None:
        begin = perf_counter()
        while self._sent < len(self._buckets) - 1 and self.failed is None:
            self._add_and_send(self._buckets[self._sent])
        self._before_sending(self._numbers[: self._extras_count])
        self._buckets[-1].add(self._weight)
        used = self._exchange(self._used)
        self.sync_s = perf_counter() - begin
        if self.failed is not None:
            return
        self._extras.copy_(self._numbers)
        for bucket in self._buckets:
            self._put_back(bucket, used)

    @property
    def _numbers(self) -> Tensor:
        """Where the numbers that ride along are filled in, and summed."""
        return self._own_extras if self._own_extras is not None else self._buckets[-1].extras

    def _exchange(self, used: list[bool]) -> list[bool]:
        """Sum what the buckets hold over all workers; which parameters any of them has used."""
        numbers = self._numbers
        if all(used):
            numbers[self._extras_count :] = 1.0
        else:
            numbers[self._extras_count :] = torch.tensor(used, dtype=numbers.dtype)
        while self._sent < len(self._buckets) and self.failed is None:
            self._send(self._buckets[self._sent])
        try:
            if self._own_extras is not None and self.failed is None:
                dist.all_reduce(self._own_extras)
            for bucket in self._buckets:
                if bucket.work is not None:
                    self._wait(bucket.work)
                    bucket.work = None
        except RuntimeError as problem:
            self._fail(problem)
        if self.failed is not None or all(used):  # without asking the device
            return used
        return [count > 0.0 for count in numbers[self._extras_count :].tolist()]

    def exchange_numbers(self) -> None:
        """Have the workers' numbers without gradients, by the very operations of a step.

        So whoever is in a step meanwhile, because it does not do what the others do, gets to see them.
        """
        self._keep_up()
        if not self._buckets:
            self._make_buckets()
        self._empty_buckets()
        self._before_sending(self._numbers[: self._extras_count])
        self._sent = 0
        self._exchange([False] * len(self.parameters))
        if self.failed is None:
            self._extras.copy_(self._numbers)

    def _put_back(self, bucket: Bucket, used: list[bool]) -> None:
        """Give every parameter its average; one that nobody used keeps what it has."""
        views, gradients = [], []
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            if used[self._number[parameter]]:
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                views.append(view)
                gradients.append(parameter.grad)
        if gradients:
            torch._foreach_copy_(gradients, views)

    # --------------------------------------------------------------------------------------- further backwards

    def _complete_further(self, number: int) -> None:
        """A pass's second, third, … backward has ended; ``.grad`` holds what it alone gave where it gave something."""
        before, self._before = self._before, {}
        given = {parameter: parameter.grad for parameter in before if parameter.grad is not None}
        if self._last:
            added = self._average_further(given, self._carried.pop(number, _Carried()))
        else:
            self._carry(given, self._carried.setdefault(number, _Carried()))
            added = given
        for parameter, gradient in added.items():
            had = before.get(parameter, parameter.grad)
            if had is not None:
                parameter.grad = had.add_(gradient)
            elif parameter.grad is not gradient:
                parameter.grad = gradient.clone()

    def _carry(self, given: dict[nn.Parameter, Tensor], carried: _Carried) -> None:
        """Keep what a pass that only accumulates has given, for the last pass of the step."""
        scale = self._loss_scale()
        carried.loss_scale = scale.clone() if scale is not None else None
        for parameter, gradient in given.items():
            if parameter in carried.sums:
                carried.sums[parameter].add_(gradient, alpha=self._weight)
            else:
                carried.sums[parameter] = gradient * self._weight

    def _average_further(self, given: dict[nn.Parameter, Tensor], carried: _Carried) -> dict[nn.Parameter, Tensor]:
        """The averages over all passes and workers, of the parameters that any of them has used."""
        self._empty_buckets()
        view_of = {
            one: view for bucket in self._buckets for one, view in zip(bucket.parameters, bucket.views, strict=True)
        }
        scale = self._loss_scale()
        for parameter, total in carried.sums.items():
            if scale is not None and carried.loss_scale is not None:  # it may have changed at the optimiser's last step
                total = total * (scale / carried.loss_scale).to(total.device, total.dtype)
            view_of[parameter].copy_(total)
        for parameter, gradient in given.items():
            view_of[parameter].add_(gradient, alpha=self._weight)
        used = [parameter in given or parameter in carried.sums for parameter in self.parameters]
        if self._spread:
            self._sent = 0
            used = self._exchange(used)
        if self.failed is not None:
            return {}
        return {one: view_of[one] for one, was_used in zip(self.parameters, used, strict=True) if was_used}

    def _fail(self, problem: Exception) -> None:
        lines = str(problem).strip().splitlines()
        self.failed = lines[0] if lines else type(problem).__name__

    @property
    def numbers(self) -> Tensor:
        """What the workers sent along with the last step, summed."""
        return self._extras[: self._extras_count]

    @property
    def pass_is_last(self) -> bool:
        """Whether the pass under way ends a step."""
        return self._last

    @property
    def finished_pass(self) -> bool:
        """Whether the pass under way has been through backward."""
        return self._backwards > 0
