"""Training in one worker, from the side of the library: which samples come next, and what happens between steps.

The user's loop asks for the next batch; everything else happens then. Between two steps (a *boundary*) the worker looks
at what all workers told each other along with the gradients of a step, so that all of them do the same: change the
batch plan, form a new group, save and stop. If a collective operation fails, the step is not taken, the loop's body is
run to its end without effect, and at the boundary the survivors form a new group and repeat the step.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.learning_rate import RULES, TrainingPoint
from geminid.goodput.noise import NoiseEstimate
from geminid.train import messages, peers, rng
from geminid.train.agent import Agent
from geminid.train.checkpoint import BackgroundWriter, CheckpointFolder, Written, take_snapshot
from geminid.train.data import source_of
from geminid.train.gradients import Gradients
from geminid.train.messages import Form, Plan, credible_metrics
from geminid.train.norms import NoiseMeter, Reading
from geminid.train.optim import OptimizerSteps, ScalerSteps, ScheduleSteps, has_batch_norm
from geminid.train.peers import PeersLost, Superseded
from geminid.train.shares import Span, StepShare, share_of_step
from geminid.train.tuner import StepClock, Tuner

#: What a shell reports for a process that SIGTERM ended; also how a worker ends that was told to stop.
STOPPED_EXIT_CODE = 143

#: How often the leader reports, and how often it looks for a better batch plan.
REPORT_S, TUNE_S = 1.0, 5.0

#: Taking a snapshot may stop training for at most this share of the time.
SNAPSHOT_BUDGET = 0.01

#: Numbers that ride along with the gradients; learning-rate factors and norms by parameter group follow them.
HAS_FORM, STOPPING, STEPPED, PER_SLOT, ACCUMULATION, INTERVAL, EFFICIENCY, FIXED = range(8)

#: What epochs, schedules and the end of training are counted in.
Unit = Literal["samples", "progress"]


@dataclass(slots=True)
class Position:
    """How far training is: samples consumed of this epoch's order and of all epochs, steps, and useful samples."""

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    progress: float = 0.0


@dataclass(slots=True)
class Settings:
    """What the user chose; see ``geminid.init`` and ``run.prepare``."""

    seed: int = 0
    checkpoint_every_s: float = 60.0
    keep_checkpoints: int = 3
    scaling_rule: str = "auto"
    warmup_epochs: float = 0.0
    unit: Unit = "samples"


@dataclass(slots=True)
class _Pending:
    """Numbers of a step that have not been read yet: they may still be on their way from the device."""

    numbers: Tensor | None
    reading: Reading | None
    norms: Tensor | None
    event: Any = None


@dataclass(slots=True)
class _Told:
    """What the workers told each other, summed up."""

    have_form: int = 0
    stopping: bool = False
    plan: Plan | None = None
    factors: list[float] = field(default_factory=list)


