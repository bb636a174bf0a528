"""What workers do together between two steps: compare themselves, agree, and copy the leader's state.

If an operation fails because a worker is gone, that is noted in ``group.lost``. The others form the next group at the
next boundary, or here where they cannot continue without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from geminid.train import peers, rng, state_transfer
from geminid.train.membership import Membership
from geminid.train.peers import PeersLost
from geminid.train.step import Step
from geminid.train.worker import Worker

T = TypeVar("T")


class Collectives:
    """One worker's part in the operations of all."""

    def __init__(self, worker: Worker, step: Step, membership: Membership) -> None:
        self._group, self._state = worker.group, worker.state
        self._watch, self._advice = worker.watch, worker.advice
        self._step, self._membership, self._fingerprint = step, membership, step.fingerprint

    # ------------------------------------------------------------------------------------------- questions

    def agree(self, value: Any) -> Any:
        """The leader's value, as JSON has it, for all workers.

        Raises:
            RuntimeError: it is called within a step, or not on all workers.
            TypeError: JSON does not have the value.
        """
        self._check_between_steps("agree")
        return self._ask(json.loads(json.dumps(value)), lambda: peers.broadcast_json(value, self._group.rank))

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers by rank, as JSON has them; raises what ``agree`` does."""
        self._check_between_steps("gather")
        alone = [json.loads(json.dumps(value))]
        answer: list[Any] = self._ask(alone, lambda: peers.gather_json(value, self._group.size))
        return answer

    def _check_between_steps(self, name: str) -> None:
        progress = self._state.progress
        if (progress.in_loop and not progress.between_steps) or not progress.training:
            raise RuntimeError(
                f"run.{name}() must be called inside of 'for epoch in run.epochs(...)' and after its loop over "
                "batches, or inside of 'for step in run.steps(...)' and before its loop over batches: within that "
                "loop, it would be repeated when a worker is lost"
            )

    def _ask(self, alone: Any, ask: Callable[[], Any]) -> Any:
        """The answer of all workers; if one is lost, the others ask again. ``alone`` is the answer of one worker."""
        self._fingerprint.questions += 1
        answer = alone
        while self._group.size > 1:
            if self._group.lost is None:
                self.compare()
            answered = self._attempt(ask) if self._group.lost is None else None
            if answered is not None and self._attempt(peers.wait_for_all) is not None:
                (answer,) = answered
                break
            self._membership.recover()
        self._watch.enter("between")
        return answer

    def wait_for_all(self) -> None:
        """Wait until all workers are here; if some are lost, continue with the others."""
        while self._group.size > 1 and (self._group.lost is not None or self._attempt(peers.wait_for_all) is None):
            self._membership.recover()

    def _attempt(self, operation: Callable[[], T]) -> tuple[T] | None:
        """Run a collective operation: its result in a tuple of one, or None if a worker is lost."""
        self._watch.enter("synchronising")
        try:
            return (operation(),)
        except PeersLost as problem:
            self._group.lost = str(problem)
            return None

    # ------------------------------------------------------------------------------------------- comparing

    def compare(self, weights: tuple[int, int] = (0, 0)) -> bool:
        """Make sure that all workers are at the same position; whether they have the same codes of weights.

        Raises:
            RuntimeError: they are not; the sentence says what differs.
        """
        self._fingerprint.weights = weights
        gradients = self._step.gradients
        try:
            gradients.exchange_numbers()
            self._group.lost = gradients.failed
            alike = self._group.lost is not None or self._step.agreement.check(gradients.numbers)
        finally:
            self._fingerprint.weights = (0, 0)
        self._watch.enter("between")
        return alike

    def compare_weights(self) -> None:
        """Make sure that all workers have the same weights; where rounding made a difference, they get the leader's.

        Raises:
            RuntimeError: the difference is larger than rounding explains.
        """
        if self.compare(self._fingerprint.weight_codes()):
            return
        different: list[str] = []
        leaders = self._exchange_leader_state()
        if leaders is not None:
            different = self._state.weights_beyond_rounding(leaders)
            self._restore(leaders)
        names = f" ({different[0]} and {len(different) - 1} more)" if different else ""
        if self._group.lost is None and not self.compare((int(bool(different)), 0)):
            raise RuntimeError(
                f"the weights of workers are different towards the end of an epoch{names}: something changed "
                "them on some workers only, or they are trained by an optimizer that was not given to run.prepare()"
            )
        if self._group.lost is None:
            self._advice.weights_were_rounded()

    # ------------------------------------------------------------------------------------------- the leader's state

    def copy_leader_state(self) -> None:
        """Have the leader's state on all workers: after a step that it has taken alone."""
        leaders = self._exchange_leader_state()
        if leaders is not None:
            self._restore(leaders)

    def copy_unsynchronised_state(self) -> None:
        """Have the leader's version of what may differ between workers: at the end of an epoch, and of a group."""
        self._attempt(self._membership.share_leader_state)
        self._watch.enter("between")

    def _exchange_leader_state(self) -> dict[str, Any] | None:
        """Send the leader's state to all workers; what was received, on a worker that has received it."""
        if not self._group.leads:
            received = self._attempt(lambda: state_transfer.receive_state(0, self._step.device))
            return received[0][0] if received is not None else None
        if self._group.lost is None:
            self._attempt(lambda: state_transfer.send_state(self._state.collect(), range(1, self._group.size)))
        return None

    def _restore(self, state: dict[str, Any]) -> None:
        """Continue from the leader's state, but with this worker's own random numbers."""
        own = rng.states()
        self._state.restore(state)
        rng.restore(own)
        self._step.sampler.forget()
