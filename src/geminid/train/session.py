"""Training in one worker, from its beginning to its end: the parts behind ``Run``, put together."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from geminid.clock import Clock
from geminid.goodput.batchplan import BatchLimits
from geminid.supervise import channel, protocol
from geminid.train.advice import Advice
from geminid.train.agent import NoSupervisor
from geminid.train.boundary import Boundary
from geminid.train.choosing import Chooser
from geminid.train.collectives import Collectives
from geminid.train.data import TrainingData
from geminid.train.group_view import GroupView
from geminid.train.indexed import IndexSource
from geminid.train.loop import BatchLoop
from geminid.train.membership import Membership
from geminid.train.norms import NoiseMeter
from geminid.train.optim import Schedule, fewest_samples, has_batch_norm, is_compiled, schedules_in
from geminid.train.progress import Position, TrainingProgress
from geminid.train.rendezvous import RendezvousServer
from geminid.train.reporting import Reporter
from geminid.train.sampler import StepSampler
from geminid.train.saving import Saver
from geminid.train.settings import Settings, Unit
from geminid.train.several import AnyOptimizer
from geminid.train.shutdown import Shutdown
from geminid.train.step import Step
from geminid.train.storage import checkpoints_at
from geminid.train.trainstate import TrainingState
from geminid.train.tuner import Tuner
from geminid.train.watching import Watch
from geminid.train.worker import Worker


@dataclass(slots=True)
class Session:
    """Training in this process; ``make_session`` puts its parts together."""

    worker: Worker
    step: Step
    shutdown: Shutdown
    membership: Membership
    collectives: Collectives
    reporter: Reporter
    loop: BatchLoop
    rendezvous: RendezvousServer | None = None

    @property
    def group(self) -> GroupView:
        """This worker's place in its group."""
        return self.worker.group

    @property
    def progress(self) -> TrainingProgress:
        """How far training is, and what is due."""
        return self.worker.state.progress

    @property
    def position(self) -> Position:
        """How far training is."""
        return self.worker.state.position

    @property
    def batch_growth(self) -> float:
        """How many times the initial batch the total batch is; at least 1."""
        return max(1.0, self.step.current.total_batch / self.worker.limits.initial)

    def begin(self, epochs: int, unit: Unit) -> None:
        """Begin to train: alone and from the last checkpoint, or in the group that the supervisor forms."""
        self.progress.begin(epochs, unit)
        saver = self.worker.saver
        if saver is not None:
            saver.check()
        if self.worker.agent.supervised:
            self._announce()
            self.membership.join_next()
            return
        if saver is not None:
            saver.claim()
        restored_from = self.membership.begin_alone()
        if restored_from is not None:
            where = f"{restored_from}, epoch {self.position.epoch}"
            print(f"geminid: continuing from {where}", file=sys.stderr, flush=True)

    def _announce(self) -> None:
        """Report to the supervisor that this worker is ready to join a group."""
        host = os.environ.get(channel.ADDRESS)
        self.rendezvous = RendezvousServer(host) if host else None
        self.worker.watch.begin(self.worker.state.model)
        limits, work = self.worker.limits, self.progress.work_samples
        self.worker.agent.send(
            protocol.Ready(
                initial_batch=limits.initial,
                largest_batch=limits.largest,
                smallest_per_slot=limits.smallest_per_slot,
                largest_per_slot=limits.largest_per_slot,
                parameter_count=sum(one.numel() for one in self.worker.state.parameters if one.requires_grad),
                dataset_samples=self.progress.epoch_samples,
                work_samples=work if work is not None and work <= protocol.LARGEST_COUNT else None,
                meeting=self.rendezvous.address if self.rendezvous is not None else None,
                by_progress=self.progress.unit == "progress",
            )
        )

    def finish(self) -> None:
        """Training is over: wait until it is on all workers, and save."""
        if not self.group.leads:
            self.reporter.report()
        self.collectives.wait_for_all()
        if self.group.leads:
            if self.worker.saver is not None:
                self.worker.saver.save_last()
            self.reporter.report()
        self.shutdown.leave_group()
        self.worker.watch.end()
        self.worker.watch.enter("finished")
        self._send_finished()
        self.progress.training = False

    def leave(self) -> bool:
        """The loop over epochs was left, by choice or by a failure: keep the state as it is.

        Returns False if training was over already because this worker had to stop.
        """
        if not self.progress.training:
            return False
        self.progress.training = False
        self.worker.watch.end()
        self.worker.watch.enter("left")
        self.progress.end_epoch_if_over()
        if self.worker.saver is not None and self.group.leads:
            self.worker.saver.keep()
        return True

    def end_early(self, *, cut_short: bool) -> None:
        """The script left its loop over epochs and has ended; ``cut_short`` says that it ended within the loop.

        Raises:
            RuntimeError: other workers have not left theirs.
        """
        if self.group.intact and not self.step.result_is_due:
            self.step.fingerprint.left = True
            self.collectives.compare()
            self.worker.watch.enter("left")
        self.shutdown.leave_group()
        self._send_finished(cut_short=cut_short)

    def _send_finished(self, *, cut_short: bool = False) -> None:
        position = self.position
        self.worker.agent.send(protocol.Finished(step=position.step, samples=position.samples, cut_short=cut_short))


def make_session(
    model: nn.Module,
    optimizer: AnyOptimizer,
    data: TrainingData,
    *,
    limits: BatchLimits,
    settings: Settings,
    agent: NoSupervisor,
    checkpoints: Path | str | None,
    reports: Path | None,
    clock: Clock,
    scaler: Any = None,
    lr_scheduler: Any = None,
) -> Session:
    """Put the parts together, each from those before it.

    Raises:
        CannotSave: the state can neither be saved nor sent to other workers.
        CannotLoad: the checkpoints' storage cannot be reached.
    """
    group, source = GroupView(), data.source
    progress = TrainingProgress(epoch_samples=source.length(0), own_batch=data.batch_size)
    state = TrainingState(
        model=model,
        optimizer=optimizer,
        meter=NoiseMeter(optimizer, scaler, clock),
        tuner=Tuner(limits, round_down=is_compiled(model)),
        progress=progress,
        scaler=scaler,
        schedules=[Schedule(one, progress) for one in schedules_in(lr_scheduler)],
    )
    saver = None
    if checkpoints is not None:
        storage = checkpoints_at(checkpoints, clock, settings.keep_checkpoints)
        every_s, saved = settings.checkpoint_every_s, settings.saved_samples
        saver = Saver(state, storage, agent, clock, every_s=every_s, saved_samples=saved)
        saver.check()
    watch = Watch(agent.activity if agent.supervised else None, group)
    by_pass = not isinstance(source, IndexSource)
    advice = Advice(group, batches=data.batches, batch_norm=has_batch_norm(model), by_pass=by_pass)
    worker = Worker(agent, group, state, limits, saver, watch, advice, clock)
    sampler = StepSampler(source, group, fewest=min(fewest_samples(model), limits.smallest_per_slot))
    step = Step(worker, sampler, Chooser(worker, settings))
    shutdown = Shutdown(worker, step)
    membership = Membership(worker, step, shutdown)
    collectives = Collectives(worker, step, membership)
    reporter = Reporter(worker, step, reports)
    boundary = Boundary(
        worker, step, membership=membership, collectives=collectives, reporter=reporter, shutdown=shutdown
    )
    loop = BatchLoop(worker, step, boundary, collectives)
    return Session(worker, step, shutdown, membership, collectives, reporter, loop)
