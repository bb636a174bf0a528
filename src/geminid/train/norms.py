"""Measure the gradient noise while training: norms, taken with a few fused kernels, and not more often than pays.

Steps that average several passes compare the passes' norms with the average's. Where a step has a single pass, every
so often two consecutive gradients are compared (``goodput/noise.py`` has the formulas). For Adam and its kin gradients
are divided by what the optimiser divides them by, once it has taken a few steps. Everything stays on the device until
the numbers are read, a step later where that would otherwise wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from geminid.goodput.noise import NoiseEstimate

#: Measuring may take this share of the training time; it is done every so many steps that it does not take more.
BUDGET = 0.008

#: At least every so many steps.
LONGEST_INTERVAL = 64

#: Adam's estimates of the gradients' scale are used after this many of its steps.
STEPS_BEFORE_PRECONDITIONING = 5

#: The first measurements are slow (memory is allocated, kernels are loaded): so many do not count.
UNTIMED_MEASUREMENTS = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """Squared norms of one step, by parameter group, still on the device.

    ``local`` is the sum over the passes (after averaging over workers: of all workers), ``total`` belongs to the
    average. For a step with a single pass, ``local`` is that of this step's gradient plus that of the one before, and
    ``total`` that of their mean.
    """

    local: Tensor
    total: Tensor
    micro_gradients: int
    scale: float
    steps: int
    paired: bool
    preconditioned: bool


class NoiseMeter:
    """Takes the norms of one optimiser's gradients."""

    def __init__(self, optimizer: Optimizer, loss_scale: Callable[[], Tensor | None]) -> None:
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self.groups = len(optimizer.param_groups)
        self._all = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._device: torch.device = self._all[0].device
        self.estimate = NoiseEstimate.empty(self.groups)
        self.interval = 1
        self.enabled = True
        self.local = torch.zeros(self.groups, device=self._device)
        self._measuring, self._single = False, False
        self._divisors: list[Tensor] | None = None
        self._preconditioned = False
        self._kept: list[Tensor] | None = None
        self._kept_norms, self._kept_step = self.local, -2
        self._last_measured = 0
        self._cost_s, self._measured = 0.0, 0
        self._events: list[tuple[Any, Any]] = []
        self._look_again()

    def _look_again(self) -> None:
        """Find out which parameters are trained: the others have no noise."""
        self._trained = [parameter.requires_grad for parameter in self._all]
        self._parameters = [parameter for parameter in self._all if parameter.requires_grad]
        self._group_of = torch.tensor(
            [
                number
                for number, group in enumerate(self._optimizer.param_groups)
                for parameter in group["params"]
                if parameter.requires_grad
            ],
            device=self._device,
        )
        self._kept, self._kept_step = None, -2

    def state(self) -> dict[str, Any]:
        """What to keep besides the estimate."""
        return {
            "preconditioned": self._preconditioned,
            "optimizer_steps": self._last_count,
            "last_measured": self._last_measured,
        }

    def take_state(self, state: dict[str, Any]) -> None:
        """Go on from what was kept."""
        self._preconditioned, self._last_count = state["preconditioned"], state["optimizer_steps"]
        self._last_measured, self._kept_step = state.get("last_measured", 0), -2

    # --------------------------------------------------------------------------------------- one step

    def begin_step(self, step: int, *, micro_gradients: int, whole: bool) -> None:
        """A step begins; it is measured if its turn has come and it is a whole one."""
        if self._trained != [parameter.requires_grad for parameter in self._all]:
            self._look_again()
        self._single = micro_gradients == 1
        turn = step % self.interval
        self._measuring = self.enabled and whole and (turn == 0 or (self._single and turn == 1 and self.interval > 1))
        self._divisors = None
        if self._measuring:
            self.local.zero_()

    @property
    def measuring(self) -> bool:
        """Whether this step is measured."""
        return self._measuring

    def take_pass(self) -> None:
        """A pass is through: add the squared norms of its gradients."""
        if not self._measuring or self._single:
            return
        with self._timed():
            norms = self._squared_norms(self._gradients())
            if norms is not None:
                self.local += norms

    def take_step(self, step: int, *, micro_gradients: int, scale: float, local: Tensor | None) -> Reading | None:
        """The averages are in place: what can be said about this step. ``local`` is that of all workers."""
        if not self._measuring:
            return None
        with self._timed():
            if self._single:
                return self._compare_with_last(step, scale)
            total = self._squared_norms(self._gradients())
            if total is None:
                return None
            summed = (self.local if local is None else local).clone()
            return self._reading(step, summed, total, micro_gradients, scale, paired=False)

    def _compare_with_last(self, step: int, scale: float) -> Reading | None:
        gradients = self._gradients()
        if any(gradient is None for gradient in gradients):
            return None
        here = [gradient for gradient in gradients if gradient is not None]
        norms = self._squared_norms(here)
        if norms is None:
            return None
        reading = None
        if self._kept is not None and self._kept_step == step - 1:
            torch._foreach_add_(self._kept, here)
            torch._foreach_mul_(self._kept, 0.5)
            mean = self._squared_norms(self._kept)
            assert mean is not None
            reading = self._reading(step, self._kept_norms + norms, mean, 1, scale, paired=True)
        if self._kept is None:
            self._kept = [torch.empty_like(gradient) for gradient in here]
        if reading is None or self.interval == 1:
            torch._foreach_copy_(self._kept, here)
            self._kept_norms, self._kept_step = norms, step
        return reading

    def _reading(
        self, step: int, local: Tensor, total: Tensor, micro_gradients: int, scale: float, *, paired: bool
    ) -> Reading:
        steps = max(1, min(step - self._last_measured, LONGEST_INTERVAL))
        self._last_measured = step
        loss_scale = self._loss_scale()
        if loss_scale is not None:
            squared = loss_scale.to(local.device, non_blocking=True) ** 2
            local, total = local / squared, total / squared
        return Reading(local, total, micro_gradients, scale, steps, paired, self._preconditioned)

    def fold(self, reading: Reading, local: Sequence[float], total: Sequence[float]) -> None:
        """Take the numbers of a reading, now that they are here, into the estimate."""
        if reading.preconditioned != self._preconditioned:
            return  # taken before the optimiser knew its gradients' scale: they cannot be compared
        if reading.paired:
            half = [value / 2.0 for value in local]
            self.estimate = self.estimate.observe_pair(half, half, total, scale=reading.scale, steps=reading.steps)
        else:
            mean = [value / reading.micro_gradients for value in local]
            self.estimate = self.estimate.observe(
                mean, total, micro_gradients=reading.micro_gradients, scale=reading.scale, steps=reading.steps
            )

    # --------------------------------------------------------------------------------------- norms

    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._parameters]

    def _squared_norms(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """Squared norms by parameter group, of the gradients divided by what the optimiser divides them by.

        None where there are no gradients, or not yet that by which those of some are divided, while it is for others.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if not present:
            return None
        here = [gradient for gradient in gradients if gradient is not None]
        divisors = self._preconditioner()
        if divisors is None and self._preconditioned:
            return None
        if divisors is not None:
            here = list(torch._foreach_div(here, [divisors[i] for i in present]))
        norms = torch.stack(torch._foreach_norm(here)).to(torch.float32) ** 2
        if self.groups == 1:
            return norms.sum().reshape(1)
        group_of = self._group_of if len(present) == len(gradients) else self._group_of[present]
        return torch.zeros(self.groups, device=self._device).index_add_(0, group_of, norms)

    def _preconditioner(self) -> list[Tensor] | None:
        """sqrt(v̂) + ε of every parameter for Adam and its kin; None for others, and in the first few steps."""
        if self._divisors is not None:
            return self._divisors
        state, trained = self._optimizer.state, set(self._parameters)
        squares, corrections, epsilons = [], [], []
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in trained:
                    continue
                own = state.get(parameter, {})
                square = own.get("exp_avg_sq", own.get("square_avg"))
                if square is None:
                    return None
                count = own.get("step", 0)
                steps = _steps_of(count, self._last_count)
                if steps < STEPS_BEFORE_PRECONDITIONING:
                    return None
                squares.append(square)
                beta = group["betas"][1] if "betas" in group else group.get("alpha", 0.0)
                corrections.append(1.0 - beta**steps if "exp_avg_sq" in own else 1.0)
                epsilons.append(group.get("eps", 1e-8))
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, [math.sqrt(correction) for correction in corrections])
        torch._foreach_add_(divisors, epsilons)
        self._divisors = list(divisors)
        if not self._preconditioned:
            self._preconditioned, self._kept_step = True, -2
            self.estimate = NoiseEstimate.empty(self.groups)
        return self._divisors

    #: How many steps the optimiser has taken, counted here: its own counter may live on the device.
    _last_count = 0

    def stepped(self) -> None:
        """The optimiser has taken a step."""
        self._last_count += 1

    # --------------------------------------------------------------------------------------- cost

    def _timed(self) -> _Timed:
        return _Timed(self)

    def add_cost(self, seconds: float) -> None:
        """Measuring took this long."""
        self._cost_s += seconds

    def end_step(self) -> None:
        """A step is over."""
        if self._measuring:
            self._measured += 1
            if self._measured == UNTIMED_MEASUREMENTS:
                self._cost_s = 0.0
                self._events.clear()

    def suitable_interval(self, step_s: float) -> int:
        """Every how many steps to measure, given how long a step takes, so as to stay within the budget."""
        timed = self._measured - UNTIMED_MEASUREMENTS
        if timed < 1 or step_s <= 0.0:
            return self.interval
        on_device_s = sum(begin.elapsed_time(end) for begin, end in self._events if end.query()) / 1000.0
        cost_s = max(self._cost_s, on_device_s) / timed
        turns = 2 if self._single else 1
        wanted: int = max(1, math.ceil(turns * cost_s / (BUDGET * step_s)))
        if wanted > 1 and self._single:
            wanted = max(wanted, 3)
        if timed > LONGEST_INTERVAL:
            self._cost_s, self._measured = 0.0, 0
        self._events.clear()
        return min(wanted, LONGEST_INTERVAL)

    @property
    def events(self) -> list[tuple[Any, Any]]:
        """Pairs of device events around what was measured."""
        return self._events

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self._device


class _Timed:
    """Times a piece of measuring on the host and, where there is one, on the device."""

    def __init__(self, meter: NoiseMeter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._begin_s = perf_counter()
        self._begin = None
        if self._meter.device.type == "cuda":
            self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._begin.record()

    def __exit__(self, *problem: object) -> None:
        if self._begin is not None:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self._meter.events.append((self._begin, end))
        self._meter.add_cost(perf_counter() - self._begin_s)


def _steps_of(count: Any, counted: int) -> float:
    """An optimiser's own count of its steps; ours where that would mean waiting for the device."""
    if isinstance(count, Tensor):
        return float(count) if count.device.type == "cpu" else float(counted)
    return float(count)
