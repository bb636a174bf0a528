"""What a script gives to ``run.prepare`` to be trained, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from geminid.goodput.learning_rate import RULES
from geminid.train.optim import (
    check_helpers,
    check_model,
    check_optimizer,
    fewest_samples,
    rule_for,
    warn_of_parameters_left_out,
)
from geminid.train.several import AnyOptimizer, each, one_model, one_optimizer


@dataclass(frozen=True, slots=True)
class TrainedParts:
    """Models and optimisers, as ``given`` and as one of each; ``limits`` are the script's own for batch plans."""

    given: tuple[Any, Any]
    model: nn.Module
    optimizer: AnyOptimizer
    scaler: Any
    lr_scheduler: Any
    scaling_rules: tuple[str, ...]
    limits: Mapping[str, int | None]

    @property
    def fewest(self) -> int:
        """The fewest samples that the models can be trained with at a time."""
        return fewest_samples(self.model)


def gather_parts(
    model: nn.Module | Mapping[str, nn.Module] | None,
    optimizer: Optimizer | Mapping[str, Optimizer] | None,
    *,
    doubled: bool,
    scaler: Any,
    lr_scheduler: Any,
    scaling_rule: str,
    limits: Mapping[str, int | None],
) -> TrainedParts:
    """Check what is to be trained; ``doubled`` says that it was given in two ways.

    Raises:
        TypeError, ValueError: it cannot be; the sentence says what to pass instead.
    """
    if model is None or optimizer is None or doubled:
        raise TypeError(
            "run.prepare() needs a model and an optimizer, or several by name: models={...} and optimizers={...}"
        )
    given = (model, optimizer)
    if isinstance(model, Mapping):
        for part in model.values():
            check_model(part)
        model = one_model(model)
    check_model(model)
    trained = one_optimizer(optimizer) if isinstance(optimizer, Mapping) else optimizer
    optimizers = [one for one, _ in each(trained)]
    for one in optimizers:
        check_optimizer(one)
    check_helpers(scaler, lr_scheduler)
    warn_of_parameters_left_out(model, trained)
    auto = scaling_rule == "auto"
    rules = tuple(rule_for(one) if auto else scaling_rule for one in optimizers for _ in one.param_groups)
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"scaling_rule is {rule!r}: it must be one of auto, {', '.join(RULES)}")
    return TrainedParts(given, model, trained, scaler, lr_scheduler, rules, limits)
