"""Moving averages of weights that are updated once per step, whatever the number of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def moving_average(model: nn.Module, decay: float, growth: Callable[[], float]) -> AveragedModel:
    """An exponential moving average of a model; ``growth`` says how many initial batches a step is worth now."""

    def average(averages: Any, values: Any, count: Any) -> None:
        get_ema_multi_avg_fn(decay ** growth())(averages, values, count)  # type: ignore[no-untyped-call]

    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)


def average_per_step(averaged: AveragedModel, in_effect: Callable[[], bool]) -> None:
    """From now on ``update_parameters`` does nothing where a step has no effect: in passes that only accumulate."""
    update = averaged.update_parameters

    def update_parameters(model: nn.Module) -> None:
        if in_effect():
            update(model)

    averaged.update_parameters = update_parameters  # type: ignore[method-assign]
