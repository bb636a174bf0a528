"""What workers do together between two steps: compare, agree, and have what the leader has.

Whatever goes wrong because somebody is gone is noted in the place (``place.lost``); those who are left form the next
group at the next boundary, or here where they cannot go on without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from geminid.supervise import protocol
from geminid.train import peers, rng, state_transfer
from geminid.train.agreement import Agreement, Place
from geminid.train.data import LARGEST_CODE
from geminid.train.gradients import Gradients
from geminid.train.membership import Membership
from geminid.train.peers import PeersLost
from geminid.train.sampler import Feed
from geminid.train.trainstate import TrainingState


class Together:
    """One worker's part in it. ``recover`` forms the next group; ``enter`` says what this worker is doing.

    ``questions`` counts what was agreed on and gathered in this epoch, and ``weights`` is a code of all weights while
    they are compared: both are part of what is compared.
    """

    def __init__(
        self,
        place: Place,
        state: TrainingState,
        *,
        feed: Feed,
        gradients: Gradients,
        agreement: Agreement,
        membership: Membership | None,
        device: torch.device,
        enter: Callable[[protocol.Phase], None],
        recover: Callable[[], None],
    ) -> None:
        self._place, self._state, self._feed, self._device = place, state, feed, device
        self._gradients, self._agreement, self._membership = gradients, agreement, membership
        self._enter, self._recover = enter, recover
        self.questions, self.weights = 0, (0, 0)
        self._warned_of_rounding = False

    # ------------------------------------------------------------------------------------------- questions

    def agree(self, value: Any) -> Any:
        """The leader's value, as JSON has it, for all workers."""
        return self._ask(json.loads(json.dumps(value)), lambda: peers.tell_all(value, self._place.rank))

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers by rank, as JSON has them."""
        answer: list[Any] = self._ask([json.loads(json.dumps(value))], lambda: peers.hear_all(value, self._place.size))
        return answer

    def _ask(self, alone: Any, ask: Callable[[], Any]) -> Any:
        """The answer of all; if one is lost meanwhile, those who are left ask again. ``alone`` is that of one alone."""
        self.questions += 1
        answer = alone
        while self._place.size > 1:
            if self._place.lost is None:
                self.compare()
            if self._place.lost is None:
                try:
                    self._enter("synchronising")
                    answer = ask()
                    peers.wait_for_all()
                    break
                except PeersLost as problem:
                    self._place.lost = str(problem)
            self._recover()
            answer = alone
        self._enter("between")
        return answer

    # ------------------------------------------------------------------------------------------- comparing

    def compare(self, weights: tuple[int, int] = (0, 0)) -> bool:
        """Make sure that all are at the same place; whether they have the same codes of weights.

        Raises:
            RuntimeError: they are not; the sentence says in what.
        """
        self.weights = weights
        try:
            self._gradients.exchange_numbers()
            self._place.lost = self._gradients.failed
            alike = self._place.lost is not None or self._agreement.check(self._gradients.numbers)
        finally:
            self.weights = (0, 0)
        self._enter("between")
        return alike

    def compare_weights(self) -> None:
        """Make sure that all have the same weights, to the last bit; the leader's, where rounding made a difference.

        Raises:
            RuntimeError: the difference is larger than that.
        """
        code = self._state.weights_code()
        if self.compare((code % LARGEST_CODE, code // LARGEST_CODE % LARGEST_CODE)):
            return
        different: list[str] = []
        if self._place.rank == 0:
            self._hand_out()
        elif (state := self._received()) is not None:
            different = self._state.weights_beyond_rounding(state)
            self._take_over(state)
        names = f" ({different[0]} and {len(different) - 1} more)" if different else ""
        if self._place.lost is None and not self.compare((int(bool(different)), 0)):
            raise RuntimeError(
                f"the weights of workers are different towards the end of an epoch{names}: something changed "
                "them on some workers only, or they are trained by an optimizer that was not given to run.prepare()"
            )
        if self._place.lost is None and self._place.rank == 0 and not self._warned_of_rounding:
            self._warned_of_rounding = True
            print(
                "geminid: warning: the weights of workers differed in their last digits towards the end of an epoch; "
                "those of the leader have become everybody's",
                file=sys.stderr,
                flush=True,
            )

    # ------------------------------------------------------------------------------------------- what the leader has

    def have_its_state(self) -> None:
        """A step was the leader's alone: have its result on all workers."""
        if self._place.rank == 0:
            self._hand_out()
        elif (state := self._received()) is not None:
            self._take_over(state)

    def have_its_own(self) -> None:
        """Have what workers may have of their own, as the leader has it: at the end of an epoch, and of a group."""
        assert self._membership is not None
        self._enter("synchronising")
        try:
            self._membership.share_what_the_leader_has()
        except PeersLost as problem:
            self._place.lost = str(problem)
        self._enter("between")

    def _hand_out(self) -> None:
        if self._place.lost is None:
            self._enter("synchronising")
            try:
                state_transfer.send_state(self._state.collect(), range(1, self._place.size))
            except PeersLost as problem:
                self._place.lost = str(problem)

    def _received(self) -> dict[str, Any] | None:
        """The leader's state; None if it was lost."""
        self._enter("synchronising")
        try:
            state, _ = state_transfer.receive_state(0, self._device)
        except PeersLost as problem:
            self._place.lost = str(problem)
            return None
        return state  # type: ignore[no-any-return]

    def _take_over(self, state: dict[str, Any]) -> None:
        """Go on from the leader's state, but with random numbers of one's own."""
        own = rng.states()
        self._state.take(state)
        rng.restore(own)
        self._feed.forget()
