"""What a job reports about itself: step times, noise, progress and metrics, to its supervisor or into a file.

Every worker reports its metrics; everything else is reported by the leader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geminid.supervise import protocol
from geminid.supervise.protocol import TUNE_S, credible, credible_metrics
from geminid.train.step import Step
from geminid.train.worker import Worker


class Reporter:
    """Reports at intervals; on the leader it also feeds step times to the tuner.

    ``metrics`` holds the newest values that the script has reported.
    """

    def __init__(self, worker: Worker, step: Step, file: Path | None) -> None:
        self._agent, self._group, self._state = worker.agent, worker.group, worker.state
        self._meter, self._clock = worker.state.meter, worker.clock
        self._current, self._chooser, self._file = step.current, step.chooser, file
        self.metrics: dict[str, Any] = {}
        self._reported_at_s = self._tuned_at_s = self._clock.monotonic_s()

    def report_if_due(self) -> None:
        """Report, and on the leader look for a better batch plan, if it is time to."""
        now_s = self._clock.monotonic_s()
        if now_s - self._reported_at_s >= self._agent.report_s:
            self.report()
        if self._group.leads and now_s - self._tuned_at_s >= TUNE_S:
            self._tuned_at_s = now_s
            self._state.tuner.consider(self._group.layout, self._current.plan, self._meter.estimate.stats())

    def report(self) -> None:
        """Report now."""
        self._reported_at_s = self._clock.monotonic_s()
        if self._group.leads:
            self._report_progress()
        elif self.metrics:  # the supervisor averages them with the leader's
            metrics = credible_metrics(self.metrics)
            self._agent.send(protocol.Metrics(generation=self._group.generation, metrics=metrics))

    def _report_progress(self) -> None:
        plan, times = self._current.plan, self._current.timer.take()
        self._state.tuner.observe(self._group.layout, plan, times)
        if times.step_s is not None and times.accumulation_s is not None:
            iteration_s = plan.accumulation_steps * times.accumulation_s + times.step_s
            self._chooser.noise_interval = self._meter.suitable_interval(iteration_s)
        if not self._agent.supervised and self._file is None:
            return
        estimate, position, factors = self._meter.estimate, self._state.position, self._current.choice.factors
        stats = estimate.stats() if estimate.known else None
        report = protocol.Progress(
            generation=self._group.generation,
            step=position.step,
            epoch=position.epoch,
            samples=position.samples,
            progress=position.progress,
            size=self._group.size,
            plan=plan,
            total_batch=self._current.total_batch,
            steps=times.steps,
            accumulation_s=times.accumulation_s,
            step_s=times.step_s,
            squared_gradient=credible(stats.squared_gradient) if stats is not None else None,
            variance=credible(stats.variance) if stats is not None else None,
            learning_rate_factor=sum(factors) / len(factors),
            metrics=credible_metrics(self.metrics),
        )
        self._agent.send(report)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(protocol.encode(report))
