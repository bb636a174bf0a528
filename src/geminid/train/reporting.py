"""What a job tells about itself: step times, noise, progress and metrics, to its supervisor or into a file.

Every worker tells its metrics, everything else is the leader's to tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geminid.supervise import protocol
from geminid.supervise.protocol import REPORT_S, TUNE_S, Plan, credible, credible_metrics
from geminid.train.agent import Agent
from geminid.train.agreement import Agreement, Place
from geminid.train.norms import NoiseMeter
from geminid.train.trainstate import TrainingState
from geminid.train.tuner import StepClock, Tuner


class Reporter:
    """Collects step times; the leader passes them on to its tuner, and reports.

    ``clock`` is to be told of every pass, ``metrics`` of whatever the script wants to tell.
    """

    def __init__(
        self,
        place: Place,
        state: TrainingState,
        *,
        agent: Agent | None,
        file: Path | None,
        agreement: Agreement,
        meter: NoiseMeter,
        tuner: Tuner,
    ) -> None:
        self._place, self._state, self._agent, self._file = place, state, agent, file
        self._agreement, self._meter, self._tuner = agreement, meter, tuner
        self.clock = StepClock()
        self.metrics: dict[str, Any] = {}
        self._reported_at_s = self._tuned_at_s = time.monotonic()

    def now_and_then(self, plan: Plan, total_batch: int, factors: Sequence[float]) -> None:
        """Report, and look for a better plan, when the time has come."""
        now = time.monotonic()
        if self._is_due:
            self.report(plan, total_batch, factors)
        if now - self._tuned_at_s >= TUNE_S:
            self._tuned_at_s = now
            self._tuner.consider(self._place.layout, plan, self._meter.estimate.stats())

    def tell_now_and_then(self) -> None:
        """On a worker that does not lead: tell its metrics when the time has come."""
        if self._is_due:
            self.tell()

    def tell(self) -> None:
        """Tell this worker's metrics: the supervisor averages them with the leader's."""
        self._reported_at_s = time.monotonic()
        if self._agent is not None and self.metrics:
            metrics = credible_metrics(self.metrics)
            self._agent.send(protocol.Metrics(generation=self._place.generation, metrics=metrics))

    @property
    def _is_due(self) -> bool:
        report_s = self._agent.report_s if self._agent is not None else REPORT_S
        return time.monotonic() - self._reported_at_s >= report_s

    def report(self, plan: Plan, total_batch: int, factors: Sequence[float]) -> None:
        """Report now."""
        self._reported_at_s = time.monotonic()
        times = self.clock.take()
        self._tuner.observe(self._place.layout, plan, times)
        if times.step_s is not None and times.accumulation_s is not None:
            iteration_s = plan.accumulation_steps * times.accumulation_s + times.step_s
            self._agreement.wanted_interval = self._meter.suitable_interval(iteration_s)
        if self._agent is None and self._file is None:
            return
        estimate, position = self._meter.estimate, self._state.position
        stats = estimate.stats() if estimate.known else None
        report = protocol.Progress(
            generation=self._place.generation,
            step=position.step,
            epoch=position.epoch,
            samples=position.samples,
            progress=position.progress,
            size=self._place.size,
            plan=plan,
            total_batch=total_batch,
            steps=times.steps,
            accumulation_s=times.accumulation_s,
            step_s=times.step_s,
            squared_gradient=credible(stats.squared_gradient) if stats is not None else None,
            variance=credible(stats.variance) if stats is not None else None,
            learning_rate_factor=sum(factors) / len(factors),
            metrics=credible_metrics(self.metrics),
        )
        if self._agent is not None:
            self._agent.send(report)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(protocol.encode(report))
