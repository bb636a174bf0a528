"""Choose a job's batch plan while it trains, from the step times and the gradient noise that it measures itself.

The leader does this every few seconds in a thread of its own: fitting a model takes a few milliseconds, which training
should not wait for.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

from geminid.goodput.batchplan import BatchLimits, TunedPlan, best_plan, evaluate, untuned_plan, worth_retuning
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit, fit
from geminid.goodput.profile import Observation, Profile
from geminid.supervise.protocol import Plan
from geminid.train.group_view import Layout


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean times of some steps with one plan on one number of slots; None where no step was timed."""

    steps: int = 0
    accumulation_s: float | None = None
    step_s: float | None = None


class StepTimer:
    """Collects the times of passes and steps until they are reported."""

    #: The first steps after a change (another plan, another group) are slower than usual, and not counted.
    WARM_UP_STEPS = 2

    def __init__(self) -> None:
        self._skip = self.WARM_UP_STEPS
        self._clear()

    def _clear(self) -> None:
        self._accumulation_s, self._accumulations = 0.0, 0
        self._step_s, self._computing_s, self._steps = 0.0, 0.0, 0

    def restart(self) -> None:
        """The plan or the group has changed: begin to collect again, after a few steps."""
        self._skip = self.WARM_UP_STEPS
        self._clear()

    def add_accumulation(self, seconds: float) -> None:
        """A pass without synchronisation took this long."""
        if not self._skip:
            self._accumulation_s += seconds
            self._accumulations += 1

    def add_step(self, seconds: float, sync_s: float) -> None:
        """The last pass of a step took this long; it waited for other workers for ``sync_s`` of it."""
        if self._skip:
            self._skip -= 1
            if not self._skip:
                self._clear()
            return
        self._step_s += seconds
        self._computing_s += seconds - sync_s
        self._steps += 1

    def take(self) -> StepTimes:
        """What was collected since the last call. Where no pass only accumulates, a step's computing time is used."""
        if not self._steps:
            return StepTimes()
        if self._accumulations:
            accumulation_s = self._accumulation_s / self._accumulations
        else:
            accumulation_s = self._computing_s / self._steps
        taken = StepTimes(self._steps, accumulation_s, self._step_s / self._steps)
        self._clear()
        return taken


class Tuner:
    """Keeps what a job has measured, and finds the best plan. ``pinned`` is a plan to use in any case."""

    def __init__(self, limits: BatchLimits, *, round_down: bool = False) -> None:
        self.limits = limits
        self.pinned: Plan | None = None
        self._round_down = round_down
        self._profile = Profile()
        self._fit: ThroughputFit | None = None
        self._thread: threading.Thread | None = None
        self._proposal: tuple[Layout, Plan] | None = None

    @property
    def adaptive(self) -> bool:
        """Whether there is anything to choose."""
        return self.limits.largest > self.limits.initial

    def observe(self, layout: Layout, plan: Plan, times: StepTimes) -> None:
        """Add step times on slots with this layout."""
        if times.accumulation_s is None or times.step_s is None:
            return
        self._profile = self._profile.record(
            Observation(
                nodes=layout.nodes,
                slots=layout.slots,
                per_slot_batch=plan.per_slot_batch,
                accumulation_s=times.accumulation_s,
                step_s=times.step_s,
                busiest_node_slots=layout.busiest_node_slots,
                reports=1,
            )
        )

    def first_plan(self, layout: Layout, gradient: GradientStats) -> Plan:
        """The plan to begin with on slots with this layout.

        Raises:
            ValueError: the limits leave none.
        """
        if self.pinned is not None:
            return self.pinned
        if self.adaptive and self._fit is None and self._profile.observations:
            self._fit = fit(self._profile)
        if self.adaptive and self._fit is not None:
            best = self._best(self._fit, layout, gradient)
            if best.goodput > 0.0:
                return self._rounded(Plan(best.per_slot_batch, best.accumulation_steps), layout.slots)
        found = untuned_plan(self.limits, layout.slots)
        if found is None:
            raise ValueError(
                f"{layout.slots} slots are too many: each needs at least {self.limits.smallest_per_slot} samples of a "
                f"batch, which has at most {self.limits.largest}"
            )
        return Plan(*found)

    def _best(self, fitted: ThroughputFit, layout: Layout, gradient: GradientStats) -> TunedPlan:
        return best_plan(
            fitted,
            gradient,
            self.limits,
            nodes=layout.nodes,
            slots=layout.slots,
            busiest_node_slots=layout.busiest_node_slots,
        )

    def consider(self, layout: Layout, current: Plan, gradient: GradientStats) -> None:
        """Fit and look for a better plan in the background; ``proposal`` returns it later."""
        if not self.adaptive or self.pinned is not None or (self._thread is not None and self._thread.is_alive()):
            return
        profile = self._profile
        if not profile.observations:
            return
        self._thread = threading.Thread(
            target=self._consider, args=(profile, layout, current, gradient), name="geminid tuner", daemon=True
        )
        self._thread.start()

    def _consider(self, profile: Profile, layout: Layout, current: Plan, gradient: GradientStats) -> None:
        fitted = self._fit = fit(profile, previous=self._fit)
        best = self._best(fitted, layout, gradient)
        now = evaluate(
            fitted,
            gradient,
            self.limits,
            nodes=layout.nodes,
            slots=layout.slots,
            per_slot_batch=current.per_slot_batch,
            accumulation_steps=current.accumulation_steps,
            busiest_node_slots=layout.busiest_node_slots,
        )
        if worth_retuning(now, best):
            plan = self._rounded(Plan(best.per_slot_batch, best.accumulation_steps), layout.slots)
            self._proposal = (layout, plan)

    def proposal(self, layout: Layout) -> Plan | None:
        """A plan that is worth changing to, if one was found for this layout; it is returned once."""
        taken, self._proposal = self._proposal, None
        return taken[1] if taken is not None and taken[0] == layout else None

    def _rounded(self, plan: Plan, size: int) -> Plan:
        """Compiled models are compiled again for every batch size: use powers of two only."""
        if not self._round_down:
            return plan
        smaller = 1 << (plan.per_slot_batch.bit_length() - 1)
        total = size * smaller * (plan.accumulation_steps + 1)
        if smaller < self.limits.smallest_per_slot or total < self.limits.initial:
            return plan
        return Plan(smaller, plan.accumulation_steps)

    def state(self) -> dict[str, Any]:
        """What to save."""
        return {"observations": [asdict(seen) for seen in self._profile.observations]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what was saved."""
        self._profile = Profile.of(Observation(**seen) for seen in state["observations"])
