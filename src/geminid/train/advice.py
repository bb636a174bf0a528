"""What the user is told, once, about a loop over batches that does not do what its author may believe.

The body of the loop runs once for every *pass*, while ``len(loader)`` is the number of batches of the initial size,
which schedules are built from. Where a step has several passes, an epoch has more passes than that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


class Advice:
    """Counts the passes of an epoch; ``leads`` says whether this worker is the one that prints."""

    def __init__(self, leads: Callable[[], bool], *, batches: int | None) -> None:
        self._leads, self._batches = leads, batches
        self._given: set[str] = set()
        self._passes = 0

    def begin_epoch(self) -> None:
        """The loop over the batches of an epoch begins."""
        self._passes = 0

    def pass_begins(self, number: int, count: int) -> None:
        """The next pass, one of ``count`` in its step, is handed to the loop's body."""
        self._passes += 1
        if count > 1 and number == 0:
            self._once(
                "passes",
                f"a step has {count} passes now: the body of the loop over batches runs once per pass, and "
                "optimizer.step() takes effect in the last of them. Do what belongs to a step (logging, a moving "
                "average of the weights) where run.stepped is true; run.step counts steps",
            )

    def steps_again(self, passes: int) -> None:
        """The optimiser has stepped again for the same batch, of a step that has so many passes."""
        if passes > 1:
            self._once(
                "second step",
                "warning: optimizer.step() is called several times for one batch, and a step has several passes: "
                "those before the last take their gradients at the weights from before the first optimizer.step(). If "
                "the second loss depends on the first step, give run.prepare a max_per_slot_batch that holds a slot's "
                "whole share",
            )

    def epoch_was_left(self, trained_last: bool, samples_left: int | None) -> None:
        """The loop over batches was left with data remaining: say so if that seems to be for trust in ``len``.

        A loop that ends before or after ``len(loader)`` passes does so for reasons of its own. ``trained_last`` says
        whether the last pass was trained on: ``zip(loader, range(len(loader)))`` draws one that it does not use.
        """
        if self._batches is None or self._passes - (not trained_last) != self._batches:
            return
        left = f"{samples_left} samples" if samples_left is not None else "samples"
        self._once(
            "length",
            f"warning: the loop over batches ended after len(loader) = {self._batches} of them, with {left} of the "
            "epoch left, which are not trained on. The loop's body runs once per pass, and an epoch has more passes "
            "than that where a step has several: use the loader to its end, as in 'for batch in loader', without "
            "counting, inside of 'for epoch in run.epochs(...)'",
        )

    def _once(self, subject: str, text: str) -> None:
        if subject not in self._given and self._leads():
            self._given.add(subject)
            print(f"geminid: {text}", file=sys.stderr, flush=True)
