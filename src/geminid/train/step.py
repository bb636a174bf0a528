"""The optimiser step under way: which part of it this worker computes, and what the user's calls do in it.

The user's loop calls ``backward`` and ``optimizer.step()`` as always. A step may have several passes and be spread over
several workers; ``optimizer.step()`` takes effect once, when the gradients of the whole step are in place. If a
collective operation fails, the body of the loop runs to its end without effect, and the step is repeated later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from geminid.supervise import protocol
from geminid.train import peers
from geminid.train.agreement import Agreement
from geminid.train.choosing import Choice, Chooser, CurrentChoice
from geminid.train.fingerprint import Fingerprint
from geminid.train.gradients import Gradients
from geminid.train.optim import listen_to_optimizer, listen_to_scaler
from geminid.train.outsiders import Outsiders
from geminid.train.sampler import StepSampler
from geminid.train.several import Optimizers, each
from geminid.train.shares import StepShare
from geminid.train.trained import TrainedParameters
from geminid.train.worker import Worker


class StepCallbacks:
    """The script's own functions: for every step that was taken, if they are ``due``, and for every new group."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], Any]] = []
        self.for_groups: list[Callable[[], Any]] = []
        self.due = False

    def call(self) -> None:
        """Call them, if they are due."""
        if self.due:
            self.due = False
            for function in self.functions:
                function()


