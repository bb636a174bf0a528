"""The second, third, … ``backward()`` for one batch.

The first backwards of all passes and workers make one average, the second ones another, and so on. Each average is
added to what ``.grad`` was before it, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from geminid.train.buckets import GradientSums
from geminid.train.optim import loss_scale


@dataclass(slots=True)
class _Carried:
    """Sums of what the second (third, …) backwards of earlier passes gave, and the loss scale at the time."""

    sums: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    loss_scale: Tensor | None = None


class FurtherBackwards:
    """Keeps what further backwards give apart from the first one's gradients, until all passes are through."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._before: dict[nn.Parameter, Tensor | None] = {}
        self._carried: dict[int, _Carried] = {}

    def begin_step(self) -> None:
        """Nothing is carried over from the step before."""
        self._carried.clear()

    def begin_pass(self) -> None:
        """Nothing is set aside."""
        self._before.clear()

    def set_aside(self, parameter: nn.Parameter) -> None:
        """Backward is about to add to this gradient: set it aside, to know what is added."""
        if parameter not in self._before:
            self._before[parameter] = parameter.grad
            parameter.grad = None

    @property
    def most_carried(self) -> int:
        """The most backwards of an earlier pass whose counterpart in the last pass is missing; 0 if none is."""
        return max(self._carried) + 1 if self._carried else 0

    def carry(self, number: int, weight: float) -> None:
        """Further backward ``number`` of a pass that only accumulates has ended: keep its result for the last pass."""
        before, given = self._take()
        carried = self._carried.setdefault(number, _Carried())
        scale = loss_scale(self._scaler)
        carried.loss_scale = scale.clone() if scale is not None else None
        for parameter, gradient in given.items() if weight else ():
            if parameter in carried.sums:
                carried.sums[parameter].add_(gradient, alpha=weight)
            else:
                carried.sums[parameter] = gradient * weight
        _add_to_gradients(given, before)

    def average(
        self,
        number: int,
        weight: float,
        trained: list[nn.Parameter],
        sums: GradientSums,
        close: Callable[[list[bool]], list[bool]],
    ) -> None:
        """Further backward ``number`` of a step's last pass has ended: add the average over all passes and workers.

        ``close`` makes averages of the sums; it is given which parameters this worker has used, and returns which of
        them any worker has.
        """
        before, given = self._take()
        carried, views = self._carried.pop(number, _Carried()), sums.views()
        sums.clear()
        scale = loss_scale(self._scaler)
        for parameter, total in carried.sums.items():
            if scale is not None and carried.loss_scale is not None:  # it may have changed at the optimiser's last step
                total = total * (scale / carried.loss_scale).to(total.device, total.dtype)
            views[parameter].copy_(total)
        for parameter, gradient in given.items() if weight else ():
            views[parameter].add_(gradient, alpha=weight)
        used = [parameter in given or parameter in carried.sums for parameter in trained]
        sums.begin_pass()
        used = close(used)
        if sums.failed is None:
            averages = {one: views[one] for one, was_used in zip(trained, used, strict=True) if was_used}
            _add_to_gradients(averages, before)

    def _take(self) -> tuple[dict[nn.Parameter, Tensor | None], dict[nn.Parameter, Tensor]]:
        """The gradients that were set aside, and what this backward gave to the same parameters."""
        before, self._before = self._before, {}
        return before, {parameter: parameter.grad for parameter in before if parameter.grad is not None}


def _add_to_gradients(added: dict[nn.Parameter, Tensor], before: dict[nn.Parameter, Tensor | None]) -> None:
    for parameter, gradient in added.items():
        had = before.get(parameter, parameter.grad)
        if had is not None:
            parameter.grad = had.add_(gradient)
        elif parameter.grad is not gradient:
            parameter.grad = gradient.clone()
