"""What workers tell each other along with the gradients of a step, so that all of them do the same after it.

Every worker adds a few numbers: whether it has an order to form another group, whether it wants to stop, whether its
last step was taken, and codes of what must be the same everywhere: the order of the data, the place in it, the
learning rates and, at the end of an epoch, the weights. The leader adds its wishes: the batch plan, learning-rate
factors for it, its efficiency, and how often to measure the noise. All see the same sums. On a GPU they are read a step
later, so that nobody waits for them.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.learning_rate import RULES, TrainingPoint
from geminid.goodput.noise import NoiseEstimate
from geminid.supervise.protocol import Plan
from geminid.train.agent import Agent
from geminid.train.data import LARGEST_CODE
from geminid.train.norms import NoiseMeter, Reading
from geminid.train.tuner import Layout, Tuner

#: The numbers, in order; learning-rate factors and squared norms by parameter group follow them.
HAS_FORM, STOPPING, STEPPED, PLACE, ORDER, RATES, WEIGHTS, WEIGHTS_TOO = range(8)
PER_SLOT, ACCUMULATION, INTERVAL, EFFICIENCY, FIXED = range(8, 13)


@dataclass(frozen=True, slots=True)
class Codes:
    """Small numbers of what must be the same on all workers; most likely they differ where it does.

    The weights have two, so that all notice a difference, but only where they are compared.
    """

    place: int = 0
    order: int = 0
    rates: int = 0
    weights: tuple[int, int] = (0, 0)


def code_of(*values: float) -> int:
    """A code of some numbers: small enough for those of thousands of workers to add up exactly."""
    return zlib.crc32(repr(values).encode()) % LARGEST_CODE


@dataclass(slots=True)
class Place:
    """A worker's place among the workers of a generation; ``lost`` says why that cannot go on, if so.

    With ``held`` they are fewer than the job needs, and take no step before others have joined them.
    """

    rank: int = 0
    generation: int = 0
    layout: Layout = field(default_factory=Layout)
    lost: str | None = None
    held: bool = False

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self.layout.slots


@dataclass(slots=True)
class Told:
    """What the workers told each other, summed up. Without a plan nothing was told."""

    have_form: int = 0
    stopping: bool = False
    plan: Plan | None = None
    factors: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """Numbers of a step that have not been read yet: they may still be on their way from the device."""

    numbers: Tensor | None
    reading: Reading | None
    norms: Tensor | None
    codes: Codes = field(default_factory=Codes)
    event: Any = None


class Agreement:
    """One worker's part in telling and being told."""

    def __init__(
        self,
        place: Place,
        *,
        agent: Agent | None,
        tuner: Tuner,
        meter: NoiseMeter,
        limits: BatchLimits,
        scaling_rule: str,
        warmup_epochs: float,
        wants_to_stop: Callable[[], bool],
        epochs_done: Callable[[], float],
        codes: Callable[[], Codes],
    ) -> None:
        self._place, self._agent, self._tuner, self._meter = place, agent, tuner, meter
        self._limits, self._rule, self._warmup_epochs = limits, scaling_rule, warmup_epochs
        self._wants_to_stop, self._epochs_done, self._codes = wants_to_stop, epochs_done, codes
        self._groups = meter.groups
        self._lag = 1 if meter.device.type == "cuda" else 0
        self._pending: deque[_Pending] = deque()
        self.count = FIXED + 2 * self._groups
        #: Useful samples per sample at the plan in use.
        self.efficiency = 1.0
        #: The leader's wishes.
        self.wanted_plan = Plan(limits.smallest_per_slot)
        self.wanted_interval = 1
        self._wanted_efficiency = 1.0
        self._factors = [1.0] * self._groups
        self._factors_for: tuple[NoiseEstimate, Plan, int, float] | None = None

    # ------------------------------------------------------------------------------------------- during a step

    def fill_in(self, numbers: Tensor, *, stepped_before: bool) -> None:
        """The gradients of a step are complete on this worker: what it tells the others along with them."""
        values = [0.0] * (FIXED + self._groups)
        values[HAS_FORM] = float(self._has_form)
        values[STOPPING] = float(self._wants_to_stop())
        codes = self._codes()
        values[STEPPED] = float(stepped_before)
        values[PLACE], values[ORDER], values[RATES] = float(codes.place), float(codes.order), float(codes.rates)
        values[WEIGHTS], values[WEIGHTS_TOO] = map(float, codes.weights)
        if self._place.rank == 0:
            plan = self._choose_plan()
            values[FIXED:] = self._factors_of(plan)
            values[PER_SLOT], values[ACCUMULATION] = plan.per_slot_batch, plan.accumulation_steps
            values[INTERVAL], values[EFFICIENCY] = self.wanted_interval, self._wanted_efficiency
        numbers[: len(values)] = torch.tensor(values, dtype=numbers.dtype)
        if self._meter.measuring:
            numbers[len(values) :] = self._meter.local

    def averaged(self, numbers: Tensor | None, *, step: int, total: int, micro_gradients: int) -> None:
        """The averages are in place: take their norms, and keep what was told (None: by nobody) for later."""
        kept = numbers.clone() if numbers is not None else None
        reading = self._meter.take_step(
            step,
            micro_gradients=micro_gradients,
            scale=total / self._limits.initial,
            local=kept[FIXED + self._groups :] if kept is not None else None,
        )
        norms = torch.cat([reading.local, reading.total]) if reading is not None else None
        if kept is None and norms is None:
            return
        event = None
        if self._lag:
            kept, norms = _on_its_way(kept), _on_its_way(norms)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append(_Pending(kept, reading, norms, self._codes() if kept is not None else Codes(), event))

    # ------------------------------------------------------------------------------------------- between two steps

    def read(self) -> Told:
        """What was told, of the steps that can be read without waiting; their norms go into the estimate.

        Raises:
            RuntimeError: workers do not do the same; the sentence says in what.
        """
        told = Told()
        while len(self._pending) > self._lag:
            pending = self._pending.popleft()
            if pending.event is not None:
                pending.event.synchronize()
            if pending.reading is not None and pending.norms is not None:
                values = pending.norms.tolist()
                self._meter.fold(pending.reading, values[: self._groups], values[self._groups :])
            if pending.numbers is not None:
                told = self._understood(pending.numbers.tolist(), pending.codes)
        if self._place.size == 1:
            plan = self._choose_plan()
            factors = self._factors_of(plan)
            self._meter.interval, self.efficiency = self.wanted_interval, self._wanted_efficiency
            told = Told(int(self._has_form), self._wants_to_stop(), plan, factors)
        return told

    def check(self, numbers: Tensor) -> bool:
        """Compare what all told each other without a step; whether their weights are the same.

        Raises:
            RuntimeError: workers do not do the same; the sentence says in what.
        """
        values, codes = numbers.tolist(), self._codes()
        self._check(values, codes)
        together = round(values[WEIGHTS]), round(values[WEIGHTS_TOO])
        return together == tuple(code * self._place.size for code in codes.weights)

    def _check(self, values: list[float], codes: Codes) -> None:
        size = self._place.size
        if round(values[PLACE]) != codes.place * size:
            raise RuntimeError(
                "workers are at different places: the loop over batches or over epochs was left on some workers only, "
                "or run.agree() or run.gather() called on some only (do it on all of them or on none), or they have "
                "different data"
            )
        if round(values[ORDER]) != codes.order * size:
            raise RuntimeError(
                "the loader's sampler gives workers different orders: draw from PyTorch's, numpy's or Python's global "
                "generator, or from one in its attribute 'generator', which are seeded alike"
            )
        stepped = round(values[STEPPED])
        if 0 < stepped < size:
            raise RuntimeError(
                f"optimizer.step() was called on {stepped} of {size} workers in one step: the loop must do the same on "
                "all of them"
            )
        if round(values[RATES]) != codes.rates * size:
            raise RuntimeError(
                "learning rates differ between workers: call the schedule on all workers, with the same numbers, and "
                "give it to run.prepare() as lr_scheduler, so that newcomers have it too"
            )

    def _understood(self, values: list[float], codes: Codes) -> Told:
        self._check(values, codes)
        self._meter.interval, self.efficiency = max(1, round(values[INTERVAL])), values[EFFICIENCY]
        return Told(
            have_form=round(values[HAS_FORM]),
            stopping=values[STOPPING] > 0.0,
            plan=Plan(round(values[PER_SLOT]), round(values[ACCUMULATION])),
            factors=values[FIXED : FIXED + self._groups],
        )

    @property
    def _has_form(self) -> bool:
        return self._agent is not None and self._agent.form is not None

    # ------------------------------------------------------------------------------------------- the leader's wishes

    def _choose_plan(self) -> Plan:
        """The batch plan that orders, or the tuner, ask for."""
        order = self._agent.take_retune() if self._agent is not None else None
        if order is not None:
            self._tuner.pinned = order.plan
            self.wanted_plan = order.plan or self.wanted_plan
        elif self._tuner.pinned is None:
            self.wanted_plan = self._tuner.proposal(self._place.layout) or self.wanted_plan
        return self.wanted_plan

    def _factors_of(self, plan: Plan) -> list[float]:
        """Learning-rate factors for a plan; its efficiency is worked out as well."""
        estimate, size = self._meter.estimate, self._place.size
        epochs = self._epochs_done() if self._rule == "legw" else 0.0
        if self._factors_for != (estimate, plan, size, epochs):
            scale = self._limits.total(size, plan.per_slot_batch, plan.accumulation_steps) / self._limits.initial
            point = TrainingPoint(
                scale=scale, noise=estimate, progress_epochs=epochs, base_warmup_epochs=self._warmup_epochs
            )
            self._factors = [float(factor) for factor in RULES[self._rule](point)]
            self._wanted_efficiency = min(1.0, estimate.stats().efficiency(scale)) if scale > 1.0 else 1.0
            self._factors_for = (estimate, plan, size, epochs)
        return self._factors

    # ------------------------------------------------------------------------------------------- a new generation

    def propose(self, plan: Plan | None) -> dict[str, Any]:
        """What the leader decides when a group has been formed, as JSON; ``plan`` is what it was ordered, if so."""
        self._tuner.pinned = plan if plan is not None else self._tuner.pinned
        stats = self._meter.estimate.stats()
        self.wanted_plan = plan if plan is not None else self._tuner.first_plan(self._place.layout, stats)
        return {
            "plan": structs.asdict(self.wanted_plan),
            "factors": self._factors_of(self.wanted_plan),
            "efficiency": self._wanted_efficiency,
            "interval": self.wanted_interval,
        }

    def begin(self, proposal: dict[str, Any]) -> Told:
        """A generation begins as its leader has decided."""
        self._pending.clear()
        self.wanted_plan = Plan(**proposal["plan"])
        self.efficiency, self._meter.interval = proposal["efficiency"], proposal["interval"]
        return Told(plan=self.wanted_plan, factors=proposal["factors"])


def _on_its_way(tensor: Tensor | None) -> Tensor | None:
    """A copy in pinned main memory, which the device fills in when it gets there."""
    if tensor is None:
        return None
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
