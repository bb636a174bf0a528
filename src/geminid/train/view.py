"""What a script can ask its run: this worker's place in the group, and how training goes."""

from __future__ import annotations

import torch

from geminid.supervise import protocol
from geminid.train.session import Session


class RunView:
    """The part of ``Run`` that only reads. Before ``prepare`` it is that of one worker that has not begun."""

    _session: Session | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this is the first worker: the one to print, evaluate and save."""
        return self._session is None or self._session.group.rank == 0

    @property
    def rank(self) -> int:
        """This worker's number, from 0; it may change at a rescale."""
        return self._session.group.rank if self._session is not None else 0

    @property
    def size(self) -> int:
        """Number of workers; it may change at a rescale."""
        return self._session.group.size if self._session is not None else 1

    @property
    def device(self) -> torch.device:
        """Where to put the model and the batches."""
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    @property
    def step(self) -> int:
        """Optimiser steps taken so far."""
        return self._session.position.step if self._session is not None else 0

    @property
    def stepped(self) -> bool:
        """Whether ``optimizer.step()`` has taken effect with the batch under way.

        The body of the loop over batches runs once per pass. Where a step has several passes, this is true in the last
        of them, after ``optimizer.step()``: use it for work that is done once per step.
        """
        step = self._session.step if self._session is not None else None
        return step is not None and step.share is not None and step.stepped

    @property
    def in_effect(self) -> bool:
        """Whether ``optimizer.step()`` takes effect now: not in passes that only accumulate."""
        return self._session is None or self._session.step.in_effect

    @property
    def training(self) -> bool:
        """Whether the loop over epochs or steps is under way."""
        return self._session is not None and self._session.progress.training

    @property
    def in_loop(self) -> bool:
        """Whether the loop over batches is under way."""
        return self._session is not None and self._session.progress.in_loop

    @property
    def progress(self) -> float:
        """Useful samples so far."""
        return self._session.position.progress if self._session is not None else 0.0

    @property
    def batch_plan(self) -> protocol.Plan:
        """The batch plan in use."""
        return self._prepared().step.current.plan

    @property
    def learning_rate_factors(self) -> list[float]:
        """What the learning rate of each parameter group is multiplied by at the batch size in use."""
        return list(self._prepared().step.current.choice.factors)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None while unknown."""
        worker = self._prepared().worker
        noise = worker.state.meter.estimate
        return noise.stats().noise_scale(worker.limits.initial) if noise.known else None

    @property
    def noise_interval(self) -> int:
        """Every how many steps the gradient noise is measured."""
        return self._prepared().worker.state.meter.interval

    def measure_noise(self, wanted: bool) -> None:
        """Whether to measure the gradient noise; do the same on all workers."""
        self._prepared().worker.state.meter.enabled = wanted

    def _prepared(self) -> Session:
        if self._session is None:
            raise RuntimeError("run.prepare() has not been called")
        return self._session
