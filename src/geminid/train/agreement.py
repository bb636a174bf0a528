"""What workers send each other along with the gradients of a step, so that all of them do the same after it.

Every worker contributes a few numbers: whether it has an order to form another group, whether it has to stop, whether
its last step was taken, and codes of what must be the same everywhere. The leader adds its choice of how to train. The
numbers are summed over all workers, so all see the same. On a GPU they are read a step later, so that no worker waits
for them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from geminid.supervise.protocol import Plan
from geminid.train.choosing import Choice, Chooser
from geminid.train.fingerprint import Codes, Fingerprint
from geminid.train.norms import Reading
from geminid.train.worker import Worker

#: The numbers that every worker contributes, by index.
HAS_FORM, STOPPING, STEPPED, POSITION, ORDER, RATES, WEIGHTS, WEIGHTS_TOO, WEIGHED = range(9)

#: The numbers that only the leader contributes, by index. At FACTORS begin its learning-rate factors by parameter
#: group; every worker's squared gradient norms by parameter group follow.
PER_SLOT, ACCUMULATION, INTERVAL, EFFICIENCY, FACTORS = range(9, 14)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the workers have agreed on: how many have an order to form a group, whether to stop, and how to train."""

    have_form: int = 0
    stop: bool = False
    choice: Choice | None = None


@dataclass(slots=True)
class _Pending:
    """Numbers of a step that have not been read yet: they may still be on their way from the device."""

    numbers: Tensor | None
    reading: Reading | None
    norms: Tensor | None
    codes: Codes
    event: Any = None


class Agreement:
    """One worker's part in agreeing."""

    def __init__(self, worker: Worker, fingerprint: Fingerprint, chooser: Chooser) -> None:
        self._group, self._orders, self._limits = worker.group, worker.agent.orders, worker.limits
        self._fingerprint, self._chooser, self._meter = fingerprint, chooser, worker.state.meter
        meter = self._meter
        self._norms_begin = FACTORS + meter.groups
        self.count = FACTORS + 2 * meter.groups
        self._lag = 1 if meter.device.type == "cuda" else 0
        self._pending: deque[_Pending] = deque()
        self._codes = Codes()

    def forget(self) -> None:
        """A new group begins: what was sent in the one before counts no more."""
        self._pending.clear()

    # ------------------------------------------------------------------------------------------- during a step

    def fill_in(self, numbers: Tensor, *, stepped_before: bool, weighed: bool) -> None:
        """The gradients of a step are complete on this worker: fill in what it sends along with them.

        ``weighed`` says whether the script has given their weights.
        """
        values = [0.0] * self._norms_begin
        codes = self._codes = self._fingerprint.codes()
        values[HAS_FORM] = float(self._orders.form is not None)
        values[STOPPING] = float(self._orders.stop)
        values[STEPPED] = float(stepped_before)
        values[POSITION], values[ORDER], values[RATES] = float(codes.position), float(codes.order), float(codes.rates)
        values[WEIGHTS], values[WEIGHTS_TOO] = map(float, codes.weights)
        values[WEIGHED] = float(weighed)
        if self._group.leads:
            choice = self._chooser.choose()
            values[PER_SLOT], values[ACCUMULATION] = choice.plan.per_slot_batch, choice.plan.accumulation_steps
            values[INTERVAL], values[EFFICIENCY] = choice.noise_interval, choice.efficiency
            values[FACTORS:] = choice.factors
        numbers[: self._norms_begin] = torch.tensor(values, dtype=numbers.dtype)
        if self._meter.measuring:
            numbers[self._norms_begin :] = self._meter.local

    def averaged(self, numbers: Tensor | None, *, step: int, total: int, micro_gradients: int) -> None:
        """The averages are in place: take their norms, and keep the workers' numbers (None: one worker) for later."""
        kept = numbers.clone() if numbers is not None else None
        reading = self._meter.end_step(
            step,
            micro_gradients=micro_gradients,
            scale=total / self._limits.initial,
            local=kept[self._norms_begin :] if kept is not None else None,
        )
        norms = torch.cat([reading.local, reading.total]) if reading is not None else None
        if kept is None and norms is None:
            return
        event = None
        if self._lag:
            kept, norms = _copy_to_host(kept), _copy_to_host(norms)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append(_Pending(kept, reading, norms, self._codes, event))

    # ------------------------------------------------------------------------------------------- between two steps

    def read(self) -> Agreed:
        """What was agreed on, in the steps that can be read without waiting; their norms go into the noise estimate.

        Raises:
            RuntimeError: workers do not do the same; the sentence says what differs.
        """
        agreed = Agreed()
        while len(self._pending) > self._lag:
            pending = self._pending.popleft()
            if pending.event is not None:
                pending.event.synchronize()
            if pending.reading is not None and pending.norms is not None:
                values, groups = pending.norms.tolist(), self._meter.groups
                self._meter.fold(pending.reading, values[:groups], values[groups:])
            if pending.numbers is not None:
                agreed = self._decoded(pending.numbers.tolist(), pending.codes)
        if self._group.size == 1:
            return Agreed(int(self._orders.form is not None), self._orders.stop, self._chooser.choose())
        return agreed

    def check(self, numbers: Tensor) -> bool:
        """Compare the numbers that all sent without a step; whether their weights are the same.

        Raises:
            RuntimeError: workers do not do the same; the sentence says what differs.
        """
        values = numbers.tolist()
        self._check(values, self._codes)
        summed = round(values[WEIGHTS]), round(values[WEIGHTS_TOO])
        return summed == tuple(code * self._group.size for code in self._codes.weights)

    def _check(self, values: list[float], codes: Codes) -> None:
        size = self._group.size
        if round(values[POSITION]) != codes.position * size:
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
        weighed = round(values[WEIGHED])
        if 0 < weighed < size:
            raise RuntimeError(
                f"run.weight() was called on {weighed} of {size} workers in one step: call it for every batch or for "
                "none"
            )
        if round(values[RATES]) != codes.rates * size:
            raise RuntimeError(
                "learning rates differ between workers: call the schedule on all workers, with the same numbers, and "
                "give it to run.prepare() as lr_scheduler, so that workers that join later have it too"
            )

    def _decoded(self, values: list[float], codes: Codes) -> Agreed:
        self._check(values, codes)
        choice = Choice(
            plan=Plan(round(values[PER_SLOT]), round(values[ACCUMULATION])),
            factors=tuple(values[FACTORS : self._norms_begin]),
            efficiency=values[EFFICIENCY],
            noise_interval=max(1, round(values[INTERVAL])),
        )
        return Agreed(round(values[HAS_FORM]), values[STOPPING] > 0.0, choice)


def _copy_to_host(tensor: Tensor | None) -> Tensor | None:
    """A copy in pinned main memory, which the device fills in later."""
    if tensor is None:
        return None
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
