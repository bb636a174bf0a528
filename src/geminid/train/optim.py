"""The user's optimiser, loss scaler and learning-rate schedule, adapted to changing batch plans.

They stay the user's own objects; only some of their methods are replaced:

- ``optimizer.step()`` does nothing in passes that only accumulate, and uses learning rates scaled for the batch size;
- ``optimizer.add_param_group()`` is refused: workers that join later would not have the group;
- ``scaler.unscale_()``, ``.step()`` and ``.update()`` do nothing in those passes either;
- ``lr_scheduler.step()`` takes as many steps as are due by the samples consumed: one per batch of the loader's own size
  where it is called in the loop over batches, one per such loop where it is called outside of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from geminid.train.progress import TrainingProgress
from geminid.train.several import AnyOptimizer, parameters_of

#: Optimisers that divide gradients by a running estimate of their scale.
ADAM_LIKE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Lamb", "Lion", "Adafactor")


def rule_for(optimizer: Optimizer) -> str:
    """The learning-rate rule for an optimiser: AdaScale for SGD, AdamScale for Adam and similar ones."""
    name = type(optimizer).__name__
    if name == "SGD":
        return "adascale"
    return "adamscale" if name in ADAM_LIKE else "square_root"


class StepListener(Protocol):
    """What decides about, and is informed of, steps of the user's optimiser."""

    @property
    def factors(self) -> Sequence[float]:
        """What the learning rate of each parameter group is multiplied by."""

    def may_step(self) -> bool:
        """Whether a step takes effect now: not in passes that only accumulate."""

    def before_step(self) -> None:
        """The optimiser is about to step."""

    def after_step(self) -> None:
        """The optimiser has stepped."""


def listen_to_optimizer(optimizer: Optimizer, listener: StepListener, first_group: int = 0) -> None:
    """From now on ``optimizer.step()`` steps if the listener permits it, with scaled learning rates.

    A closure runs once in every pass, before that. The optimiser's parameter groups have numbers from ``first_group``.
    """
    plain_step = optimizer.step

    @functools.wraps(getattr(plain_step, "__func__", plain_step))
    def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer._opt_called = True  # type: ignore[attr-defined]
        if listener.may_step():
            listener.before_step()
            groups = optimizer.param_groups
            with _scaled_rates(groups, listener.factors[first_group : first_group + len(groups)]):
                plain_step()
            listener.after_step()
        return loss

    def add_param_group(optimizer: Optimizer, group: Any) -> None:
        raise ValueError(
            "optimizer.add_param_group() was called after run.prepare(): give the optimizer all parameters before, "
            "and freeze those that are to be trained later with requires_grad_(False)"
        )

    optimizer.add_param_group = MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


@contextmanager
def _scaled_rates(groups: list[dict[str, Any]], factors: Sequence[float]) -> Iterator[None]:
    """Multiply the learning rates of parameter groups, for a while."""
    if all(factor == 1.0 for factor in factors):
        yield
        return
    own = [group["lr"] for group in groups]
    for group, lr, factor in zip(groups, own, factors, strict=True):
        group["lr"] = lr * factor
    try:
        yield
    finally:
        for group, lr in zip(groups, own, strict=True):
            group["lr"] = lr


def listen_to_scaler(scaler: Any, listener: StepListener) -> None:
    """From now on a ``GradScaler`` does nothing in passes that only accumulate."""

    def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if listener.may_step() else None

        return call

    scaler.unscale_, scaler.step, scaler.update = quiet(scaler.unscale_), quiet(scaler.step), quiet(scaler.update)


def loss_scale(scaler: Any) -> Tensor | None:
    """A ``GradScaler``'s loss scale, on its device; None while there is none."""
    if scaler is None or not scaler.is_enabled() or scaler._scale is None:
        return None
    scale: Tensor = scaler._scale
    return scale


class Schedule:
    """A learning-rate schedule that advances by samples, however often it is called. ``taken`` counts its steps."""

    def __init__(self, scheduler: LRScheduler | ReduceLROnPlateau, progress: TrainingProgress) -> None:
        self.scheduler, self.taken = scheduler, 0
        kind: Any = type(scheduler)
        schedule = self

        @functools.wraps(kind.step)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            if args or kwargs:  # a metric, or an epoch of the user's own choice: nothing to count
                kind.step(scheduler, *args, **kwargs)
                return
            due = int(progress.schedule_steps_due + 1e-6)
            while schedule.taken < due:
                kind.step(scheduler)
                schedule.taken += 1

        # The method is overridden in a subclass: an attribute of the schedule would become part of its state_dict.
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


def check_model(model: torch.nn.Module) -> None:
    """Refuse models that synchronise or shard themselves, or that cannot be replicated.

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


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse optimisers that evaluate the model again within a step.

    Raises:
        TypeError: it is one of them, or no optimiser.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"the optimizer is a {type(optimizer).__name__}: it must be a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("the optimizer is LBFGS, which evaluates the model several times in a step: use another one")


def schedules_in(lr_scheduler: Any) -> list[Any]:
    """The schedules that the user gave: none, one, or several by name."""
    if isinstance(lr_scheduler, Mapping):
        return list(lr_scheduler.values())
    return [] if lr_scheduler is None else [lr_scheduler]


def check_helpers(scaler: Any, lr_scheduler: Any) -> None:
    """Refuse objects that are not a loss scaler or not a schedule.

    Raises:
        TypeError: with one sentence that says what to pass instead.
    """
    if scaler is not None and not hasattr(scaler, "unscale_"):
        raise TypeError(f"the scaler is a {type(scaler).__name__}: it must be a torch.amp.GradScaler")
    for schedule in schedules_in(lr_scheduler):
        if not hasattr(schedule, "step"):
            raise TypeError(
                f"the lr_scheduler is a {type(schedule).__name__}: it must be one schedule (several can be put into "
                "a ChainedScheduler or SequentialLR), or a dict of schedules where there are several optimizers"
            )


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model or a part of it is compiled, by ``torch.compile(model)`` or ``model.compile()``."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether the model's results depend on the per-slot batch."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


def fewest_samples(model: torch.nn.Module) -> int:
    """The fewest samples that the model can be trained with at a time: BatchNorm needs two to have a variance."""
    return 2 if has_batch_norm(model) else 1


def warn_of_parameters_left_out(model: torch.nn.Module, optimizer: AnyOptimizer) -> None:
    """Warn of parameters of the model that are trained but not by this optimiser: their gradients are not averaged."""
    known = {id(parameter) for parameter in parameters_of(optimizer.param_groups)}
    left_out = [name for name, one in model.named_parameters() if one.requires_grad and id(one) not in known]
    if left_out:
        print(
            "geminid: warning: parameters of the model require gradients but are not the optimizer's "
            f"({len(left_out)}, the first is {left_out[0]}): if something else trains them, they become different on "
            "every worker",
            file=sys.stderr,
            flush=True,
        )
