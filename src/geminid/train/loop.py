"""The user's loop over batches: hands out this worker's batches, step by step, and times them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from geminid.train.boundary import Boundary
from geminid.train.collectives import Collectives
from geminid.train.shares import StepShare
from geminid.train.step import Step
from geminid.train.worker import Worker


class BatchLoop:
    """The loop over the batches of one epoch after the other."""

    def __init__(self, worker: Worker, step: Step, boundary: Boundary, collectives: Collectives) -> None:
        self._group, self._progress, self._saver = worker.group, worker.state.progress, worker.saver
        self._watch, self._advice, self._clock = worker.watch, worker.advice, worker.clock
        self._step, self._sampler, self._current = step, step.sampler, step.current
        self._boundary, self._collectives = boundary, collectives

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
        progress.in_loop, progress.data_begun = True, epoch
        self._advice.begin_epoch()
        try:
            yield from self._steps(epoch)
        finally:
            progress.in_loop = False
            self._step.end_pass()
            self._watch.enter("between")
        if progress.position.epoch == epoch:
            progress.data_ended = epoch

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
        step, clock = self._step, self._clock
        whole = share.total == self._current.total_batch and not share.alone
        step.begin(share, whole=whole)
        for number, span in enumerate(share.passes):
            begin_s = clock.monotonic_s()
            self._enter_data()
            batch = self._sampler.batch(span)
            step.begin_pass(number)
            yield batch
            last = number == len(share.passes) - 1
            if last:
                step.end()
                if self._saver is not None:
                    self._saver.check_after_first_step()
            step.end_pass()
            self._watch.end_pass()
            if whole and step.gradients.failed is None:
                taken_s = clock.monotonic_s() - begin_s
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
