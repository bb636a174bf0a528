"""The user's loop over batches, or over steps: hands out this worker's batches, step by step, and times them.

In a loop over batches the body runs once per pass. In a loop over steps (``run.steps``) it runs once per step, and has
a loop over the passes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from geminid.train.boundary import Boundary
from geminid.train.collectives import Collectives
from geminid.train.shares import Span, StepShare
from geminid.train.step import Step
from geminid.train.worker import Worker

#: Every how many steps a loop over steps compares the workers' weights: it has no epochs, at whose ends others do.
COMPARE_STEPS = 1000


class StepBatches:
    """One step of ``run.steps``: iterate over it for this worker's batches of the step, once.

    ``number`` is how many batches of the initial size came before it: what a learning-rate schedule of one's own is a
    function of. It is the number of steps before it where the total batch never changed.
    """

    def __init__(self, batches: Callable[[], Iterator[Any]], number: int) -> None:
        self._batches, self.number = batches, number

    def __iter__(self) -> Iterator[Any]:
        """This worker's batches of the step."""
        return self._batches()


class BatchLoop:
    """The loop over the batches of one epoch after the other."""

    def __init__(self, worker: Worker, step: Step, boundary: Boundary, collectives: Collectives) -> None:
        self._group, self._progress, self._saver = worker.group, worker.state.progress, worker.saver
        self._watch, self._advice, self._clock = worker.watch, worker.advice, worker.clock
        self._step, self._sampler, self._current = step, step.sampler, step.current
        self._boundary, self._collectives = boundary, collectives
        self._pass_began_s, self._whole, self._passes_left = 0.0, False, 0

    def batches(self) -> Iterator[Any]:
        """The batches that are left of this epoch, for this worker."""
        progress = self._progress
        epoch = progress.position.epoch
        if not progress.training:
            raise RuntimeError("the loader must be used inside of 'for epoch in run.epochs(...)'")
        if progress.data_ended == epoch:
            raise RuntimeError("the loader has already been through this epoch's data: use it once in an epoch")
        if progress.in_loop:
            raise RuntimeError("the loader is in use already: do not iterate over it inside of the loop over batches")
        self._advice.begin_epoch()
        with self._data_in_use(epoch):
            yield from self._steps(epoch)
        if progress.position.epoch == epoch:
            progress.data_ended = epoch

    def steps(self) -> Iterator[StepBatches]:
        """The steps that are left of this round of the data."""
        group, progress, step = self._group, self._progress, self._step
        epoch, begun = progress.position.epoch, False
        with self._data_in_use(epoch):
            while not (begun and group.lost is None and self._data_is_over()):
                self._boundary.cross()
                if progress.position.epoch != epoch or self._data_is_over():
                    break
                step.fingerprint.questions = 0
                if group.size > 1 and progress.position.step % COMPARE_STEPS == 0:
                    self._collectives.compare_weights()
                    if group.lost is not None:
                        continue
                begun = progress.between_steps = True
                self._watch.enter("between")
                yield StepBatches(self._batches_of_step, progress.batches_done)
                self._end_step(epoch)
        if progress.position.epoch == epoch:
            progress.data_ended = epoch

    def _batches_of_step(self) -> Iterator[Any]:
        """The batches of the next step, in a loop over steps. Empty if the others are through with the data."""
        group, progress, step = self._group, self._progress, self._step
        if not progress.between_steps:
            raise RuntimeError("a step's batches can be used once: begin the next step of 'for step in run.steps(...)'")
        epoch = progress.position.epoch
        while (share := self._next_share()) is not None and share.alone:
            self._collectives.compare_weights()
            if group.lost is None:
                break
            self._boundary.cross()
            if progress.position.epoch != epoch:
                return
        if share is None:
            return
        step.result_is_due = share.alone
        if share.alone and not group.leads:
            share = self._sampler.share_of_leader(share, self._current.plan)
        self._begin_step(share)
        progress.between_steps = False
        for number, span in enumerate(share.passes):
            yield self._begin_pass(number, span)
            if number < len(share.passes) - 1:
                self._end_pass(last=False)
            self._passes_left -= 1

    def _end_step(self, epoch: int) -> None:
        """The body of the loop over steps is through with a step of this round of the data."""
        progress = self._progress
        unused, progress.between_steps = progress.between_steps, False
        if unused and (progress.position.epoch != epoch or self._data_is_over()):
            return  # the state of workers that are through with the data was received meanwhile
        if unused or self._passes_left:
            raise RuntimeError(
                "the batches of a step were not used to their end: the body of 'for step in run.steps(...)' must have "
                "'for batch in step' without a break"
            )
        self._end_pass(last=True)
        self._share_result()

    @contextmanager
    def _data_in_use(self, epoch: int) -> Iterator[None]:
        progress = self._progress
        progress.in_loop, progress.data_begun = True, epoch
        try:
            yield
        except GeneratorExit:  # the script has left its loop, perhaps in a step that was taken
            self._step.call_back()
            raise
        finally:
            progress.in_loop = progress.between_steps = False
            self._step.end_pass()
            self._watch.enter("between")

    def _steps(self, epoch: int) -> Iterator[Any]:
        """The batches of all steps. Ends early if the other workers of a new group are in a later epoch."""
        group, progress, step = self._group, self._progress, self._step
        begun = has_batches = False
        while True:
            if begun and group.lost is None and self._data_is_over():
                return  # what is due between steps is done when the next epoch begins: no worker gets an empty one
            self._boundary.cross()
            if progress.position.epoch != epoch:
                return
            share = self._next_share()
            if share is None:
                return
            if share.alone:  # after it, all workers have the leader's weights
                self._collectives.compare_weights()
                if group.lost is not None:
                    continue
            begun, step.result_is_due = True, share.alone
            if share.alone and not group.leads and not has_batches:
                # Scripts rarely expect an epoch without batches: this worker sees the leader's, without effect.
                share = self._sampler.share_of_leader(share, self._current.plan)
            if share.passes:
                has_batches = True
                yield from self._passes(share)
            self._share_result()

    def _data_is_over(self) -> bool:
        self._watch.enter("loading")
        position, total = self._progress.position, self._current.total_batch
        return self._progress.ends_within_the_data or not self._sampler.available(position, total)

    def _next_share(self) -> StepShare | None:
        """This worker's part of the next step; None at the end of the data or of all work."""
        position, plan = self._progress.position, self._current.plan
        self._sampler.move_to(position, plan)
        self._enter_data()
        if self._progress.ends_within_the_data:
            return None
        return self._sampler.next_share(position, plan, self._current.total_batch)

    def _passes(self, share: StepShare) -> Iterator[Any]:
        """The batches of one step."""
        self._begin_step(share)
        for number, span in enumerate(share.passes):
            yield self._begin_pass(number, span)
            self._end_pass(last=number == len(share.passes) - 1)

    def _begin_step(self, share: StepShare) -> None:
        self._whole = share.total == self._current.total_batch and not share.alone
        self._passes_left = len(share.passes)
        self._step.begin(share, whole=self._whole)

    def _begin_pass(self, number: int, span: Span) -> Any:
        """The batch of a pass."""
        self._pass_began_s = self._clock.monotonic_s()
        self._enter_data()
        batch = self._sampler.batch(span)
        self._step.begin_pass(number)
        return batch

    def _end_pass(self, *, last: bool) -> None:
        """The body of the loop is through with a pass; after the ``last`` one, with the step."""
        step = self._step
        if last:
            step.end()
            if self._saver is not None:
                self._saver.check_after_first_step()
        step.end_pass()
        self._watch.end_pass()
        if self._whole and step.gradients.failed is None:
            taken_s = self._clock.monotonic_s() - self._pass_began_s
            if last:
                self._current.timer.add_step(taken_s, step.gradients.sync_s)
            else:
                self._current.timer.add_accumulation(taken_s)

    def _share_result(self) -> None:
        """Have the result of a step that the leader has taken alone."""
        if self._step.result_is_due:
            self._step.result_is_due = False
            self._collectives.copy_leader_state()

    def _enter_data(self) -> None:
        """Loading; the first batch may take long: processes start, and streams are read up to the position."""
        self._watch.enter("opening" if self._sampler.opening else "loading")

    # ------------------------------------------------------------------------------------------- the end of an epoch

    def end_epoch(self, epoch: int) -> None:
        """The body of the loop over epochs has ended for an epoch, whether or not it used all of the data."""
        step, progress = self._step, self._progress
        step.fingerprint.questions = 0
        if progress.position.epoch != epoch:
            return
        if step.share is not None:
            if step.result_is_due:  # the loop was left in a step that the leader takes alone
                if not (step.stepped or step.idle):
                    step.count_skipped()
                self._share_result()
            if progress.data_ended != epoch:
                self._warn_of_rest(step.share)
        progress.end_epoch(epoch)
        if self._group.intact:
            self._collectives.compare_weights()
        if self._group.intact:
            self._collectives.copy_unsynchronised_state()

    def _warn_of_rest(self, share: StepShare) -> None:
        """The loop over batches was left early: warn if there are samples that the author may not mean to leave out."""
        gradients, length = self._step.gradients, self._progress.epoch_samples
        trained = gradients.finished_pass
        used = share.end if gradients.pass_is_last and trained else share.begin
        left = length - used if length is not None else None
        some_left = left > 0 if left is not None else len(share.passes) > 1
        if some_left and not self._progress.ends_within_the_data:
            self._advice.epoch_was_left(trained, left)
