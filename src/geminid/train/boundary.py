"""What a worker does between two steps: what all workers have agreed on, then its own tasks."""

from __future__ import annotations

from geminid.supervise.protocol import Form
from geminid.train.collectives import Collectives
from geminid.train.membership import Membership
from geminid.train.reporting import Reporter
from geminid.train.shutdown import Shutdown
from geminid.train.step import Step
from geminid.train.worker import Worker


class Boundary:
    """The moment between two steps."""

    def __init__(
        self,
        worker: Worker,
        step: Step,
        *,
        membership: Membership,
        collectives: Collectives,
        reporter: Reporter,
        shutdown: Shutdown,
    ) -> None:
        self._group, self._state, self._watch = worker.group, worker.state, worker.watch
        self._orders, self._saver, self._step = worker.agent.orders, worker.saver, step
        self._membership, self._collectives, self._shutdown = membership, collectives, shutdown
        self._reporter = reporter

    def cross(self) -> None:
        """Recover, stop, join another group or change the batch plan, if need be; report and save if it is time to."""
        if self._group.lost is not None:
            self._membership.recover()
        else:
            self._act_on_agreement()
        while self._group.held:  # too few workers are left: no step is taken until more have joined
            self._membership.join_next()

    def _act_on_agreement(self) -> None:
        group = self._group
        if self._step.device.type == "cuda" and group.size > 1:  # reading waits for the GPU, and that for other workers
            self._watch.enter("synchronising")
        agreed = self._step.agreement.read()
        if agreed.stop:
            self._shutdown.stop()
        form = self._orders.form
        if form is not None and agreed.have_form == group.size and self._may_join(form):
            if group.size > 1:  # the leader may be about to leave
                self._collectives.copy_unsynchronised_state()
            self._membership.join(form)
            return
        if agreed.choice is not None:
            self._step.current.apply(agreed.choice)
        self._reporter.report_if_due()
        if group.leads and self._saver is not None:
            self._saver.save_if_due()

    def _may_join(self, form: Form) -> bool:
        """Whether to form the group now: not if some of its workers would have no samples in this epoch."""
        self._watch.enter("loading")
        return self._state.position.cursor == 0 or self._step.sampler.suffices(self._state.position, len(form.members))
