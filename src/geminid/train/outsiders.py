"""Find modules that are trained but were not given to ``run.prepare``: they would become different on every worker.

A module whose parameters collect gradients is trained, or is meant to be frozen and is not. All modules of the process
are looked for when a group of workers begins; during its first few steps their gradients are looked at.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

#: In how many steps of a group to look.
STEPS = 3


class Outsiders:
    """The parameters of modules in this process other than the prepared ones (``known``)."""

    def __init__(self, known: Iterable[nn.Parameter]) -> None:
        self._known = {id(parameter) for parameter in known}
        self._steps_left, self._warned = 0, False
        self._gradients: dict[nn.Parameter, tuple[Any, ...]] | None = None

    def begin_group(self) -> None:
        """A group has been formed: look again."""
        self._steps_left, self._gradients = STEPS, None

    def begin_step(self) -> None:
        """A step begins: find the modules, if that is due."""
        if self._steps_left and self._gradients is None:
            self._gradients = {parameter: _mark(parameter) for parameter in self._find()}

    def end_step(self) -> None:
        """A step is over."""
        self._steps_left = max(0, self._steps_left - 1)
        if not self._steps_left:
            self._gradients = None

    def check(self, *, several_workers: bool) -> None:
        """Look whether any of them has collected gradients; a warning while there is one worker.

        Raises:
            RuntimeError: one has, and there are several workers.
        """
        if not self._gradients or (self._warned and not several_workers):
            return
        for parameter, before in self._gradients.items():
            if parameter.grad is not None and _mark(parameter) != before:
                break
        else:
            return
        sentence = (
            f"a {_name_of(parameter)} was not given to run.prepare(), but its parameters collect gradients: "
            "every worker would train its own. Give it to run.prepare(models={...}, optimizers={...}), or freeze it "
            "with requires_grad_(False)"
        )
        if several_workers:
            raise RuntimeError(sentence)
        self._warned = True
        print(f"geminid: warning: {sentence}. On several slots the job fails", file=sys.stderr, flush=True)

    def _find(self) -> Iterator[nn.Parameter]:
        for module in _modules():
            for parameter in module._parameters.values():
                if parameter is not None and parameter.requires_grad and id(parameter) not in self._known:
                    yield parameter


def _modules() -> Iterator[nn.Module]:
    """All modules of this process. Types are looked at instead of ``__class__``, which proxies compute."""
    for found in gc.get_objects():
        if issubclass(type(found), nn.Module) and "_parameters" in found.__dict__:
            yield found


def _mark(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Changes when something is added to the gradient."""
    gradient = parameter.grad
    return () if gradient is None else (id(gradient), gradient._version)


def _name_of(parameter: nn.Parameter) -> str:
    """The type of the largest module that has this parameter."""
    having = [one for one in _modules() if any(own is parameter for own in one.parameters())]
    return type(max(having, key=lambda one: sum(1 for _ in one.modules()))).__name__ if having else "module"
