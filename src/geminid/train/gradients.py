"""Gradients of one optimiser step: summed over passes, averaged over workers, weighted by samples.

The user's loop stays as it is: after the ``backward`` of a step's last pass, every ``.grad`` holds the average over all
samples of the step, so clipping, unscaling and stepping mean what they mean on one worker. During the passes before,
``.grad`` holds that pass's own gradient, and what has been summed so far is kept elsewhere: whatever the loop does to
``.grad`` then (clipping, zeroing) loses nothing.

With several workers, gradients travel in buckets, each as soon as backward has filled it. A few numbers that the
workers need from each other ride along with the last bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

#: Buckets are sent when they hold this much; the last of them (the model's first layers) waits for the end anyway.
BUCKET_BYTES = 8 << 20


class _Bucket:
    """Some parameters' gradients, side by side in one vector; with room for further numbers at its end."""

    def __init__(self, parameters: Sequence[nn.Parameter], extras: int) -> None:
        self.parameters = parameters
        first = parameters[0]
        length = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(length + extras, dtype=first.dtype, device=first.device)
        self.extras = self.flat[length:]
        self.views: list[Tensor] = []
        begin = 0
        for parameter in parameters:
            self.views.append(self.flat[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()
        self.missing = len(parameters)
        self.work: Any = None

    def add(self, weight: float) -> None:
        """Add the parameters' gradients, weighted."""
        pairs = [
            (view, parameter.grad)
            for view, parameter in zip(self.views, self.parameters, strict=True)
            if parameter.grad is not None
        ]
        if pairs:
            views, gradients = (list(column) for column in zip(*pairs, strict=True))
            torch._foreach_add_(views, gradients, alpha=weight)


class Gradients:
    """The gradients of a model's parameters, over passes and workers.

    ``on_backward`` is called when backward has reached a parameter, ``on_pass`` at its end with the pass's own
    gradients in place, ``before_sending`` when all of a step's are known on this worker and its numbers are to be
    filled in, ``on_step`` when the averages are in place. ``failed`` says why a collective operation failed, if one
    did: the gradients are then not to be used. Outside of passes (``active`` is false) gradients are the script's own.

    Which of the parameters are trained is looked at when a step begins: one that is unfrozen in the middle of a step
    has no gradient until the next.
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
    ) -> None:
        self._all = list(parameters)
        self._wait = wait
        self.failed: str | None = None
        self.sync_s = 0.0
        self._extras_count = extras
        self._on_pass, self._before_sending, self._on_step = on_pass, before_sending, on_step
        self._on_backward = on_backward
        self._own_extras: Tensor | None = None
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        self._hooks: list[Any] = []
        self._size = 1
        self._sent = 0
        self._weight, self._first, self._last, self._alone = 1.0, True, True, False
        self._reached_end = False
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

    def _keep_up(self) -> None:
        if self._trained != [parameter.requires_grad for parameter in self._all]:
            self._look_again()

    def _look_again(self) -> None:
        """Find out which parameters are trained."""
        self._trained = [parameter.requires_grad for parameter in self._all]
        self.parameters = [parameter for parameter in self._all if parameter.requires_grad]
        self._frozen = [parameter for parameter in self._all if not parameter.requires_grad]
        if not self.parameters:
            raise ValueError("none of the optimizer's parameters requires a gradient: there is nothing to train")
        self._extras = torch.zeros(self._extras_count + len(self.parameters), device=self.parameters[0].device)
        self.spread_over(self._size)

    def release(self) -> None:
        """Let go of the process group: as long as anything of it is held, peers do not notice that it is left."""
        for bucket in self._buckets:
            bucket.work = None

    def _hook_all(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = [self._hook(parameter) for parameter in self.parameters]

    def _hook(self, parameter: nn.Parameter) -> Any:
        return parameter.register_post_accumulate_grad_hook(self._filled)  # type: ignore[no-untyped-call]

    def _make_buckets(self) -> None:
        """Fill buckets from the last parameter to the first, as backward does."""
        some: list[nn.Parameter] = []
        groups: list[list[nn.Parameter]] = []
        for parameter in reversed(self.parameters):
            full = sum(one.numel() * one.element_size() for one in some) >= BUCKET_BYTES
            if some and (full or (parameter.dtype, parameter.device) != (some[0].dtype, some[0].device)):
                groups.append(some)
                some = []
            some.append(parameter)
        groups.append(some)
        rides_along = groups[-1][0].dtype == torch.float32
        count = self._extras_count + len(self.parameters)
        self._buckets = [_Bucket(group, count if rides_along and group is groups[-1] else 0) for group in groups]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        if not rides_along:
            self._own_extras = torch.zeros(count, device=self.parameters[0].device)

    # --------------------------------------------------------------------------------------- one pass

    def begin_pass(self, *, weight: float, first: bool, last: bool, alone: bool = False) -> None:
        """The next backward belongs to this pass of a step; ``weight`` is its share of the step's samples."""
        if first:
            self._keep_up()
        if not self._last:  # the pass before only accumulated: its gradient is kept elsewhere
            for parameter in self.parameters:
                parameter.grad = None
        self._weight, self._first, self._last, self._alone = weight, first, last, alone
        self._reached_end, self.active = False, True
        self._queued = False  # a backward that failed never came to its end
        if len(self._hooks) < len(self.parameters) and self._needs_buckets:
            self._hook_all()
        self.sync_s = 0.0
        if first and self._needs_buckets:
            if not self._buckets:
                self._make_buckets()
            for bucket in self._buckets:
                bucket.flat.zero_()
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.parameters), None

    def end_pass(self) -> None:
        """The loop's body is through with the pass: what backward does from now on is none of ours."""
        self.active = False

    @property
    def _spread(self) -> bool:
        return self._size > 1 and not self._alone

    @property
    def _needs_buckets(self) -> bool:
        return self._spread or not (self._first and self._last)

    def _filled(self, parameter: nn.Parameter) -> None:
        """Backward has come past this parameter."""
        if not self.active:
            return
        if not self._queued:
            self._queued = True
            if not self._reached_end:
                self._on_backward()
            if self._trigger is None:
                self._trigger = parameter
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if self._last and self._spread and not self._reached_end and self.failed is None:
            self._bucket_of[parameter].missing -= 1
            while self._sent < len(self._buckets) - 1 and self._buckets[self._sent].missing <= 0:
                self._send(self._buckets[self._sent])

    def _send(self, bucket: _Bucket) -> None:
        bucket.add(self._weight)
        self._sent += 1
        try:
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        except RuntimeError as problem:
            self._fail(problem)

    def _end_of_backward(self) -> None:
        self._queued = False
        if len(self._hooks) > 1 and not self._needs_buckets and self._size == 1 and self._trigger is not None:
            for hook in self._hooks:  # without buckets it is enough to know when backward has ended
                hook.remove()
            self._hooks = [self._hook(self._trigger)]
        self.complete()

    def complete(self) -> None:
        """Finish the pass: after backward, or before a step whose backward did not come past us."""
        if self.failed is not None:
            return
        for parameter in self._frozen:
            if parameter.requires_grad:
                parameter.grad = None
        again = self._reached_end  # a second backward in the same pass adds to what is already averaged
        self._reached_end = True
        if not again:
            self._on_pass()
        if not self._last:
            if again:
                raise RuntimeError(
                    "backward() was called twice for one batch, which cannot be combined with accumulating gradients: "
                    "pass run.prepare a max_per_slot_batch that is large enough, or add up the losses"
                )
            for bucket in self._buckets:
                bucket.add(self._weight)
            return
        if self._spread:
            if again:
                self._average_again()
            else:
                self._average()
        elif self._buckets and not self._first:
            for bucket in self._buckets:
                bucket.add(self._weight)
                self._put_back(bucket, None)
        if self.failed is None and not again:
            self._on_step()

    def _average(self) -> None:
        begin = perf_counter()
        last = self._buckets[-1]
        while self._sent < len(self._buckets) - 1 and self.failed is None:
            self._send(self._buckets[self._sent])
        numbers = self._own_extras if self._own_extras is not None else last.extras
        here = [parameter.grad is not None or not self._first for parameter in self.parameters]
        if all(here):
            numbers[self._extras_count :] = 1.0
        else:
            numbers[self._extras_count :] = torch.tensor(here, dtype=numbers.dtype)
        self._before_sending(numbers[: self._extras_count])
        if self.failed is None:
            self._send(last)
        try:
            if self._own_extras is not None and self.failed is None:
                dist.all_reduce(self._own_extras)
            for bucket in self._buckets:
                if bucket.work is not None:
                    self._wait(bucket.work)
                    bucket.work = None
        except RuntimeError as problem:
            self._fail(problem)
        self.sync_s = perf_counter() - begin
        if self.failed is not None:
            return
        self._extras.copy_(numbers)
        used = None if all(here) else self._extras[self._extras_count :].tolist()
        for bucket in self._buckets:
            self._put_back(bucket, used)

    def _average_again(self) -> None:
        """Average once more what is averaged but for the last backward: the rest does not change by that."""
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.add(self._weight)
            try:
                dist.all_reduce(bucket.flat)
            except RuntimeError as problem:
                self._fail(problem)
                return
            self._put_back(bucket, None)

    def exchange_numbers(self) -> None:
        """Have the workers' numbers without gradients, by the very operations of a step.

        So whoever is in a step meanwhile, because it does not do what the others do, gets to see them.
        """
        self._keep_up()
        if not self._buckets:
            self._make_buckets()
        numbers = self._own_extras if self._own_extras is not None else self._buckets[-1].extras
        for bucket in self._buckets:
            bucket.flat.zero_()
        self._before_sending(numbers[: self._extras_count])
        try:
            works = [dist.all_reduce(bucket.flat, async_op=True) for bucket in self._buckets]
            if self._own_extras is not None:
                dist.all_reduce(self._own_extras)
            for work in works:
                self._wait(work)
        except RuntimeError as problem:
            self._fail(problem)
            return
        self._extras.copy_(numbers)

    def _put_back(self, bucket: _Bucket, used: list[float] | None) -> None:
        """Give every parameter its average; one that nobody used keeps none."""
        views, gradients = [], []
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            if parameter.grad is None:
                if used is not None and used[self._index(parameter)] == 0.0:
                    continue
                parameter.grad = torch.empty_like(parameter)
            views.append(view)
            gradients.append(parameter.grad)
        if gradients:
            torch._foreach_copy_(gradients, views)

    def _index(self, wanted: nn.Parameter) -> int:
        return next(i for i, parameter in enumerate(self.parameters) if parameter is wanted)

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
        return self._reached_end
