"""The user's optimiser, loss scaler and learning-rate schedule, made to keep step with batch plans.

They stay the user's own objects; only what their methods do changes, on these very objects:

- ``optimizer.step()`` does nothing in passes that only accumulate, and uses learning rates scaled for the batch size;
- ``optimizer.add_param_group()`` is refused: workers that join later would not have the group;
- ``scaler.unscale_()``, ``.step()`` and ``.update()`` do nothing in those passes either;
- ``lr_scheduler.step()`` takes as many steps as samples have gone by for: one per batch of the loader's own size where
  it is called in the loop over batches, one per such loop where it is called outside of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

#: Optimisers that divide gradients by a running estimate of their scale.
ADAM_LIKE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Lamb", "Lion", "Adafactor")


def rule_for(optimizer: Optimizer) -> str:
    """The learning-rate rule that goes with an optimiser: AdaScale for SGD, AdamScale for Adam and its kin."""
    name = type(optimizer).__name__
    if name == "SGD":
        return "adascale"
    return "adamscale" if name in ADAM_LIKE else "square_root"


class OptimizerSteps:
    """Decides what a call of ``optimizer.step()`` does."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        may_step: Callable[[], bool],
        before_step: Callable[[], None],
        on_step: Callable[[], None],
    ) -> None:
        self._optimizer = optimizer
        self._may_step, self._before_step, self._on_step = may_step, before_step, on_step
        self._step = optimizer.step
        self.factors: Sequence[float] = [1.0] * len(optimizer.param_groups)
        steps = self

        @functools.wraps(getattr(self._step, "__func__", self._step))
        def step(optimizer: Optimizer, closure: Any = None) -> None:
            if closure is not None:
                raise ValueError("optimizer.step(closure) is not supported: closures run the model several times")
            optimizer._opt_called = True  # type: ignore[attr-defined]
            steps.step()

        def add_param_group(optimizer: Optimizer, group: Any) -> None:
            raise ValueError(
                "optimizer.add_param_group() was called after run.prepare(): give the optimizer all parameters before, "
                "and freeze those that are to be trained later with requires_grad_(False)"
            )

        optimizer.add_param_group = MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def step(self) -> None:
        """Step, if this is the time for it, with scaled learning rates."""
        if not self._may_step():
            return
        groups = self._optimizer.param_groups
        self._before_step()
        if all(factor == 1.0 for factor in self.factors):
            self._step()
        else:
            own = [group["lr"] for group in groups]
            for group, lr, factor in zip(groups, own, self.factors, strict=True):
                group["lr"] = lr * factor
            try:
                self._step()
            finally:
                for group, lr in zip(groups, own, strict=True):
                    group["lr"] = lr
        self._on_step()


class ScalerSteps:
    """Keeps a ``GradScaler`` quiet in passes that only accumulate."""

    def __init__(self, scaler: Any, *, may_step: Callable[[], bool]) -> None:
        self._scaler = scaler
        unscale, step, update = scaler.unscale_, scaler.step, scaler.update

        def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def call(*args: Any, **kwargs: Any) -> Any:
                return method(*args, **kwargs) if may_step() else None

            return call

        scaler.unscale_, scaler.step, scaler.update = quiet(unscale), quiet(step), quiet(update)

    def scale(self) -> Tensor | None:
        """The loss scale, on its device; None while there is none."""
        scaler = self._scaler
        if not scaler.is_enabled() or scaler._scale is None:
            return None
        scale: Tensor = scaler._scale
        return scale


class ScheduleSteps:
    """Advances a schedule by samples, whoever calls it how often."""

    def __init__(
        self,
        scheduler: LRScheduler | ReduceLROnPlateau,
        *,
        in_loop: Callable[[], bool],
        batches_done: Callable[[], float],
        epochs_done: Callable[[], float],
    ) -> None:
        self.taken = 0
        kind: Any = type(scheduler)
        steps = self

        @functools.wraps(kind.step)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            if args or kwargs:  # a metric, or an epoch of the user's own choice: nothing to count
                kind.step(scheduler, *args, **kwargs)
                return
            due = int((batches_done() if in_loop() else epochs_done()) + 1e-6)
            while steps.taken < due:
                kind.step(scheduler)
                steps.taken += 1

        # A class of its own, because whatever a schedule's own attributes are goes into its state_dict.
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


def check_model(model: torch.nn.Module) -> None:
    """Refuse models that do for themselves what we do for them, or that we cannot spread.

    Raises:
        TypeError, ValueError: with one sentence that says what to pass instead.
    """
    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        raise TypeError(f"the model is wrapped in {type(model).__name__}: pass the plain module")
    kinds = {type(module).__name__ for module in model.modules()}
    if any(kind.startswith("FSDP") or kind == "FullyShardedDataParallel" for kind in kinds) or any(
        type(parameter).__name__ == "DTensor" for parameter in model.parameters()
    ):
        raise TypeError("the model is sharded (FSDP): only models that fit on one slot are supported")
    if any(getattr(module, "sparse", False) for module in model.modules()):
        raise ValueError("an embedding of the model has sparse=True: sparse gradients are not supported")
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise ValueError("the model's parameters are on several devices: one slot is one device")


def check_helpers(scaler: Any, lr_scheduler: Any) -> None:
    """Refuse what is no loss scaler, and what is no schedule.

    Raises:
        TypeError: with one sentence that says what to pass instead.
    """
    if scaler is not None and not hasattr(scaler, "unscale_"):
        raise TypeError(f"the scaler is a {type(scaler).__name__}: it must be a torch.amp.GradScaler")
    if lr_scheduler is not None and not hasattr(lr_scheduler, "step"):
        raise TypeError(
            f"the lr_scheduler is a {type(lr_scheduler).__name__}: it must be one schedule (several can be put into "
            "a ChainedScheduler or SequentialLR)"
        )


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether the model's results depend on the per-slot batch."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


def fewest_samples(model: torch.nn.Module) -> int:
    """How many samples the model can be trained with at a time: a single one has no variance to normalise by."""
    return 2 if has_batch_norm(model) else 1


def warn_of_parameters_left_out(model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Say so if something in the model wants gradients that this optimiser does not know: nobody averages them."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = [name for name, one in model.named_parameters() if one.requires_grad and id(one) not in known]
    if left_out:
        print(
            "geminid: warning: parameters of the model require gradients but are not the optimizer's "
            f"({len(left_out)}, the first is {left_out[0]}): whatever else trains them trains them differently on "
            "every worker",
            file=sys.stderr,
            flush=True,
        )
