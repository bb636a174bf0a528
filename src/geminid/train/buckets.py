"""Gradients side by side in a few long vectors, in which they are summed over passes and sent to other workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: Buckets are sent when they hold this much; the last of them (the model's first layers) waits for the end anyway.
BUCKET_BYTES = 8 << 20


class Bucket:
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


def buckets_for(parameters: Sequence[nn.Parameter], extras: int) -> tuple[list[Bucket], bool]:
    """Buckets filled from the last parameter to the first, as backward does.

    The last one has room for ``extras`` numbers if it is of a type that holds them exactly enough; whether it has.
    """
    some: list[nn.Parameter] = []
    groups: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        full = sum(one.numel() * one.element_size() for one in some) >= BUCKET_BYTES
        if some and (full or (parameter.dtype, parameter.device) != (some[0].dtype, some[0].device)):
            groups.append(some)
            some = []
        some.append(parameter)
    groups.append(some)
    rides_along = groups[-1][0].dtype == torch.float32
    return [Bucket(group, extras if rides_along and group is groups[-1] else 0) for group in groups], rides_along
