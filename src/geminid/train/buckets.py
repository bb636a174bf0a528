"""Gradients side by side in a few long vectors, in which they are summed over passes and over workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

#: A bucket is sent when it holds this much. The last one (the model's first layers) waits for the end of backward.
BUCKET_BYTES = 8 << 20


class Bucket:
    """The gradients of some parameters, side by side in one vector, with space for ``extras`` numbers at its end.

    ``numbers`` are the parameters' numbers in the model; ``missing`` counts those that backward has not reached.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], numbers: Sequence[int], extras: int) -> None:
        self.parameters, self.numbers = parameters, numbers
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
        """Add the parameters' gradients, weighted; nothing where the weight is 0, whatever they are."""
        if weight == 0.0:
            return
        pairs = [
            (view, parameter.grad)
            for view, parameter in zip(self.views, self.parameters, strict=True)
            if parameter.grad is not None
        ]
        if pairs:
            views, gradients = (list(column) for column in zip(*pairs, strict=True))
            torch._foreach_add_(views, gradients, alpha=weight)

    def write_back(self, used: Sequence[bool]) -> None:
        """Make the sums the gradients of the parameters that are used; the others keep what they have."""
        views, gradients = [], []
        for number, parameter, view in zip(self.numbers, self.parameters, self.views, strict=True):
            if used[number]:
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                views.append(view)
                gradients.append(parameter.grad)
        if gradients:
            torch._foreach_copy_(gradients, views)


class GradientSums:
    """The sums over passes and workers of a model's gradients, and of some numbers that are sent along with them.

    There are ``extras`` numbers for the caller, in ``to_send`` and, summed up, in ``received``. Further ones are the
    sum of the weights that gradients were added with, and say which parameters a worker has used. ``failed`` says why
    a collective operation failed, if one did. ``wait`` waits for a collective operation.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], extras: int, wait: Callable[[Any], None]) -> None:
        self._wait = wait
        self.failed: str | None = None
        count, device = extras + 1 + len(parameters), parameters[0].device
        groups = _groups_of(parameters)
        # In other types than this one the numbers would not be exact: then they are sent in a vector of their own.
        self._rides_along = groups[-1][0][1].dtype == torch.float32
        self._buckets = [
            Bucket(
                [parameter for _, parameter in group],
                [number for number, _ in group],
                count if self._rides_along and group is groups[-1] else 0,
            )
            for group in groups
        ]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        numbers = self._buckets[-1].extras if self._rides_along else torch.zeros(count, device=device)
        self._numbers, self.to_send = numbers, numbers[:extras]
        self._weight, self._uses = numbers[extras : extras + 1], numbers[extras + 1 :]
        self.received = torch.zeros(extras, device=device)
        self._sent = 0

    def clear(self) -> None:
        """Begin new sums."""
        self._numbers.zero_()
        for bucket in self._buckets:
            bucket.flat.zero_()

    def begin_pass(self) -> None:
        """Nothing has been sent, and backward has reached no parameter."""
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.parameters), None

    def add(self, weight: float) -> None:
        """Add the gradients of all parameters."""
        for bucket in self._buckets:
            bucket.add(weight)

    def add_filled(self, parameter: nn.Parameter, weight: float) -> None:
        """Backward has reached a parameter in the last pass: send the buckets that are complete, except the last."""
        self._bucket_of[parameter].missing -= 1
        while self._sent < len(self._buckets) - 1 and self._buckets[self._sent].missing <= 0:
            self._add_and_send(weight)

    def add_rest(self, weight: float) -> None:
        """Backward has ended: add what is not added yet, and send it, except the last bucket."""
        while self._sent < len(self._buckets) - 1 and self.failed is None:
            self._add_and_send(weight)
        self._buckets[-1].add(weight)

    def _add_and_send(self, weight: float) -> None:
        self._buckets[self._sent].add(weight)
        self._send()

    def _send(self) -> None:
        bucket = self._buckets[self._sent]
        self._sent += 1
        try:
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        except RuntimeError as problem:
            self._fail(problem)

    def divide_by_weight(self) -> None:
        """Make weighted sums averages, by the sum of the weights of all workers."""
        weight = self._weight.clamp(min=torch.finfo(self._weight.dtype).tiny)
        for bucket in self._buckets:
            torch._foreach_div_(bucket.views, weight.to(bucket.flat.dtype).reshape(()))

    def exchange(self, used: list[bool], weight: float) -> list[bool]:
        """Send the rest and wait until everything is summed over all workers; which parameters any of them has used."""
        self.set_weight(weight)
        if all(used):
            self._uses.fill_(1.0)
        else:
            self._uses.copy_(torch.tensor(used, dtype=self._uses.dtype))
        while self._sent < len(self._buckets) and self.failed is None:
            self._send()
        try:
            if not self._rides_along and self.failed is None:
                dist.all_reduce(self._numbers)
            for bucket in self._buckets:
                if bucket.work is not None:
                    self._wait(bucket.work)
                    bucket.work = None
        except RuntimeError as problem:
            self._fail(problem)
        if self.failed is not None:
            return used
        self.received.copy_(self.to_send)
        if all(used):  # without waiting for the device
            return used
        return [count > 0.0 for count in self._uses.tolist()]

    def set_weight(self, weight: float) -> None:
        """The sum of the weights that this worker has added gradients with."""
        self._weight.fill_(weight)

    def write_back(self, used: Sequence[bool]) -> None:
        """Make the sums the parameters' gradients."""
        for bucket in self._buckets:
            bucket.write_back(used)

    def views(self) -> dict[nn.Parameter, Tensor]:
        """The place of every parameter's gradient."""
        return {
            one: view for bucket in self._buckets for one, view in zip(bucket.parameters, bucket.views, strict=True)
        }

    def release(self) -> None:
        """Drop all references to the process group: while there is one, peers do not notice that it was left."""
        for bucket in self._buckets:
            bucket.work = None

    def _fail(self, problem: Exception) -> None:
        lines = str(problem).strip().splitlines()
        self.failed = lines[0] if lines else type(problem).__name__


def _groups_of(parameters: Sequence[nn.Parameter]) -> list[list[tuple[int, nn.Parameter]]]:
    """Numbered parameters, grouped into buckets from the last parameter to the first, in the order of backward."""
    groups: list[list[tuple[int, nn.Parameter]]] = []
    kind, size = None, 0
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        if (parameter.dtype, parameter.device) != kind or size >= BUCKET_BYTES:
            groups.append([])
            kind, size = (parameter.dtype, parameter.device), 0
        groups[-1].append((number, parameter))
        size += parameter.numel() * parameter.element_size()
    return groups