class Session:
    """The state of training in this process."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        limits: BatchLimits,
        settings: Settings,
        agent: Agent | None,
        checkpoints: Path | None,
        reports: Path | None,
        scaler: Any = None,
        lr_scheduler: Any = None,
    ) -> None:
        self.model, self.optimizer, self.scaler, self.lr_scheduler = model, optimizer, scaler, lr_scheduler
        self.settings, self.agent = settings, agent
        self.position = Position()
        self.rank, self.size, self.generation = 0, 1, 0
        self.user_state: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.terminated = False
        self.in_loop = False
        self.epochs_wanted: int | None = None
        self._reports = reports
        self.limits = limits
        self._source = source_of(loader, settings.seed)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._device = self._parameters[0].device
        self._scaler_steps = ScalerSteps(scaler, may_step=self._may_step) if scaler is not None else None
        self._optimizer_steps = OptimizerSteps(optimizer, may_step=self._may_step, on_step=self._on_optimizer_step)
        self._schedule_steps = (
            ScheduleSteps(
                lr_scheduler,
                in_loop=lambda: self.in_loop,
                batches_done=lambda: self._clock_samples / limits.initial,
                epochs_done=self._epochs_done,
            )
            if lr_scheduler is not None
            else None
        )
        self._meter = NoiseMeter(optimizer, self._scaler_steps.scale if self._scaler_steps else lambda: None)
        self._groups = self._meter.groups
        self._gradients = Gradients(
            self._parameters,
            extras=FIXED + 2 * self._groups,
            on_pass=self._meter.take_pass,
            before_sending=self._fill_in,
            on_step=self._on_averaged,
            wait=self._wait_for if self._device.type == "cpu" else lambda work: work.wait(),
        )
        compiled = type(model).__name__ == "OptimizedModule"
        self._tuner = Tuner(limits, round_down=compiled)
        self._warns_of_batch_norm = has_batch_norm(model)
        self._clock = StepClock()
        self._writer = (
            BackgroundWriter(CheckpointFolder(checkpoints, settings.keep_checkpoints), self._on_written)
            if checkpoints is not None
            else None
        )
        self._plan = self._wanted_plan = Plan(limits.smallest_per_slot)
        self._efficiency = 1.0
        self._factors_for: tuple[NoiseEstimate, Plan, float] | None = None
        self._factors = [1.0] * self._groups
        self._pending: deque[_Pending] = deque()
        self._lag = 1 if self._device.type == "cuda" else 0
        self._share: StepShare | None = None
        self._has_state = False
        self._lost: str | None = None
        self._stepped = self._stepped_before = True
        self._fed: tuple[Any, ...] | None = None
        self._data_ended = -1
        self._begun = False
        self._report_first_step = False
        now = time.monotonic()
        self._stopped_at_s: float | None = None
        self._saved_at_s = self._reported_at_s = self._tuned_at_s = now
        self._snapshot_pause_s = 0.0

    # ------------------------------------------------------------------------------------------- beginning and end

    def begin(self, epochs: int) -> None:
        """Take one's place: alone and from the last checkpoint, or wherever the supervisor says."""
        self._begun, self.epochs_wanted = True, epochs
        if self.agent is None:
            restored = self._restore_checkpoint()
            self._has_state = True
            self._settle_in(self._setup(None))
            if restored is not None:
                print(f"geminid: going on from {restored}, epoch {self.position.epoch}", file=sys.stderr, flush=True)
            return
        length = self._source.length(0)
        self.agent.send(
            messages.Ready(
                initial_batch=self.limits.initial,
                largest_batch=self.limits.largest,
                smallest_per_slot=self.limits.smallest_per_slot,
                largest_per_slot=self.limits.largest_per_slot,
                parameter_count=sum(parameter.numel() for parameter in self._parameters),
                dataset_samples=length,
                work_samples=length * epochs if length is not None else None,
            )
        )
        self._join(self._await_form())

    def epoch_done(self, epoch: int) -> None:
        """The loop's body for an epoch has ended, whether or not it saw all of the data."""
        if self.position.epoch == epoch:
            self.position.epoch, self.position.cursor = epoch + 1, 0
            if self.size > 1 and self._lost is None:
                self._share_buffers()

    @property
    def work_is_done(self) -> bool:
        """Whether all epochs are over."""
        assert self.epochs_wanted is not None
        length = self._source.length(0)
        if self.settings.unit == "progress" and length is not None:
            return self.position.progress >= self.epochs_wanted * length * (1 - 1e-9)
        return self.position.epoch >= self.epochs_wanted

    def finish(self) -> None:
        """Training is over: wait until it is for all, and save."""
        while self.size > 1:
            try:
                if self._lost is None:
                    self._enter("synchronising")
                    peers.wait_for_all()
                    break
            except PeersLost as problem:
                self._lost = str(problem)
            self._recover()
        if self._writer is not None and self.rank == 0:
            self._writer.begin(take_snapshot(self._state(), step=self.position.step, samples=self.position.samples))
            self._writer.finish()
        self._report(force=True)
        self._leave_group()
        self._enter("finished")
        if self.agent is not None:
            self.agent.send(messages.Finished(step=self.position.step, samples=self.position.samples))
        self._begun = False

    # ------------------------------------------------------------------------------------------- batches

    def batches(self) -> Iterator[Any]:
        """The batches of what is left of this epoch, for this worker."""
        if not self._begun:
            raise RuntimeError("the loader must be used inside of 'for epoch in run.epochs(...)'")
        epoch = self.position.epoch
        if self._data_ended == epoch:
            raise RuntimeError("the loader has already been through this epoch's data: use it once in an epoch")
        self.in_loop = True
        try:
            while True:
                self._boundary()
                if self.position.epoch != epoch:  # the others were already further, and now so are we
                    return
                share = self._next_share()
                if share is None:
                    break
                if share.alone and self.rank > 0:
                    self._follow()
                    continue
                yield from self._step(share)
                if share.alone:
                    self._lead()
        finally:
            self.in_loop = False
        self._data_ended = epoch

    def _next_share(self) -> StepShare | None:
        """This worker's part of the next step; None at the end of the data or of all work."""
        position = self.position
        if self.settings.unit == "progress" and self.work_is_done:
            return None
        wanted = self._total_batch
        total = self._source.available(position.epoch, position.cursor, wanted)
        if not total:
            return None
        key = (position.epoch, self.generation, self._plan)
        if self._fed != (*key, position.cursor):
            self._source.begin(position.epoch, self._spans(position.cursor))
        self._fed = (*key, position.cursor + total)
        return self._share_of(position.cursor, total)

    def _share_of(self, begin: int, total: int) -> StepShare:
        return share_of_step(begin, total, rank=self.rank, size=self.size, per_slot_batch=self._plan.per_slot_batch)

    def _spans(self, cursor: int) -> Iterator[Span]:
        """All spans that this worker will be asked for in this epoch, if nothing changes."""
        length, wanted = self._source.length(self.position.epoch), self._total_batch
        while length is not None and cursor < length:
            share = self._share_of(cursor, min(wanted, length - cursor))
            yield from share.passes
            cursor = share.end

    def _step(self, share: StepShare) -> Iterator[Any]:
        """Hand out the batches of one step."""
        self._share, self._stepped = share, False
        whole = share.total == self._total_batch and not share.alone
        self._meter.begin_step(self.position.step, micro_gradients=share.micro_gradients, whole=whole)
        for number, span in enumerate(share.passes):
            begin_s = time.perf_counter()
            self._enter("loading")
            batch = self._source.batch(span)
            last = number == len(share.passes) - 1
            self._gradients.begin_pass(
                weight=(span[1] - span[0]) / share.total, first=number == 0, last=last, alone=share.alone
            )
            self._enter("training")
            try:
                yield batch
            finally:
                if last:
                    self._end_step(share)
                if not self._gradients.failed and whole:
                    taken_s = time.perf_counter() - begin_s
                    if last:
                        self._clock.add_step(taken_s, self._gradients.sync_s)
                    else:
                        self._clock.add_accumulation(taken_s)

    def _end_step(self, share: StepShare) -> None:
        """The loop's body is through with a step: count it, unless a collective operation failed in it."""
        if not self._gradients.finished_pass:
            self._gradients.complete()
        self._stopped_at_s = time.monotonic()
        if self._gradients.failed is not None:
            self._lost = self._gradients.failed
            return
        self._meter.end_step()
        self._stepped_before = self._stepped
        position = self.position
        position.cursor += share.total
        position.samples += share.total
        position.step += 1
        if self._stepped:
            position.progress += share.total * self._efficiency
        if self.agent is not None:
            self.agent.step = position.step
            if self._report_first_step:
                self._report_first_step = False
                self.agent.send(messages.FirstStep(generation=self.generation, ended_at_s=self._stopped_at_s))

    def _may_step(self) -> bool:
        """Whether the optimiser may step now: the gradients of a whole step are there, from everybody."""
        if self._share is None:
            return True
        if not self._gradients.pass_is_last:
            return False
        if not self._gradients.finished_pass:
            self._gradients.complete()
        return self._gradients.failed is None

    def _on_optimizer_step(self) -> None:
        self._stepped = True
        self._meter.stepped()

    # ------------------------------------------------------------------------------------------- steps without shares

    def _lead(self) -> None:
        """A step was this worker's alone: hand the result to the others."""
        if self._lost is None:
            try:
                peers.send_state(self._state(), range(1, self.size))
            except PeersLost as problem:
                self._lost = str(problem)

    def _follow(self) -> None:
        """A step is the first worker's alone: take over its result."""
        self._enter("synchronising")
        try:
            state, _ = peers.receive_state(0, self._device)
        except PeersLost as problem:
            self._lost = str(problem)
            return
        own = rng.states()
        self._take_state(state)
        rng.restore(own)
        self._fed = None

    def _share_buffers(self) -> None:
        """At the end of an epoch the first worker's buffers (running statistics) become everybody's."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.numel()]
        try:
            for buffer in buffers:
                peers.broadcast(buffer)
        except PeersLost as problem:
            self._lost = str(problem)

    # ------------------------------------------------------------------------------------------- telling each other

    def _fill_in(self, numbers: Tensor) -> None:
        """The gradients of a step are complete on this worker: what it tells the others along with them."""
        agent = self.agent
        values = [0.0] * (FIXED + self._groups)
        values[HAS_FORM] = float(agent is not None and agent.form is not None)
        values[STOPPING] = float(self._wants_to_stop)
        values[STEPPED] = float(self._stepped_before)
        if self.rank == 0:
            self._choose_plan()
            values[PER_SLOT], values[ACCUMULATION] = (
                self._wanted_plan.per_slot_batch,
                self._wanted_plan.accumulation_steps,
            )
            values[INTERVAL], values[EFFICIENCY] = self._wanted_interval, self._wanted_efficiency
            values[FIXED:] = self._wanted_factors()
        numbers[: len(values)] = torch.tensor(values, dtype=numbers.dtype)
        if self._meter.measuring:
            numbers[len(values) :] = self._meter.local
        self._enter("synchronising")

    def _on_averaged(self) -> None:
        """The average is in place: take its norms, and keep what the others told until it can be read."""
        share = self._share
        if share is None or share.alone:
            return
        numbers = self._gradients.numbers.clone() if self.size > 1 else None
        reading = self._meter.take_step(
            self.position.step,
            micro_gradients=share.micro_gradients,
            scale=share.total / self.limits.initial,
            local=numbers[FIXED + self._groups :] if numbers is not None else None,
        )
        norms = torch.cat([reading.local, reading.total]) if reading is not None else None
        if numbers is None and norms is None:
            return
        event = None
        if self._lag:
            numbers, norms = _on_its_way(numbers), _on_its_way(norms)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append(_Pending(numbers, reading, norms, event))

    def _read(self) -> _Told:
        """What the others told, and the norms, of the steps that can be read without waiting."""
        told = _Told()
        while len(self._pending) > self._lag:
            pending = self._pending.popleft()
            if pending.event is not None:
                pending.event.synchronize()
            if pending.reading is not None and pending.norms is not None:
                values = pending.norms.tolist()
                self._meter.fold(pending.reading, values[: self._groups], values[self._groups :])
            if pending.numbers is not None:
                told = self._understood(pending.numbers.tolist())
        if self.size == 1:
            self._choose_plan()
            self._meter.interval, self._efficiency = self._wanted_interval, self._wanted_efficiency
            has_form = self.agent is not None and self.agent.form is not None
            told = _Told(int(has_form), self._wants_to_stop, self._wanted_plan, self._wanted_factors())
        return told

    def _understood(self, values: list[float]) -> _Told:
        stepped = round(values[STEPPED])
        if 0 < stepped < self.size:
            raise RuntimeError(
                f"optimizer.step() was called on {stepped} of {self.size} workers in step {self.position.step - 1}: "
                "the loop must do the same on all of them"
            )
        self._meter.interval, self._efficiency = max(1, round(values[INTERVAL])), values[EFFICIENCY]
        return _Told(
            have_form=round(values[HAS_FORM]),
            stopping=values[STOPPING] > 0.0,
            plan=Plan(round(values[PER_SLOT]), round(values[ACCUMULATION])),
            factors=values[FIXED : FIXED + self._groups],
        )

    @property
    def _wants_to_stop(self) -> bool:
        return self.terminated or (self.agent is not None and self.agent.stop is not None)

    def _choose_plan(self) -> None:
        """The leader's wishes for the batch plan, from orders and from its tuner."""
        order = self.agent.take_retune() if self.agent is not None else None
        if order is not None:
            self._tuner.pinned = order.plan
            self._wanted_plan = order.plan if order.plan is not None else self._wanted_plan
        elif self._tuner.pinned is None:
            self._wanted_plan = self._tuner.proposal(self.size) or self._wanted_plan
        fits = self.size * self._wanted_plan.per_slot_batch * (self._wanted_plan.accumulation_steps + 1)
        if not self.limits.smallest_per_slot * self.size <= fits:
            self._wanted_plan = self._plan

    def _wanted_factors(self) -> list[float]:
        """Learning-rate factors, and the efficiency, for the plan that the leader wants."""
        estimate, plan = self._meter.estimate, self._wanted_plan
        epochs = self._epochs_done() if self.settings.scaling_rule == "legw" else 0.0
        if self._factors_for != (estimate, plan, epochs):
            total = self.limits.total(self.size, plan.per_slot_batch, plan.accumulation_steps)
            scale = total / self.limits.initial
            point = TrainingPoint(
                scale=scale,
                noise=estimate,
                progress_epochs=epochs,
                base_warmup_epochs=self.settings.warmup_epochs,
            )
            self._factors = [float(factor) for factor in RULES[self.settings.scaling_rule](point)]
            self._wanted_efficiency = min(1.0, estimate.stats().efficiency(scale)) if scale > 1.0 else 1.0
            self._factors_for = (estimate, plan, epochs)
        return self._factors

    _wanted_interval = 1
    _wanted_efficiency = 1.0

    # ------------------------------------------------------------------------------------------- between two steps

    def _boundary(self) -> None:
        """Do what all workers have agreed on, then what is the leader's own business."""
        if self._lost is not None:
            self._recover()
            return
        told = self._read()
        if told.stopping:
            self._stop()
        if told.have_form == self.size and self.agent is not None:
            form = self.agent.form
            if form is not None:
                self._join(form)
                return
        if told.plan is not None and told.plan != self._plan:
            self._turn_to(told.plan)
        if told.factors:
            self._optimizer_steps.factors = told.factors
        if self.rank == 0:
            self._lead_the_way()

    def _turn_to(self, plan: Plan) -> None:
        if self._warns_of_batch_norm and plan.per_slot_batch != self._plan.per_slot_batch:
            self._warns_of_batch_norm = False
            print(
                f"geminid: warning: the batch on one slot changes from {self._plan.per_slot_batch} to "
                f"{plan.per_slot_batch} samples, and with it what the model's BatchNorm layers compute",
                file=sys.stderr,
                flush=True,
            )
        self._plan = plan
        self._clock.restart()

    def _lead_the_way(self) -> None:
        """Report, look for a better plan, and save, when the time has come."""
        now = time.monotonic()
        if now - self._reported_at_s >= (self.agent.report_s if self.agent is not None else REPORT_S):
            self._report()
        if now - self._tuned_at_s >= TUNE_S:
            self._tuned_at_s = now
            self._tuner.consider(self.size, self._plan, self._meter.estimate.stats())
        asked = self.agent is not None and self.agent.take_save()
        if self._writer is not None and not self._writer.busy:
            interval_s = max(self.settings.checkpoint_every_s, self._snapshot_pause_s / SNAPSHOT_BUDGET)
            if asked or now - self._saved_at_s >= interval_s:
                self._save()

    def _save(self) -> None:
        """Copy the state, and have it written in the background."""
        assert self._writer is not None
        snapshot = take_snapshot(self._state(), step=self.position.step, samples=self.position.samples)
        self._snapshot_pause_s, self._saved_at_s = snapshot.pause_s, time.monotonic()
        self._writer.begin(snapshot)

    def _on_written(self, written: Written) -> None:
        if self.agent is not None:
            self.agent.send(
                messages.Checkpointed(
                    step=written.snapshot.step,
                    samples=written.snapshot.samples,
                    path=str(written.path),
                    size_bytes=written.size_bytes,
                    seconds=written.seconds,
                    pause_s=written.snapshot.pause_s,
                )
            )

    def _report(self, *, force: bool = False) -> None:
        if self.rank != 0:
            return
        self._reported_at_s = time.monotonic()
        times = self._clock.take()
        self._tuner.observe(self.size, self._plan, times)
        if times.step_s is not None and times.accumulation_s is not None:
            iteration_s = self._plan.accumulation_steps * times.accumulation_s + times.step_s
            self._wanted_interval = self._meter.suitable_interval(iteration_s)
        if self.agent is None and self._reports is None:
            return
        estimate, position = self._meter.estimate, self.position
        stats = estimate.stats() if estimate.known else None
        report = messages.Progress(
            generation=self.generation,
            step=position.step,
            epoch=position.epoch,
            samples=position.samples,
            progress=position.progress,
            size=self.size,
            plan=self._plan,
            total_batch=self._total_batch,
            steps=times.steps,
            accumulation_s=times.accumulation_s,
            step_s=times.step_s,
            squared_gradient=stats.squared_gradient if stats is not None else None,
            variance=stats.variance if stats is not None else None,
            learning_rate_factor=sum(self._optimizer_steps.factors) / self._groups,
            metrics=credible_metrics(self.metrics),
        )
        if self.agent is not None:
            self.agent.send(report)
        if self._reports is not None:
            with self._reports.open("ab") as file:
                file.write(messages.encode(report))

    # ------------------------------------------------------------------------------------------- groups

    def _leave_group(self) -> None:
        self._gradients.release()
        peers.leave_group()

    def _wait_for(self, work: Any) -> None:
        """Wait for a collective operation, unless its group has been given up."""
        peers.wait_for(work, lambda: self.agent is not None and self.agent.broken)

    def _await_form(self) -> Form:
        """Wait to be told one's place."""
        assert self.agent is not None
        self._enter("waiting")
        while True:
            form = self.agent.wait_for_form(0.2)
            if self._wants_to_stop:
                self._stop()
            if form is not None:
                return form

    def _recover(self) -> None:
        """Somebody is gone: say so, and form the group that the supervisor decides on."""
        if self.agent is None:
            raise RuntimeError(f"a collective operation failed: {self._lost}")
        self._leave_group()
        if self.agent.form is None:
            self.agent.send(messages.Lost(generation=self.generation, reason=str(self._lost)))
        self._join(self._await_form())

    def _join(self, form: Form) -> None:
        """Leave the group one is in, and form the next one, however many attempts that takes."""
        assert self.agent is not None
        agent = self.agent
        stopped_at_s = self._stopped_at_s if self._has_state else None
        while True:
            self._enter("forming")
            self._leave_group()
            if agent.identity.worker not in form.members:
                self._leave(form)
            agent.generation = self.generation = form.generation
            self.size, self.rank = len(form.members), form.members.index(agent.identity.worker)
            try:
                store = None
                if self.size > 1:
                    store = peers.meet(form, agent.identity.worker, superseded=lambda: agent.form is not None)
                    peers.form_group(store, self.rank, self.size, self._device)
                received, restored = self._share_state()
                setup = self._setup(form.plan) if self.rank == 0 else None
                if self.size > 1:
                    setup = peers.tell_all(setup, self.rank)
                break
            except Superseded:
                assert agent.form is not None
                form = agent.form
            except PeersLost as problem:
                if agent.form is None:
                    agent.send(messages.Lost(generation=form.generation, reason=str(problem)))
                form = self._await_form()
        self._settle_in(setup)
        self._report_first_step = True
        agent.send(
            messages.Joined(
                generation=self.generation,
                rank=self.rank,
                size=self.size,
                step=self.position.step,
                resumed_at_s=time.monotonic(),
                stopped_at_s=stopped_at_s,
                received_bytes=received,
                restored=restored,
            )
        )

    def _share_state(self) -> tuple[int, bool]:
        """Give the state to whoever has none, or an older one; bytes received, and whether a checkpoint was used.

        Those who are furthest hand it over, each to some of the others. If nobody has any, the first worker takes it
        from the last checkpoint, or as the script made it.
        """
        own = [self.position.step if self._has_state else -1, peers.this_host()]
        everybody = peers.survey(own, self.size) if self.size > 1 else [own]
        steps = [step for step, _ in everybody]
        same_host = len({host for _, host in everybody}) == 1
        furthest = max(steps)
        restored = False
        if furthest < 0:
            restored = True
            if self.rank == 0:
                self._restore_checkpoint()
                self._has_state = True
            givers = [0]
        else:
            givers = [rank for rank, step in enumerate(steps) if step == furthest]
        takers = [rank for rank in range(self.size) if steps[rank] != furthest or (furthest < 0 < rank)]
        if same_host:
            givers = givers[:1]  # who writes once for all
        received = 0
        if self.rank in givers:
            mine = takers[givers.index(self.rank) :: len(givers)]
            if mine:
                peers.send_state(self._state(), mine, same_host=same_host)
        elif self.rank in takers:
            state, received = peers.receive_state(givers[takers.index(self.rank) % len(givers)], self._device)
            self._take_state(state)
            rng.seed_all(rng.mixed(zlib.crc32(state["rng"]["torch"].cpu().numpy().tobytes()), self.rank))
            self._has_state = True
        return received, restored

    def _setup(self, plan: Plan | None) -> dict[str, Any]:
        """What the leader decides when a group has been formed."""
        self._tuner.pinned = plan if plan is not None else self._tuner.pinned
        chosen = plan if plan is not None else self._tuner.first_plan(self.size, self._meter.estimate.stats())
        self._wanted_plan, self._factors_for = chosen, None
        factors = self._wanted_factors()
        return {
            "plan": asdict(chosen),
            "factors": factors,
            "efficiency": self._wanted_efficiency,
            "interval": self._wanted_interval,
        }

    def _settle_in(self, setup: Any) -> None:
        """The group is formed: train on as its leader decided."""
        self._lost = None
        self._pending.clear()
        self._stepped_before = True
        self._share, self._fed = None, None
        plan = Plan(**setup["plan"])
        if self._generation_has_plan and plan != self._plan:
            self._turn_to(plan)
        self._generation_has_plan = True
        self._plan = self._wanted_plan = plan
        self._optimizer_steps.factors = setup["factors"]
        self._efficiency, self._meter.interval = setup["efficiency"], setup["interval"]
        self._gradients.spread_over(self.size)
        self._clock.restart()

    _generation_has_plan = False

    def _leave(self, form: Form) -> NoReturn:
        """This worker is not part of the next generation."""
        assert self.agent is not None
        if self._writer is not None:
            self._writer.finish()
        self.agent.send(messages.Leaving(generation=form.generation, stopped_at_s=self._stopped_at_s))
        self._end_process(0)

    def _stop(self) -> NoReturn:
        """Save, as far as that is this worker's business, and end the process."""
        self._leave_group()
        order = self.agent.stop if self.agent is not None else None
        problem = None
        if self._writer is not None:
            problem = self._writer.finish()
            if self.rank == 0 and self._has_state and (order is None or order.save):
                self._save()
                problem = self._writer.finish()
        if problem is not None:
            print(f"geminid: error: stopped without saving: {problem.strerror}", file=sys.stderr, flush=True)
        self._begun = False
        if self.agent is not None:
            self.agent.send(messages.Leaving(generation=self.generation, stopped_at_s=self._stopped_at_s))
            self.agent.close()
        raise SystemExit(1 if problem is not None else STOPPED_EXIT_CODE)

    def _end_process(self, code: int) -> NoReturn:
        """End at once: unwinding the script would run what it does after training."""
        assert self.agent is not None
        self.agent.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # ------------------------------------------------------------------------------------------- state

    def _state(self) -> dict[str, Any]:
        """Everything that training goes on from. Tensors are the live ones, not copies."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "dataset_samples": self._source.length(0),
            "noise": {"estimate": asdict(self._meter.estimate), **self._meter.state()},
            "tuner": self._tuner.state(),
            "rng": rng.states(),
            "user": {name: _state_of(value) for name, value in self.user_state.items()},
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self._schedule_steps is not None:
            state["schedule"] = {"taken": self._schedule_steps.taken, "state": self.lr_scheduler.state_dict()}
        return state

    def _take_state(self, state: dict[str, Any]) -> None:
        """Go on from this state (the generators of random numbers excepted)."""
        if state["dataset_samples"] != self._source.length(0):
            raise ValueError(
                f"the state belongs to a dataset of {state['dataset_samples']} samples, this one has "
                f"{self._source.length(0)}: remove the checkpoints, or bring the data back"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.position = Position(**state["position"])
        self._meter.estimate = NoiseEstimate(**state["noise"]["estimate"])
        self._meter.take_state(state["noise"])
        self._tuner.restore(state["tuner"])
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        if self._schedule_steps is not None and "schedule" in state:
            self._schedule_steps.taken = state["schedule"]["taken"]
            self.lr_scheduler.load_state_dict(state["schedule"]["state"])
        for name, value in state["user"].items():
            if name in self.user_state:
                _restore(self.user_state[name], value)
        self._fed = None

    def _restore_checkpoint(self) -> Path | None:
        """Go on from the last intact checkpoint, if there is one."""
        loaded = self._writer.folder.load() if self._writer is not None else None
        if loaded is None:
            return None
        state, path = loaded
        self._take_state(state)
        rng.restore(state["rng"])
        return path

    # ------------------------------------------------------------------------------------------- small things

    @property
    def _total_batch(self) -> int:
        return self.limits.total(self.size, self._plan.per_slot_batch, self._plan.accumulation_steps)

    @property
    def training(self) -> bool:
        """Whether the loop over epochs is under way."""
        return self._begun

    @property
    def plan(self) -> Plan:
        """The batch plan in use."""
        return self._plan

    @property
    def step_samples(self) -> int:
        """Samples that all workers together process in the step under way."""
        return self._share.total if self._share is not None else self._total_batch

    @property
    def learning_rate_factors(self) -> list[float]:
        """What the learning rate of each parameter group is multiplied by."""
        return list(self._optimizer_steps.factors)

    @property
    def noise(self) -> NoiseEstimate:
        """What is known about the gradient noise."""
        return self._meter.estimate

    @property
    def noise_interval(self) -> int:
        """The noise is measured every so many steps."""
        return self._meter.interval

    def measure_noise(self, wanted: bool) -> None:
        """Whether to measure it at all."""
        self._meter.enabled = wanted

    @property
    def _clock_samples(self) -> float:
        """How far schedules are, in samples or in useful samples."""
        return self.position.progress if self.settings.unit == "progress" else float(self.position.samples)

    def _epochs_done(self) -> float:
        length = self._source.length(0)
        if length is None:
            return float(self.position.epoch + (self._data_ended == self.position.epoch))
        return self._clock_samples / length

    def _enter(self, phase: messages.Phase) -> None:
        if self.agent is not None:
            self.agent.enter(phase)


def _on_its_way(tensor: Tensor | None) -> Tensor | None:
    """A copy in pinned main memory, which the device fills in when it gets there."""
    if tensor is None:
        return None
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _restore(target: Any, value: Any) -> None:
    """Give an object of the user's back what was saved of it."""
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    elif isinstance(target, dict):
        target.clear()
        target.update(value)
    else:
        target[:] = value
