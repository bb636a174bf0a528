"""Being a member of a generation: waiting for a place, forming the group, and having the same state as everybody."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from geminid.supervise import protocol
from geminid.supervise.protocol import Form, Plan
from geminid.train import peers, rng, state_transfer
from geminid.train.agent import Agent
from geminid.train.agreement import Place
from geminid.train.peers import PeersLost, Superseded
from geminid.train.trainstate import TrainingState
from geminid.train.tuner import Layout


@dataclass(frozen=True, slots=True)
class Entry:
    """How a worker came into a generation: what its leader decided, bytes of state received, and whether the state was
    restored (or is fresh) rather than handed on.
    """

    proposal: dict[str, Any]
    received_bytes: int
    restored: bool


class Membership:
    """One worker's membership in the generations of its group.

    ``restore`` takes the state from the last checkpoint, if there is one; ``release`` lets go of the process group;
    ``stop_if_wanted`` and ``leave`` may not come back.
    """

    def __init__(
        self,
        agent: Agent,
        place: Place,
        state: TrainingState,
        device: torch.device,
        *,
        restore: Callable[[], object],
        release: Callable[[], None],
        stop_if_wanted: Callable[[], None],
        leave: Callable[[Form], NoReturn],
    ) -> None:
        self._agent, self._place, self._state, self._device = agent, place, state, device
        self._restore, self._release = restore, release
        self._stop_if_wanted, self._leave = stop_if_wanted, leave

    def await_form(self) -> Form:
        """Wait to be told one's place."""
        self._agent.enter("waiting")
        while True:
            form = self._agent.wait_for_form(0.2)
            self._stop_if_wanted()
            if form is not None:
                return form

    def recover(self, reason: str, propose: Callable[[Plan | None], dict[str, Any]]) -> Entry:
        """Somebody is gone: say so, and join the group that the supervisor decides on."""
        self._release()
        if self._agent.form is None:
            self._agent.send(protocol.Lost(generation=self._place.generation, reason=reason))
        return self.join(self.await_form(), propose)

    def join(self, form: Form, propose: Callable[[Plan | None], dict[str, Any]]) -> Entry:
        """Leave the group one is in, and form the next one, however many attempts that takes."""
        agent, place = self._agent, self._place
        while True:
            agent.enter("forming")
            self._release()
            if agent.identity.worker not in form.members:
                self._leave(form)
            agent.generation = place.generation = form.generation
            place.layout, place.rank = Layout(len(form.members)), form.members.index(agent.identity.worker)
            place.held = form.hold
            try:
                if place.size > 1:
                    store = peers.meet(form, agent.identity.worker, superseded=self._is_superseded)
                    peers.form_group(store, place.rank, place.size, self._device, broken=lambda: agent.broken)
                received, restored = self._share_state()
                proposal = propose(form.plan) if place.rank == 0 else None
                if place.size > 1:
                    proposal = peers.tell_all(proposal, place.rank)
                    self.share_what_the_leader_has()
                assert proposal is not None
                return Entry(proposal, received, restored)
            except Superseded:
                assert agent.form is not None
                form = agent.form
            except PeersLost as problem:
                if agent.form is None:
                    agent.send(protocol.Lost(generation=form.generation, reason=str(problem)))
                form = self.await_form()

    def _is_superseded(self) -> bool:
        """Whether there is a newer order. A newcomer that is to stop does so: its peers may have stopped already."""
        if not self._state.present:
            self._stop_if_wanted()
        return self._agent.form is not None

    def share_what_the_leader_has(self) -> None:
        """Have the leader's running statistics, step times, and what its script keeps: workers may have their own."""
        place, state = self._place, self._state
        own = {"user": state.plain_user_state(), "tuner": state.tuner.state()} if place.rank == 0 else None
        kept = peers.tell_all(own, place.rank)
        if place.rank > 0:
            state.take_user_state(kept["user"])
            state.tuner.restore(kept["tuner"])
        peers.share_tensors(state.model.buffers())

    def _share_state(self) -> tuple[int, bool]:
        """Give the state to whoever has none, or an older one; bytes received, and whether a checkpoint was used.

        Those who are furthest hand it over, each to some of the others; on one host, one of them for all. If nobody has
        any, the first worker takes it from the last checkpoint, or as the script made it.
        """
        place, state = self._place, self._state
        own = [state.age, peers.this_host()]
        everybody = peers.survey(own, place.size) if place.size > 1 else [own]
        ages = [age for age, _ in everybody]
        place.layout = Layout.of([host for _, host in everybody])
        same_host = place.layout.nodes == 1
        furthest = max(ages)
        restored = furthest < 0
        if restored and place.rank == 0:
            self._restore()
            state.present = True
        givers = [0] if restored else [rank for rank, age in enumerate(ages) if age == furthest]
        takers = [rank for rank in range(place.size) if rank not in givers]
        givers = givers[:1] if same_host else givers
        if place.rank in givers:
            mine = takers[givers.index(place.rank) :: len(givers)]
            if mine:
                state_transfer.send_state(state.collect(), mine, same_host=same_host)
            return 0, restored
        if place.rank not in takers:
            return 0, restored
        taken, received = state_transfer.receive_state(givers[takers.index(place.rank) % len(givers)], self._device)
        state.take(taken)
        # A stream of random numbers of one's own, which depends on the giver's.
        rng.seed_all(rng.mixed(zlib.crc32(taken["rng"]["torch"].cpu().numpy().tobytes()), place.rank))
        return received, restored
