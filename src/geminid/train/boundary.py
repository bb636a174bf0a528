"""What a worker does between two steps: what all workers have agreed on, then its own tasks."""

from __future__ import annotations

from geminid.supervise.protocol import Form
from geminid.train.agreement import Agreement
from geminid.train.choosing import CurrentChoice
from geminid.train.collectives import Collectives
from geminid.train.membership import Membership
from geminid.train.reporting import Reporter
from geminid.train.sampler import StepSampler
from geminid.train.saving import Saver
from geminid.train.shutdown import Shutdown
from geminid.train.worker import Worker


class Boundary:
    """The moment between two steps."""

    def __init__(
        self,
        worker: Worker,
        *,
        sampler: StepSampler,
        current: CurrentChoice,
        agreement: Agreement,
        membership: Membership,
        collectives: Collectives,
        reporter: Reporter,
        saver: Saver | None,
        shutdown: Shutdown,
    ) -> None:
        self._group, self._state, self._watch = worker.group, worker.state, worker.watch
        self._orders = worker.agent.orders
        self._sampler, self._current, self._agreement = sampler, current, agreement
        self._membership, self._collectives, self._shutdown = membership, collectives, shutdown
        self._reporter, self._saver = reporter, saver
        self._waits_for_device = worker.state.meter.device.type == "cuda"

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
        if self._waits_for_device and group.size > 1:  # reading waits for the GPU, which waits for other workers
            self._watch.enter("synchronising")
        agreed = self._agreement.read()
        if agreed.stop:
            self._shutdown.stop()
        form = self._orders.form
        if form is not None and agreed.have_form == group.size and self._may_join(form):
            if group.size > 1:  # the leader may be about to leave
                self._collectives.copy_unsynchronised_state()
            self._membership.join(form)
            return
        if agreed.choice is not None:
            self._current.apply(agreed.choice)
        self._reporter.report_if_due()
        if group.leads and self._saver is not None:
            self._saver.save_if_due()

    def _may_join(self, form: Form) -> bool:
        """Whether to form the group now: not if some of its workers would have no samples in this epoch."""
        self._watch.enter("loading")
        return self._state.position.cursor == 0 or self._sampler.suffices(self._state.position, len(form.members))
