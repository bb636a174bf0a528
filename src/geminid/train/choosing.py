"""How a job trains: its batch plan and what follows from it, as the leader chooses and all workers apply."""

from __future__ import annotations

from msgspec import Struct

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.learning_rate import RULES, TrainingPoint
from geminid.goodput.noise import NoiseEstimate
from geminid.supervise.protocol import Plan
from geminid.train.settings import Settings
from geminid.train.tuner import StepTimer
from geminid.train.worker import Worker


class Choice(Struct, frozen=True):
    """How to train, from some step on.

    ``factors`` multiply the learning rates of the parameter groups, ``efficiency`` is useful samples per sample, and
    the gradient noise is measured every ``noise_interval`` steps.
    """

    plan: Plan
    factors: tuple[float, ...]
    efficiency: float = 1.0
    noise_interval: int = 1


class Chooser:
    """Chooses for the whole job; only the leader's choices count.

    ``plan`` is the one that it wants, and ``noise_interval`` how often it wants the noise to be measured.
    """

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self._group, self._orders, self._limits = worker.group, worker.agent.orders, worker.limits
        self._progress, self._tuner, self._meter = worker.state.progress, worker.state.tuner, worker.state.meter
        self._settings = settings
        self.plan = Plan(self._limits.smallest_per_slot)
        self.noise_interval = 1
        self._derived_from: tuple[NoiseEstimate, Plan, int, float] | None = None
        self._factors, self._efficiency = (1.0,) * self._meter.groups, 1.0

    def choose(self) -> Choice:
        """The choice for the next steps: the plan that the supervisor has ordered, or else the tuner's."""
        order = self._orders.take_retune()
        if order is not None:
            self._tuner.pinned = order.plan
            self.plan = order.plan or self.plan
        elif self._tuner.pinned is None:
            self.plan = self._tuner.proposal(self._group.layout) or self.plan
        return self._choice()

    def choose_first(self, ordered: Plan | None) -> Choice:
        """The choice for a group that has just been formed; ``ordered`` is the supervisor's plan, if it has one."""
        self._tuner.pinned = ordered if ordered is not None else self._tuner.pinned
        stats = self._meter.estimate.stats()
        self.plan = ordered if ordered is not None else self._tuner.first_plan(self._group.layout, stats)
        return self._choice()

    def _choice(self) -> Choice:
        """The wanted plan, with learning-rate factors and efficiency, computed again if something has changed."""
        estimate, size, rules = self._meter.estimate, self._group.size, self._settings.scaling_rules
        epochs = self._progress.epochs_done if "legw" in rules else 0.0
        if self._derived_from != (estimate, self.plan, size, epochs):
            self._derived_from = (estimate, self.plan, size, epochs)
            scale = total_batch(self._limits, size, self.plan) / self._limits.initial
            point = TrainingPoint(
                scale=scale,
                noise=estimate,
                progress_epochs=epochs,
                base_warmup_epochs=self._settings.warmup_epochs,
            )
            by_rule = {rule: RULES[rule](point) for rule in set(rules)}
            self._factors = tuple(float(by_rule[rule][number]) for number, rule in enumerate(rules))
            self._efficiency = min(1.0, estimate.stats().efficiency(scale)) if scale > 1.0 else 1.0
        return Choice(self.plan, self._factors, self._efficiency, self.noise_interval)


class CurrentChoice:
    """The choice in effect on this worker. ``timer`` collects the times of steps with its batch plan."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self.timer = worker, StepTimer()
        plan = Plan(worker.limits.smallest_per_slot)
        self.choice = Choice(plan, (1.0,) * worker.state.meter.groups)
        self._applied = False

    @property
    def plan(self) -> Plan:
        """The batch plan in use."""
        return self.choice.plan

    @property
    def total_batch(self) -> int:
        """Samples per step."""
        return total_batch(self._worker.limits, self._worker.group.size, self.choice.plan)

    def apply(self, choice: Choice, *, new_group: bool = False) -> None:
        """Train by this choice from now on."""
        before, after = self.choice.plan.per_slot_batch, choice.plan.per_slot_batch
        if new_group or choice.plan != self.choice.plan:
            self.timer.restart()
            if self._applied:
                self._worker.advice.plan_changes(before, after)
                self._worker.watch.expect(after / before)
        self.choice, self._applied = choice, True
        self._worker.state.meter.interval = choice.noise_interval


def total_batch(limits: BatchLimits, slots: int, plan: Plan) -> int:
    """Samples per step on this many slots."""
    return limits.total(slots, plan.per_slot_batch, plan.accumulation_steps)