class Step:
    """Follows one step after the other; listens to backward, and to the user's optimiser and loss scaler.

    ``share`` is this worker's part of the step under way (None: there is none), ``stepped`` whether the optimiser has
    stepped in it, and ``ended_at_s`` when the last step ended. ``result_is_due`` says that the leader takes the step
    alone, and that the other workers do not have its result yet. A step's samples come from the ``sampler``; how to
    train is the ``chooser``'s choice on the leader, by ``agreement`` that of all workers, and then the ``current`` one.
    """

    def __init__(self, worker: Worker, sampler: StepSampler, chooser: Chooser) -> None:
        self._agent, self._group, self._state = worker.agent, worker.group, worker.state
        self._watch, self._worker = worker.watch, worker
        state = worker.state
        self.sampler, self.chooser, self.current = sampler, chooser, CurrentChoice(worker)
        self.fingerprint = Fingerprint(state, sampler)
        self.agreement = Agreement(worker, self.fingerprint, chooser)
        self.share: StepShare | None = None
        self.stepped = self._stepped_before = True
        self.result_is_due = False
        self.ended_at_s: float | None = None
        self._report_first_step = False
        self.callbacks = StepCallbacks()
        self._outsiders = Outsiders([*state.model.parameters(), *state.parameters])
        trained = TrainedParameters(state.parameters, state.switched)
        self.device = trained.all[0].device
        for optimizer, first_group in each(state.optimizer):
            listen_to_optimizer(optimizer, self, first_group)
        if state.scaler is not None:
            listen_to_scaler(state.scaler, self)
        self.gradients = Gradients(
            trained, self, self._worker.clock, extras=self.agreement.count, scaler=state.scaler, wait=self._wait_for
        )

    def begin_generation(self, choice: Choice) -> None:
        """A new group has been formed: train by its leader's choice from now on, and report the first step."""
        self.sampler.forget()
        self.agreement.forget()
        self.chooser.plan = choice.plan
        self.current.apply(choice, new_group=True)
        self.share, self._stepped_before, self.result_is_due = None, True, False
        self._report_first_step = True
        if self._agent.supervised:
            self._outsiders.begin_group()
        self.gradients.spread_over(self._group.size)
        for function in self.callbacks.for_groups:
            function()

    def begin(self, share: StepShare, *, whole: bool) -> None:
        """A step begins; ``whole`` says whether it has as many samples as the batch plan wants."""
        self.share, self.stepped = share, False
        self.callbacks.due = True
        self._outsiders.begin_step()
        step = self._state.position.step
        self._state.meter.begin_step(step, micro_gradients=share.micro_gradients, whole=whole)

    def begin_pass(self, number: int) -> None:
        """The batch of a pass is about to be handed to the body of the loop."""
        share = self.share
        assert share is not None
        (begin, end), count = share.passes[number], len(share.passes)
        self.gradients.begin_pass(
            weight=(end - begin) / share.total, first=number == 0, last=number == count - 1, alone=share.alone
        )
        self._watch.in_pass = True
        self._worker.advice.begin_pass(number, count)
        self._watch.enter("training")

    def end_pass(self) -> None:
        """The body of the loop is through with a pass, or was left in it."""
        self.gradients.end_pass()
        self._watch.in_pass = False

    def call_back(self) -> None:
        """If a step was taken that is not over yet, call the script's own functions for it."""
        if self.stepped and not self.idle:
            self.callbacks.call()

    def weigh(self, weight: float) -> None:
        """Weigh the pass under way by this number instead of its samples; see ``Gradients.weigh``."""
        if self.gradients.active and self.share is not None:
            self.gradients.weigh(weight / self.share.total)

    def end(self) -> None:
        """The body of the loop is through with a step: count it, unless a collective operation failed in it."""
        assert self.share is not None
        gradients = self.gradients
        if not gradients.finished_pass:
            gradients.complete()
        self.ended_at_s = self._worker.clock.monotonic_s()
        self.call_back()
        self._outsiders.check(several_workers=self._group.size > 1)
        self._outsiders.end_step()
        if self.idle:
            return
        if gradients.failed is not None:
            self._group.lost = gradients.failed
            return
        gradients.check_backwards()
        self._state.meter.count_step()
        if not self.share.alone:
            self._stepped_before = self.stepped
        if not self.stepped:
            self.count_skipped()
            if self._state.scaler is None:
                self._worker.advice.step_was_skipped()
        self._agent.activity.step = self._state.position.step
        if self._report_first_step:
            self._report_first_step = False
            self._agent.send(protocol.FirstStep(generation=self._group.generation, ended_at_s=self.ended_at_s))

    def count_skipped(self) -> None:
        """The samples of the step are consumed, but the optimiser has not stepped: a loss scaler may decide that."""
        assert self.share is not None
        self._state.progress.count(self.share.total, 0.0)

    @property
    def samples(self) -> int:
        """Samples that all workers together process in the step under way."""
        return self.share.total if self.share is not None else self.current.total_batch

    @property
    def idle(self) -> bool:
        """Whether the leader takes the step alone, and what this worker does in it has no effect."""
        return self.share is not None and self.share.alone and not self._group.leads

    @property
    def in_effect(self) -> bool:
        """Whether a step that is taken now has an effect: not in passes that only accumulate."""
        gradients = self.gradients
        return not gradients.active or (gradients.pass_is_last and gradients.failed is None and not self.idle)

    # ------------------------------------------------------------------------------------------- the user's optimiser

    @property
    def factors(self) -> Sequence[float]:
        """What the learning rate of each parameter group is multiplied by."""
        return self.current.choice.factors

    def may_step(self) -> bool:
        """Whether the optimiser may step now: the gradients of a whole step are in place."""
        gradients = self.gradients
        if self._state.progress.between_steps:
            return False
        if not gradients.active:  # between epochs, or after training: the script's own step
            return True
        if not gradients.finished_pass:  # its gradients were not made by backward
            gradients.complete()
        return self.in_effect

    def before_step(self) -> None:
        """The optimiser is about to step."""
        if self.gradients.active:
            self._watch.enter("stepping")

    def after_step(self) -> None:
        """The optimiser has stepped: from this moment on the samples of the step count."""
        state, share, active = self._state, self.share, self.gradients.active
        if active:
            self._watch.enter("training")
        if not self.stepped or not isinstance(state.optimizer, Optimizers):
            self._state.meter.optimizer_stepped()
        if share is not None and not self.stepped:
            state.progress.count(share.total, self.current.choice.efficiency)
            if state.further_steps is not None:
                state.further_steps = 0
        elif share is not None and active:
            state.further_steps = (state.further_steps or 0) + 1
            self._worker.advice.steps_again(len(share.passes))
        self.stepped = True

    # ------------------------------------------------------------------------------------------- backward

    def backward_begins(self) -> None:
        """Backward has reached the first parameter."""
        self._watch.enter("computing")

    def pass_is_through(self) -> None:
        """Backward has ended, and the pass's own gradients are in place."""
        self._watch.enter("training")
        self._outsiders.check(several_workers=self._group.size > 1)
        self._state.meter.end_pass()

    def before_sending(self, numbers: Tensor) -> None:
        """Fill in what this worker sends to the others along with its gradients."""
        weighed = self.gradients.active and self.gradients.weighed
        self.agreement.fill_in(numbers, stepped_before=self._stepped_before, weighed=weighed)
        self._watch.enter("synchronising")

    def averages_are_in_place(self) -> None:
        """The gradients of a whole step are in place."""
        self._watch.enter("training")
        share = self.share
        if share is not None and not share.alone:
            self.agreement.averaged(
                self.gradients.numbers if self._group.size > 1 else None,
                step=self._state.position.step,
                total=share.total,
                micro_gradients=share.micro_gradients,
            )

    def _wait_for(self, work: Any) -> None:
        """Wait for a collective operation; on the CPU not longer than its group lasts."""
        if self.device.type == "cpu":
            peers.wait_for(work, self._worker.clock, abandoned=lambda: self._agent.orders.group_is_broken)
        else:
            work.wait()
