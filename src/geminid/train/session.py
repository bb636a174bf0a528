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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.noise import NoiseEstimate
from geminid.supervise import channel, protocol
from geminid.supervise.protocol import Form, Plan
from geminid.train import peers
from geminid.train.advice import Advice
from geminid.train.agent import Agent
from geminid.train.agreement import Agreement, Codes, Place, code_of
from geminid.train.collectives import Together
from geminid.train.data import source_of
from geminid.train.gradients import Gradients
from geminid.train.membership import Entry, Membership
from geminid.train.norms import NoiseMeter
from geminid.train.optim import OptimizerSteps, ScalerSteps, ScheduleSteps, fewest_samples, has_batch_norm
from geminid.train.peers import PeersLost, Stuck
from geminid.train.progress import Course
from geminid.train.reporting import Reporter
from geminid.train.sampler import Feed
from geminid.train.saving import Saver
from geminid.train.settings import Settings
from geminid.train.shares import StepShare
from geminid.train.shutdown import Ending
from geminid.train.trainstate import Position, TrainingState
from geminid.train.tuner import Tuner
from geminid.train.watching import Watch


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
        checkpoints: Path | str | None,
        reports: Path | None,
        scaler: Any = None,
        lr_scheduler: Any = None,
    ) -> None:
        self.settings, self.agent, self.limits = settings, agent, limits
        self.terminated = False
        self.place = Place()
        source = source_of(loader, settings.seed)
        self._epoch_samples = source.length(0)
        self._feed = Feed(source, self.place, fewest=min(fewest_samples(model), limits.smallest_per_slot))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = parameters[0].device
        scaler_steps = ScalerSteps(scaler, may_step=self._may_step) if scaler is not None else None
        self._optimizer_steps = OptimizerSteps(
            optimizer,
            may_step=self._may_step,
            before_step=self._before_optimizer_step,
            on_step=self._on_optimizer_step,
        )
        schedule_steps = None
        if lr_scheduler is not None:
            schedule_steps = ScheduleSteps(
                lr_scheduler,
                in_loop=lambda: self._in_loop,
                batches_done=lambda: self._course.batches_due(),
                epochs_done=lambda: self._course.passes_due(),
            )
        loss_scale = scaler_steps.scale if scaler_steps is not None else lambda: None
        self._meter = NoiseMeter(optimizer, loss_scale)
        self._tuner = Tuner(limits, round_down=type(model).__name__ == "OptimizedModule")
        self.state = TrainingState(
            model=model,
            optimizer=optimizer,
            meter=self._meter,
            tuner=self._tuner,
            dataset_samples=self._epoch_samples,
            scaler=scaler,
            lr_scheduler=lr_scheduler,
            schedule_steps=schedule_steps,
            user={},
            position=Position(),
        )
        self._advice = Advice(lambda: self.place.rank == 0, batches=_batches_of(loader))
        self._course = Course(
            self.state, settings, epoch_samples=self._epoch_samples, own_batch=loader.batch_size or limits.initial
        )
        self._agreement = Agreement(
            self.place,
            agent=agent,
            tuner=self._tuner,
            meter=self._meter,
            limits=limits,
            scaling_rule=settings.scaling_rule,
            warmup_epochs=settings.warmup_epochs,
            wants_to_stop=lambda: self._wants_to_stop,
            epochs_done=self._course.epochs_done,
            codes=self._codes,
        )
        self._gradients = Gradients(
            parameters,
            extras=self._agreement.count,
            on_pass=self._on_pass,
            before_sending=self._fill_in,
            on_backward=lambda: self._enter("computing"),
            on_step=self._on_averaged,
            wait=self._wait_for if self._device.type == "cpu" else lambda work: work.wait(),
            loss_scale=loss_scale,
            switched=self.state.switched,
        )
        self._watch = Watch(agent, in_pass=lambda: self._gradients.active, leads=lambda: self.place.rank == 0)
        self._saver = None
        if checkpoints is not None:
            every_s, keep = settings.checkpoint_every_s, settings.keep_checkpoints
            self._saver = Saver(self.state, checkpoints, every_s=every_s, keep=keep, agent=agent)
        self._ending = Ending(agent, self.place, self.state, self._saver)
        self._membership = None
        if agent is not None:
            self._membership = Membership(
                agent,
                self.place,
                self.state,
                self._device,
                restore=self._restore_checkpoint,
                release=self._leave_group,
                stop_if_wanted=self._stop_if_wanted,
                leave=self._ending.leave,
            )
        self._together = Together(
            self.place,
            self.state,
            feed=self._feed,
            gradients=self._gradients,
            agreement=self._agreement,
            membership=self._membership,
            device=self._device,
            enter=self._enter,
            recover=self._recover,
        )
        self._parameter_count = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        self._warns_of_batch_norm, self._warned_of_skipping = has_batch_norm(model), False
        self._reporter = Reporter(
            self.place,
            self.state,
            agent=agent,
            file=reports,
            agreement=self._agreement,
            meter=self._meter,
            tuner=self._tuner,
        )
        self._plan: Plan | None = None
        self._share: StepShare | None = None
        self._stepped = self._stepped_before = True
        self._result_is_due = False
        self._begun = self._left = self._in_loop = self._report_first_step = False
        self._check_saving()

    # ------------------------------------------------------------------------------------------- beginning and end

    def begin(self, epochs: int) -> None:
        """Take one's place: alone and from the last checkpoint, or wherever the supervisor says."""
        self._check_saving()
        self._checked = False
        self._begun, self._course.epochs_wanted = True, epochs
        if self.agent is None:
            if self._saver is not None:
                self._saver.claim()
            restored = self._restore_checkpoint()
            self.state.present = True
            self._settle_in(self._agreement.propose(None))
            if restored is not None:
                print(f"geminid: going on from {restored}, epoch {self.position.epoch}", file=sys.stderr, flush=True)
            return
        length = self._epoch_samples
        work = length * epochs if length is not None else None
        host = os.environ.get(channel.ADDRESS)
        self._meeting = peers.MeetingPlace(host) if host else None
        self._watch.begin(self.state.model)
        self.agent.send(
            protocol.Ready(
                initial_batch=self.limits.initial,
                largest_batch=self.limits.largest,
                smallest_per_slot=self.limits.smallest_per_slot,
                largest_per_slot=self.limits.largest_per_slot,
                parameter_count=self._parameter_count,
                dataset_samples=length,
                work_samples=work if work is not None and work <= protocol.LARGEST_COUNT else None,
                meeting=self._meeting.address if self._meeting is not None else None,
                by_progress=self.settings.unit == "progress",
            )
        )
        assert self._membership is not None
        self._join(self._membership.await_form())

    def epoch_done(self, epoch: int) -> None:
        """The loop's body for an epoch has ended, whether or not it saw all of the data."""
        self._together.questions = 0
        if self.position.epoch != epoch:
            return
        if self._result_is_due and self._share is not None:  # the loop was left in a step of the leader's own
            if not (self._stepped or self._idle):
                self._course.count(self._share.total, 0.0)
            self._result_is_due = False
            self._together.have_its_state()
        if self._course.data_ended != epoch and self._share is not None:
            self._notice_what_is_left(self._share)
        self._course.end_epoch(epoch)
        if self.place.size > 1 and self.place.lost is None:
            self._together.compare_weights()
        if self.place.size > 1 and self.place.lost is None:
            self._together.have_its_own()

    def _notice_what_is_left(self, share: StepShare) -> None:
        """The loop over batches was left early: whether that leaves data which nobody meant to leave."""
        trained = self._gradients.finished_pass
        handed_out = share.end if self._gradients.pass_is_last and trained else share.begin
        left = self._epoch_samples - handed_out if self._epoch_samples is not None else None
        some_left = left > 0 if left is not None else len(share.passes) > 1
        if some_left and not self._course.ends_within_the_data:
            self._advice.epoch_was_left(trained, left)

    def agree(self, value: Any) -> Any:
        """The leader's value, as JSON has it, for all workers.

        Raises:
            RuntimeError: it is not called between epochs, or not on all workers.
            TypeError: JSON does not have the value.
        """
        self._check_between("agree")
        return self._together.agree(value)

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers, as JSON has them.

        Raises:
            RuntimeError: it is not called between epochs, or not on all workers.
            TypeError: JSON does not have the value.
        """
        self._check_between("gather")
        return self._together.gather(value)

    def _check_between(self, name: str) -> None:
        if self._in_loop or not self._begun:
            raise RuntimeError(
                f"run.{name}() must be called inside of 'for epoch in run.epochs(...)' and after its loop over "
                "batches: within that, a worker that is lost would have to do it again"
            )

    @property
    def work_is_done(self) -> bool:
        """Whether all epochs are over."""
        return self._course.work_is_done

    def finish(self) -> None:
        """Training is over: wait until it is for all, and save."""
        if self.place.rank > 0:
            self._reporter.tell()
        while self.place.size > 1:
            try:
                if self.place.lost is None:
                    self._enter("synchronising")
                    peers.wait_for_all()
                    break
            except PeersLost as problem:
                self.place.lost = str(problem)
            self._recover()
        if self.place.rank == 0:
            if self._saver is not None:
                self._saver.at_last()
            self._report()
        self._leave_group()
        self._watch.end()
        self._enter("finished")
        if self.agent is not None:
            self.agent.send(protocol.Finished(step=self.position.step, samples=self.position.samples))
        self._begun = False

    def left(self) -> bool:
        """The loop over epochs was left, by choice or by a failure: keep the state as it was then.

        False if training was over already: this worker was told to stop.
        """
        if not self._begun:
            return False
        self._begun = False
        self._watch.end()
        self._enter("left")
        self._course.end_epoch_if_over()
        if self._saver is not None and self.place.rank == 0:
            self._saver.keep()
        return True

    def ended_early(self, *, cut_short: bool) -> None:
        """The script left its loop over epochs and has ended; it is ``cut_short`` if it has not gone on after the loop.

        Raises:
            RuntimeError: other workers have not left theirs.
        """
        if self.place.size > 1 and self.place.lost is None and not self._result_is_due:
            self._left = True
            self._together.compare()
            self._enter("left")
        self._leave_group()
        if self.agent is not None:
            position = self.position
            self.agent.send(protocol.Finished(step=position.step, samples=position.samples, cut_short=cut_short))

    def save_what_is_left(self) -> Exception | None:
        """The script has ended: save what could not be saved before; why that was not possible, if so."""
        return self._saver.save_kept() if self._saver is not None else None

    # ------------------------------------------------------------------------------------------- batches

    def batches(self) -> Iterator[Any]:
        """The batches of what is left of this epoch, for this worker."""
        if not self._begun:
            raise RuntimeError("the loader must be used inside of 'for epoch in run.epochs(...)'")
        epoch = self.position.epoch
        if self._course.data_ended == epoch:
            raise RuntimeError("the loader has already been through this epoch's data: use it once in an epoch")
        if self._in_loop:
            raise RuntimeError("the loader is in use already: do not iterate over it inside of the loop over batches")
        self._in_loop, self._course.data_begun, begun, has_some = True, epoch, False, False
        self._advice.begin_epoch()
        try:
            while True:
                if begun and self.place.lost is None and self._data_is_over():
                    break  # whatever there is to do is done where the next epoch begins: nobody gets an empty one
                self._boundary()
                while self.place.held:  # too few of us are left: no step is taken before others have come
                    assert self._membership is not None
                    self._join(self._membership.await_form())
                if self.position.epoch != epoch:  # the others were already further, and now so are we
                    return
                share = self._next_share()
                if share is None:
                    break
                if share.alone:  # after it, everybody has the leader's weights
                    self._together.compare_weights()
                    if self.place.lost is not None:
                        continue
                begun, self._result_is_due = True, share.alone
                if share.alone and self.place.rank > 0 and not has_some:
                    # It would have had no batch in this epoch, which hardly a script expects: it sees the leader's.
                    share = self._feed.share_of_leader(share, self.plan)
                if share.passes:
                    has_some = True
                    yield from self._step(share)
                if self._result_is_due:
                    self._result_is_due = False
                    self._together.have_its_state()
        finally:
            self._in_loop = False
            self._gradients.end_pass()
            self._enter("between")
        self._course.data_ended = epoch

    def _data_is_over(self) -> bool:
        self._enter("loading")
        return self._course.ends_within_the_data or not self._feed.available(self.position, self._total_batch)

    def _next_share(self) -> StepShare | None:
        """This worker's part of the next step; None at the end of the data or of all work."""
        self._feed.turn_to(self.position, self._plan)
        self._enter_data()
        if self._course.ends_within_the_data:
            return None
        return self._feed.next_share(self.position, self.plan, self._total_batch)

    def _step(self, share: StepShare) -> Iterator[Any]:
        """Hand out the batches of one step."""
        self._share, self._stepped = share, False
        whole = share.total == self._total_batch and not share.alone
        self._meter.begin_step(self.position.step, micro_gradients=share.micro_gradients, whole=whole)
        for number, span in enumerate(share.passes):
            begin_s = time.perf_counter()
            self._enter_data()
            batch = self._feed.batch(span)
            last = number == len(share.passes) - 1
            self._gradients.begin_pass(
                weight=(span[1] - span[0]) / share.total, first=number == 0, last=last, alone=share.alone
            )
            self._advice.pass_begins(number, len(share.passes))
            self._enter("training")
            yield batch
            if last:
                self._end_step(share)
            self._gradients.end_pass()
            taken_s = time.perf_counter() - begin_s
            self._watch.end_pass()
            if not self._gradients.failed and whole:
                if last:
                    self._reporter.clock.add_step(taken_s, self._gradients.sync_s)
                else:
                    self._reporter.clock.add_accumulation(taken_s)

    def _end_step(self, share: StepShare) -> None:
        """The loop's body is through with a step: count it, unless a collective operation failed in it."""
        if not self._gradients.finished_pass:
            self._gradients.complete()
        self._ending.stopped_at_s = time.monotonic()
        if self._idle:
            return
        if self._gradients.failed is not None:
            self.place.lost = self._gradients.failed
            return
        self._gradients.check_backwards()
        self._meter.end_step()
        if not self._checked:  # the optimiser has a state from its first step on
            self._check_saving()
        if not share.alone:
            self._stepped_before = self._stepped
        if not self._stepped:
            self._course.count(share.total, 0.0)  # skipped, by a loss scaler for example
            self._wonder_why()
        if self.agent is not None:
            self.agent.step = self.position.step
            if self._report_first_step:
                self._report_first_step = False
                self.agent.send(
                    protocol.FirstStep(generation=self.place.generation, ended_at_s=self._ending.stopped_at_s)
                )

    def _wonder_why(self) -> None:
        """A step was not taken although there is no loss scaler to decide that."""
        if self.state.scaler is None and not self._warned_of_skipping and self.place.rank == 0:
            self._warned_of_skipping = True
            print(
                "geminid: warning: optimizer.step() was not called for a batch, which then makes no progress. Do not "
                "accumulate gradients in the loop: give the loader the total batch size, and run.prepare "
                "max_per_slot_batch",
                file=sys.stderr,
                flush=True,
            )

    def _may_step(self) -> bool:
        """Whether the optimiser may step now: the gradients of a whole step are there, from everybody."""
        if not self._gradients.active:  # between epochs, or after training: the script's own business
            return True
        if not self._gradients.finished_pass:  # its gradients were made in another way than by backward
            self._gradients.complete()
        if not self._gradients.pass_is_last:
            return False
        return self._gradients.failed is None and not self._idle

    @property
    def _idle(self) -> bool:
        """Whether the step under way is the leader's alone, and what this worker does in it has no effect."""
        return self._share is not None and self._share.alone and self.place.rank > 0

    def _before_optimizer_step(self) -> None:
        if self._gradients.active:
            self._enter("stepping")

    def _on_optimizer_step(self) -> None:
        """The step's samples count from the moment when they have changed the model."""
        if self._gradients.active:
            self._enter("training")
        self._meter.stepped()
        if self._share is not None and not self._stepped:
            self._course.count(self._share.total, self._agreement.efficiency)
            if self.state.further_steps is not None:
                self.state.further_steps = 0
        elif self._share is not None and self._gradients.active:
            self.state.further_steps = (self.state.further_steps or 0) + 1
            self._advice.steps_again(len(self._share.passes))
        self._stepped = True

    # ------------------------------------------------------------------------------------------- telling each other

    def _fill_in(self, numbers: Tensor) -> None:
        self._agreement.fill_in(numbers, stepped_before=self._stepped_before)
        self._enter("synchronising")

    def _codes(self) -> Codes:
        position, groups = self.position, self.state.optimizer.param_groups
        rates = (group.get("lr", 0.0) for group in groups)
        known = [float(rate) for rate in rates if not (isinstance(rate, Tensor) and rate.is_cuda)]  # without waiting
        return Codes(
            place=code_of(position.epoch, position.cursor, position.step, self._together.questions, self._left),
            order=self._feed.order_code() if self._in_loop else 0,  # who has just joined may not know it yet
            rates=code_of(*known),
            weights=self._together.weights,
        )

    def _on_pass(self) -> None:
        self._enter("training")
        self._meter.take_pass()

    def _on_averaged(self) -> None:
        self._enter("training")
        share = self._share
        if share is not None and not share.alone:
            self._agreement.averaged(
                self._gradients.numbers if self.place.size > 1 else None,
                step=self.position.step,
                total=share.total,
                micro_gradients=share.micro_gradients,
            )

    @property
    def _wants_to_stop(self) -> bool:
        return self.terminated or (self.agent is not None and self.agent.stop is not None)

    # ------------------------------------------------------------------------------------------- between two steps

    def _boundary(self) -> None:
        """Do what all workers have agreed on, then what is the leader's own business."""
        if self.place.lost is not None:
            self._recover()
            return
        if self._device.type == "cuda" and self.place.size > 1:  # where the GPU waits for the others, so do we
            self._enter("synchronising")
        told = self._agreement.read()
        if told.stopping:
            self._stop()
        if told.have_form == self.place.size and self.agent is not None:
            form = self.agent.form
            if form is not None and self._may_join(form):
                if self.place.size > 1:  # the leader may be about to leave
                    self._together.have_its_own()
                self._join(form)
                return
        if told.plan is not None and told.plan != self._plan:
            self._turn_to(told.plan)
        if told.factors:
            self._optimizer_steps.factors = told.factors
        if self.place.rank > 0:
            self._reporter.tell_now_and_then()
            return
        self._reporter.now_and_then(self.plan, self._total_batch, self._optimizer_steps.factors)
        if self._saver is not None:
            self._saver.now_and_then()

    def _may_join(self, form: Form) -> bool:
        """Whether this is the time for it: not if there would be nothing left of the epoch for some of its workers."""
        self._enter("loading")
        return self.position.cursor == 0 or self._feed.suffices(self.position, len(form.members))

    def _turn_to(self, plan: Plan) -> None:
        before = self._plan
        if self._warns_of_batch_norm and before is not None and plan.per_slot_batch != before.per_slot_batch:
            self._warns_of_batch_norm = False
            print(
                f"geminid: warning: the batch on one slot changes from {before.per_slot_batch} to "
                f"{plan.per_slot_batch} samples, and with it what the model's BatchNorm layers compute",
                file=sys.stderr,
                flush=True,
            )
        if before is not None:
            self._watch.expect(plan.per_slot_batch / before.per_slot_batch)
        self._plan = plan
        self._reporter.clock.restart()

    def _report(self) -> None:
        self._reporter.report(self.plan, self._total_batch, self._optimizer_steps.factors)

    # ------------------------------------------------------------------------------------------- groups

    def _leave_group(self) -> None:
        self._gradients.release()
        peers.leave_group()

    def _wait_for(self, work: Any) -> None:
        """Wait for a collective operation, unless its group has been given up."""
        peers.wait_for(work, lambda: self.agent is not None and self.agent.broken)

    def _stop_if_wanted(self) -> None:
        if self._wants_to_stop:
            self._stop()

    def _recover(self) -> None:
        """Somebody is gone: go on with whoever is left."""
        if self._membership is None:
            raise RuntimeError(f"a collective operation failed: {self.place.lost}")
        stopped_at_s = self._ending.stopped_at_s if self.state.present else None
        try:
            entry = self._membership.recover(str(self.place.lost), self._agreement.propose)
        except Stuck as problem:
            self._course.end_epoch_if_over()
            self._ending.give_up(problem)
        self._enter_generation(entry, stopped_at_s)

    def _join(self, form: Form) -> None:
        """Join another generation."""
        assert self._membership is not None
        stopped_at_s = self._ending.stopped_at_s if self.state.present else None
        try:
            entry = self._membership.join(form, self._agreement.propose)
        except Stuck as problem:
            self._ending.give_up(problem)
        self._enter_generation(entry, stopped_at_s)

    def _enter_generation(self, entry: Entry, stopped_at_s: float | None) -> None:
        assert self.agent is not None
        self._settle_in(entry.proposal)
        self._report_first_step = True
        self.agent.send(
            protocol.Joined(
                generation=self.place.generation,
                rank=self.place.rank,
                size=self.place.size,
                step=self.position.step,
                resumed_at_s=time.monotonic(),
                stopped_at_s=stopped_at_s,
                received_bytes=entry.received_bytes,
                restored=entry.restored,
                samples=self.position.samples,
            )
        )
        self._enter("between")

    def _settle_in(self, proposal: dict[str, Any]) -> None:
        """A generation begins: train on as its leader decided."""
        self.place.lost = self._share = None
        self._feed.forget()
        self._result_is_due = False
        self._stepped_before = True
        told = self._agreement.begin(proposal)
        assert told.plan is not None
        self._turn_to(told.plan)
        self._optimizer_steps.factors = told.factors
        self._gradients.spread_over(self.place.size)

    def _stop(self) -> NoReturn:
        """Do what is this worker's business before it stops, and end the script."""
        self._course.end_epoch_if_over()
        self._leave_group()
        try:
            self._ending.stop()
        finally:
            self._begun = False

    def _check_saving(self) -> None:
        """Better to know at the beginning than at the first checkpoint, or when somebody joins.

        Raises:
            CannotSave: the state can neither be saved nor passed on.
        """
        if self._saver is not None:
            self._saver.check()
        self._checked = True

    def _restore_checkpoint(self) -> Path | str | None:
        """Go on from the last intact checkpoint, if there is one."""
        return self._saver.restore() if self._saver is not None else None

    # ------------------------------------------------------------------------------------------- small things

    @property
    def _total_batch(self) -> int:
        return self.limits.total(self.place.size, self.plan.per_slot_batch, self.plan.accumulation_steps)

    @property
    def training(self) -> bool:
        """Whether the loop over epochs is under way."""
        return self._begun

    @property
    def plan(self) -> Plan:
        """The batch plan in use."""
        return self._plan if self._plan is not None else self._agreement.wanted_plan

    @property
    def position(self) -> Position:
        """How far training is."""
        return self.state.position

    @property
    def step_samples(self) -> int:
        """Samples that all workers together process in the step under way."""
        return self._share.total if self._share is not None else self._total_batch

    @property
    def stepped(self) -> bool:
        """Whether the optimiser has taken a step with the batch under way: not in passes that only accumulate."""
        return self._share is not None and self._stepped

    @property
    def learning_rate_factors(self) -> list[float]:
        """What the learning rate of each parameter group is multiplied by."""
        return list(self._optimizer_steps.factors)

    @property
    def metrics(self) -> dict[str, Any]:
        """What the script wants to be told."""
        return self._reporter.metrics

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

    def alive(self) -> None:
        """The script shows that it lives."""
        self._watch.alive()

    def _enter_data(self) -> None:
        """The first batch takes as long as it takes: processes start, and streams are read up to the position."""
        self._enter("opening" if self._feed.opening else "loading")

    def _enter(self, phase: protocol.Phase) -> None:
        self._watch.enter(phase)


def _batches_of(loader: DataLoader[Any]) -> int | None:
    """How many batches the user's loader has in an epoch; None where it does not know."""
    try:
        return len(loader)
    except TypeError:
        return None
