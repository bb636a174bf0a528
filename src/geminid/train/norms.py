"""Measure the gradient noise while training: squared norms, with a few fused kernels, within a budget of time.

Steps that average several passes compare the passes' norms with the average's. Where a step has a single pass, two
consecutive gradients are compared (``goodput/noise.py`` has the formulas). For Adam and similar optimisers, gradients
are divided by what the optimiser divides them by, once it has taken a few steps. Everything stays on the device until
the numbers are read, a step later where reading would otherwise wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from geminid.clock import Clock
from geminid.goodput.noise import NoiseEstimate
from geminid.train.measuring_cost import LONGEST_INTERVAL, MeasuringCost
from geminid.train.optim import loss_scale
from geminid.train.several import AnyOptimizer, parameters_of
from geminid.train.trained import TrainedParameters

#: Adam's estimates of the gradients' scale are used after this many of its steps.
STEPS_BEFORE_PRECONDITIONING = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """Squared norms of one step, by parameter group, still on the device.

    ``local`` is the sum over the passes (of all workers, after averaging), ``total`` belongs to the average. For a step
    with a single pass (``paired``), ``local`` is the sum of this step's and the one before, and ``total`` belongs to
    their mean.
    """

    local: Tensor
    total: Tensor
    micro_gradients: int
    scale: float
    steps: int
    paired: bool
    preconditioned: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """The gradients of one step, kept to be compared with the next one's."""

    step: int
    gradients: list[Tensor]
    norms: Tensor


class Preconditioner:
    """What an Adam-like optimiser divides gradients by: sqrt(v̂) + ε.

    ``active`` says whether gradients are divided by it. ``steps`` counts the optimiser's steps: its own count may be on
    the device, where reading it would wait.
    """

    def __init__(self, optimizer: AnyOptimizer) -> None:
        self._optimizer = optimizer
        self.active, self.steps = False, 0
        self._divisors: list[Tensor] | None = None

    def forget(self) -> None:
        """A step begins: divisors are computed again when they are needed."""
        self._divisors = None

    def divisors(self, parameters: Sequence[nn.Parameter]) -> list[Tensor] | None:
        """Those of every parameter; None for other optimisers, and in the first few steps."""
        if self._divisors is None:
            self._divisors = self._computed(set(parameters))
        return self._divisors

    def _computed(self, parameters: set[nn.Parameter]) -> list[Tensor] | None:
        squares, corrections, epsilons = [], [], []
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in parameters:
                    continue
                own = state.get(parameter, {})
                square = own.get("exp_avg_sq", own.get("square_avg"))
                steps = self._steps(own.get("step", 0))
                if square is None or steps < STEPS_BEFORE_PRECONDITIONING:
                    return None
                squares.append(square)
                beta = group["betas"][1] if "betas" in group else group.get("alpha", 0.0)
                corrections.append(1.0 - beta**steps if "exp_avg_sq" in own else 1.0)
                epsilons.append(group.get("eps", 1e-8))
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, [math.sqrt(correction) for correction in corrections])
        torch._foreach_add_(divisors, epsilons)
        return list(divisors)

    def _steps(self, count: Any) -> float:
        if isinstance(count, Tensor):
            return float(count) if count.device.type == "cpu" else float(self.steps)
        return float(count)


