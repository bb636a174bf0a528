"""Joining the generations of a group: waiting for an order, forming the group, and having the same state as all."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from geminid.supervise import protocol
from geminid.supervise.protocol import Form
from geminid.train import peers, rendezvous, rng, state_transfer
from geminid.train.choosing import Choice
from geminid.train.group_view import Layout
from geminid.train.peers import PeersLost, Stuck
from geminid.train.rendezvous import Superseded
from geminid.train.shutdown import Shutdown
from geminid.train.step import Step
from geminid.train.worker import Worker

#: While waiting for an order: time between two looks whether the process has received SIGTERM.
LOOK_S = 0.2


class Membership:
    """One worker's membership in the generations of its group."""

    def __init__(self, worker: Worker, step: Step, shutdown: Shutdown) -> None:
        self._agent, self._group, self._state = worker.agent, worker.group, worker.state
        self._saver, self._watch, self._clock = worker.saver, worker.watch, worker.clock
        self._step, self._shutdown = step, shutdown

    def begin_alone(self) -> Path | str | None:
        """Train without a supervisor, from the last checkpoint if there is one; returns where that is."""
        restored_from = self._restore_checkpoint()
        self._state.present = True
        self._begin_generation(self._step.chooser.choose_first(None))
        return restored_from

    def join_next(self) -> None:
        """Wait for an order, and join the generation that it names."""
        self.join(self._await_form())

    def recover(self) -> None:
        """A member is lost: report it, and join the group that the supervisor decides on."""
        self._shutdown.leave_group()
        self._report_loss(self._group.generation, str(self._group.lost))
        self.join_next()

    def share_leader_state(self) -> None:
        """Have the leader's running statistics, step times and plain script state: workers may have their own."""
        state, leads = self._state, self._group.leads
        own = {"user": state.plain_user_state(), "tuner": state.tuner.state()} if leads else None
        leaders = peers.broadcast_json(own, self._group.rank)
        if not leads:
            state.restore_user_state(leaders["user"])
            state.tuner.restore(leaders["tuner"])
        peers.broadcast_tensors(state.model.buffers())

    # ------------------------------------------------------------------------------------------- forming a group

    def _await_form(self) -> Form:
        self._watch.enter("waiting")
        while True:
            form = self._agent.orders.wait_for_form(LOOK_S)
            self._shutdown.stop_if_ordered()
            if form is not None:
                return form

    def join(self, form: Form) -> None:
        """Leave the current group, and form the next one, in as many attempts as it takes."""
        stopped_at_s = self._step.ended_at_s if self._state.present else None
        while True:
            self._watch.enter("forming")
            self._shutdown.leave_group()
            if self._agent.worker not in form.members:
                self._shutdown.leave(form)
            try:
                received_bytes, restored, choice = self._form(form)
                break
            except Superseded:
                if not self._state.present:  # this worker's peers may have stopped already
                    self._shutdown.stop_if_ordered()
                form = self._agent.orders.form or self._await_form()
            except PeersLost as problem:
                if not self._state.present:
                    self._shutdown.stop_if_ordered()
                self._report_loss(form.generation, str(problem))
                form = self._await_form()
            except Stuck as problem:
                self._shutdown.give_up(problem)
        self._begin_generation(choice)
        self._agent.send(
            protocol.Joined(
                generation=self._group.generation,
                rank=self._group.rank,
                size=self._group.size,
                step=self._state.position.step,
                resumed_at_s=self._clock.monotonic_s(),
                stopped_at_s=stopped_at_s,
                received_bytes=received_bytes,
                restored=restored,
                samples=self._state.position.samples,
            )
        )
        self._watch.enter("between")

    def _form(self, form: Form) -> tuple[int, bool, Choice]:
        """One attempt: bytes of state received, whether the state is from a checkpoint or new, and how to train."""
        group, orders, clock = self._group, self._agent.orders, self._clock
        orders.generation = group.generation = form.generation
        group.layout, group.rank = Layout(len(form.members)), form.members.index(self._agent.worker)
        group.held = form.hold
        if group.size > 1:
            store = rendezvous.meet(form, group.rank, clock, interrupted=self._is_interrupted)
            peers.form_group(
                store, group.rank, group.size, self._step.device, clock, broken=lambda: orders.group_is_broken
            )
        received_bytes, restored = self._share_state()
        choice = self._step.chooser.choose_first(form.plan) if group.leads else None
        if group.size > 1:
            document = peers.broadcast_json(msgspec.to_builtins(choice), group.rank)
            choice = msgspec.convert(document, Choice)
            self.share_leader_state()
        assert choice is not None
        return received_bytes, restored, choice

    def _is_interrupted(self) -> bool:
        """Whether there is a newer order. A worker without state stops at once if it has to."""
        orders = self._agent.orders
        return orders.form is not None or (orders.stop and not self._state.present)

    def _report_loss(self, generation: int, reason: str) -> None:
        if self._agent.orders.form is None:
            self._agent.send(protocol.Lost(generation=generation, reason=reason))

    def _begin_generation(self, choice: Choice) -> None:
        self._group.lost = None
        self._step.begin_generation(choice)

    # ------------------------------------------------------------------------------------------- the same state

    def _share_state(self) -> tuple[int, bool]:
        """Give the state to the workers that have none, or an older one; as the first two results of ``_form``.

        The workers with the most advanced state send it, each to some of the others; on one host, one of them to all.
        If none has any, the first worker uses the last checkpoint, or begins as the script has built it.
        """
        group, state = self._group, self._state
        own = [state.age, peers.this_host()]
        everyones = peers.gather_numbers(own, group.size) if group.size > 1 else [own]
        ages = [age for age, _ in everyones]
        group.layout = Layout.of([host for _, host in everyones])
        same_host = group.layout.nodes == 1
        newest = max(ages)
        restored = newest < 0
        if restored and group.leads:
            self._restore_checkpoint()
            state.present = True
        senders = [0] if restored else [rank for rank, age in enumerate(ages) if age == newest]
        receivers = [rank for rank in range(group.size) if rank not in senders]
        senders = senders[:1] if same_host else senders
        if group.rank in receivers:
            sender = senders[receivers.index(group.rank) % len(senders)]
            received, received_bytes = state_transfer.receive_state(sender, self._step.device)
            state.restore(received)
            # This worker's random numbers differ from the sender's, but depend on them.
            seed = zlib.crc32(received["rng"]["torch"].cpu().numpy().tobytes())
            rng.seed_all(rng.mixed(seed, group.rank))
            return received_bytes, restored
        mine = receivers[senders.index(group.rank) :: len(senders)] if group.rank in senders else []
        if mine:
            state_transfer.send_state(state.collect(), mine, same_host=same_host)
        return 0, restored

    def _restore_checkpoint(self) -> Path | str | None:
        return self._saver.restore() if self._saver is not None else None
