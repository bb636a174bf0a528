"""Several models and optimisers that are trained together, as one of each: a GAN's two halves, an actor and a critic.

Checkpoints, state transfers and comparisons see one model, whose parts have the user's names, and one list of parameter
groups. The script keeps its own objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class Optimizers:
    """Several optimisers by name, with the part of one optimiser's interface that training needs."""

    def __init__(self, named: Mapping[str, Optimizer]) -> None:
        self.named = dict(named)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all of them, in order."""
        return [group for optimizer in self.named.values() for group in optimizer.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """What they keep for each parameter."""
        return {one: state for optimizer in self.named.values() for one, state in optimizer.state.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of each, by name."""
        return {name: optimizer.state_dict() for name, optimizer in self.named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what was saved.

        Raises:
            ValueError: it belongs to other optimisers.
        """
        if set(state) != set(self.named):
            raise ValueError(f"they were {', '.join(sorted(state))} and are {', '.join(sorted(self.named))}")
        for name, optimizer in self.named.items():
            load_optimizer(optimizer, state[name])


AnyOptimizer = Optimizer | Optimizers


def load_optimizer(optimizer: AnyOptimizer, saved: Mapping[str, Any]) -> None:
    """Continue from what was saved, with the types that were saved: PyTorch converts tensors to the parameters' type.

    Optimisers keep 8-bit or 32-bit numbers for parameters of other types.

    Raises:
        KeyError, ValueError: it belongs to another optimiser.
    """
    if isinstance(optimizer, Optimizers):
        optimizer.load_state_dict(saved)
        return
    optimizer.load_state_dict(dict(saved))
    numbers = (number for group in saved["param_groups"] for number in group["params"])
    for number, parameter in zip(numbers, parameters_of(optimizer.param_groups), strict=True):
        own = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and isinstance(own.get(name), Tensor) and own[name].dtype != value.dtype:
                own[name] = value.to(own[name].device, copy=True)


def each(optimizer: AnyOptimizer) -> Iterator[tuple[Optimizer, int]]:
    """Every optimiser, with the number of its first parameter group among those of all."""
    every = list(optimizer.named.values()) if isinstance(optimizer, Optimizers) else [optimizer]
    firsts = accumulate((len(one.param_groups) for one in every), initial=0)
    return zip(every, firsts, strict=False)


def one_model(models: Mapping[str, nn.Module]) -> nn.Module:
    """One module with these parts.

    Raises:
        TypeError, ValueError: a part is not a module, or its name cannot be used.
    """
    _check(models, nn.Module, "models")
    try:
        return nn.ModuleDict(models)
    except KeyError as problem:
        raise ValueError(f"models has a name that cannot be used: {problem.args[0]}") from None


def one_optimizer(optimizers: Mapping[str, Optimizer]) -> Optimizers:
    """These optimisers as one.

    Raises:
        TypeError, ValueError: one is not an optimiser, or two of them have a parameter in common.
    """
    _check(optimizers, Optimizer, "optimizers")
    seen: set[int] = set()
    for name, optimizer in optimizers.items():
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if own & seen:
            raise ValueError(
                f"the optimizer {name!r} has a parameter that another one has too: give each parameter to one optimizer"
            )
        seen |= own
    return Optimizers(optimizers)


def _check(named: Mapping[str, Any], kind: type, argument: str) -> None:
    if not isinstance(named, Mapping) or not named:
        raise TypeError(f"{argument} must be a dict with at least one entry, such as {{'g': …, 'd': …}}")
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, kind):
            raise TypeError(f"{argument} has {name!r}: {type(value).__name__}, which is not a {kind.__name__} by name")


def parameters_of(groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
    """All parameters of some parameter groups."""
    return [parameter for group in groups for parameter in group["params"]]