class NoiseMeter:
    """Measures the noise of one optimiser's gradients.

    ``estimate`` is the result so far. Every ``interval`` steps are measured, unless it is not ``enabled``.
    ``measuring`` says whether the step under way is, and ``local`` holds the squared norms of its passes so far.
    """

    def __init__(self, optimizer: AnyOptimizer, scaler: Any, clock: Clock) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        self.groups = len(optimizer.param_groups)
        self._trained = TrainedParameters(parameters_of(optimizer.param_groups))
        self.device: torch.device = self._trained.all[0].device
        self.estimate = NoiseEstimate.empty(self.groups)
        self.interval, self.enabled = 1, True
        self.measuring, self._single = False, False
        self.local = torch.zeros(self.groups, device=self.device)
        self._preconditioner = Preconditioner(optimizer)
        self._cost = MeasuringCost(self.device, clock)
        self._last_measured = 0
        self._kept: _Kept | None = None
        self._group_of = self._groups_of_trained()

    def _groups_of_trained(self) -> Tensor:
        trained = set(self._trained.current)
        groups = enumerate(self._optimizer.param_groups)
        numbers = [number for number, group in groups for one in group["params"] if one in trained]
        return torch.tensor(numbers, device=self.device)

    def state(self) -> dict[str, Any]:
        """What to save besides the estimate."""
        return {
            "preconditioned": self._preconditioner.active,
            "optimizer_steps": self._preconditioner.steps,
            "last_measured": self._last_measured,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what was saved."""
        self._preconditioner.active = state["preconditioned"]
        self._preconditioner.steps = state["optimizer_steps"]
        self._last_measured, self._kept = state.get("last_measured", 0), None

    def optimizer_stepped(self) -> None:
        """The optimiser has taken a step."""
        self._preconditioner.steps += 1

    # --------------------------------------------------------------------------------------- one step

    def begin_step(self, step: int, *, micro_gradients: int, whole: bool) -> None:
        """A step begins; it is measured if its turn has come and it is a whole one."""
        if self._trained.update():
            self._group_of, self._kept = self._groups_of_trained(), None
        self._single = micro_gradients == 1
        turn = step % self.interval
        self.measuring = self.enabled and whole and (turn == 0 or (self._single and turn == 1 and self.interval > 1))
        self._preconditioner.forget()
        if self.measuring:
            self.local.zero_()

    def end_pass(self) -> None:
        """A pass is through: add the squared norms of its gradients."""
        if not self.measuring or self._single:
            return
        with self._cost.timed():
            norms = self._squared_norms(self._gradients())
            if norms is not None:
                self.local += norms

    def end_step(self, step: int, *, micro_gradients: int, scale: float, local: Tensor | None) -> Reading | None:
        """The averages are in place: what this step shows. ``local`` is that of all workers (None: one worker)."""
        if not self.measuring:
            return None
        with self._cost.timed():
            if self._single:
                return self._compare_with_last(step, scale)
            total = self._squared_norms(self._gradients())
            if total is None:
                return None
            summed = (self.local if local is None else local).clone()
            return self._reading(step, summed, total, micro_gradients, scale, paired=False)

    def _compare_with_last(self, step: int, scale: float) -> Reading | None:
        gradients = [gradient for gradient in self._gradients() if gradient is not None]
        if len(gradients) < len(self._trained.current):
            return None
        norms = self._squared_norms(gradients)
        if norms is None:
            return None
        kept, reading = self._kept, None
        if kept is not None and kept.step == step - 1:
            torch._foreach_add_(kept.gradients, gradients)
            torch._foreach_mul_(kept.gradients, 0.5)
            mean = self._squared_norms(kept.gradients)
            assert mean is not None
            reading = self._reading(step, kept.norms + norms, mean, 1, scale, paired=True)
        if reading is None or self.interval == 1:
            copies = kept.gradients if kept is not None else [torch.empty_like(one) for one in gradients]
            torch._foreach_copy_(copies, gradients)
            self._kept = _Kept(step, copies, norms)
        return reading

    def _reading(
        self, step: int, local: Tensor, total: Tensor, micro_gradients: int, scale: float, *, paired: bool
    ) -> Reading:
        steps = max(1, min(step - self._last_measured, LONGEST_INTERVAL))
        self._last_measured = step
        scaled_by = loss_scale(self._scaler)
        if scaled_by is not None:
            squared = scaled_by.to(local.device, non_blocking=True) ** 2
            local, total = local / squared, total / squared
        return Reading(local, total, micro_gradients, scale, steps, paired, self._preconditioner.active)

    def fold(self, reading: Reading, local: Sequence[float], total: Sequence[float]) -> None:
        """Add a reading to the estimate, now that its numbers are in main memory."""
        if reading.preconditioned != self._preconditioner.active:
            return  # taken before gradients were divided: the norms cannot be compared
        if reading.paired:
            half = [value / 2.0 for value in local]
            self.estimate = self.estimate.observe_pair(half, half, total, scale=reading.scale, steps=reading.steps)
        else:
            mean = [value / reading.micro_gradients for value in local]
            self.estimate = self.estimate.observe(
                mean, total, micro_gradients=reading.micro_gradients, scale=reading.scale, steps=reading.steps
            )

    def count_step(self) -> None:
        """The step is over."""
        if self.measuring:
            self._cost.count()

    def suitable_interval(self, step_s: float) -> int:
        """Every how many steps to measure if a step takes ``step_s``."""
        return self._cost.suitable_interval(step_s, pairs=self._single) or self.interval

    # --------------------------------------------------------------------------------------- norms

    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._trained.current]

    def _squared_norms(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """Squared norms by parameter group, of the gradients divided by what the optimiser divides them by.

        None where there are no gradients, or where only some of the divisors are known.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if not present:
            return None
        here = [gradient for gradient in gradients if gradient is not None]
        divisors = self._preconditioner.divisors(self._trained.current)
        if divisors is None and self._preconditioner.active:
            return None
        if divisors is not None:
            if not self._preconditioner.active:  # norms so far were those of other values: begin again
                self._preconditioner.active, self._kept = True, None
                self.estimate = NoiseEstimate.empty(self.groups)
            here = list(torch._foreach_div(here, [divisors[i] for i in present]))
        norms = torch.stack(torch._foreach_norm(here)).to(torch.float32) ** 2
        if self.groups == 1:
            return norms.sum().reshape(1)
        group_of = self._group_of if len(present) == len(gradients) else self._group_of[present]
        return torch.zeros(self.groups, device=self.device).index_add_(0, group_of, norms)
