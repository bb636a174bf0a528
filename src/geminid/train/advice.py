"""Warnings, once each, about training loops that may not do what their author expects.

The body of the loop over batches runs once for every *pass*, while ``len(loader)`` is the number of batches of the
initial size, which schedules are built from. Where a step has several passes, an epoch has more passes than that.
"""

from __future__ import annotations

import sys

from geminid.train.group_view import GroupView


class Advice:
    """Counts the passes of an epoch, and warns. Only the leader prints.

    ``batches`` is ``len(loader)``, if known, ``batch_norm`` whether the model has BatchNorm layers, and ``by_pass``
    whether the body of the loop runs once per pass.
    """

    def __init__(self, group: GroupView, *, batches: int | None, batch_norm: bool, by_pass: bool = True) -> None:
        self._group, self._batches, self._batch_norm, self._by_pass = group, batches, batch_norm, by_pass
        self._given: set[str] = set()
        self._passes = 0

    def begin_epoch(self) -> None:
        """The loop over the batches of an epoch begins."""
        self._passes = 0

    def begin_pass(self, number: int, count: int) -> None:
        """The next pass, one of ``count`` in its step, is handed to the loop's body."""
        self._passes += 1
        if self._by_pass and count > 1 and number == 0:
            self._once(
                "passes",
                f"a step has {count} passes now: the body of the loop over batches runs once per pass, and "
                "optimizer.step() takes effect in the last of them. Do what belongs to a step (logging, a moving "
                "average of the weights) where run.stepped is true; run.step counts steps",
            )

    def steps_again(self, passes: int) -> None:
        """The optimiser has stepped again for the same batch, in a step of this many passes."""
        if passes > 1:
            self._once(
                "second step",
                "warning: optimizer.step() is called several times for one batch, and a step has several passes: "
                "those before the last take their gradients at the weights from before the first optimizer.step(). If "
                "the second loss depends on the first step, give run.prepare a max_per_slot_batch that holds a slot's "
                "whole share",
            )

    def step_was_skipped(self) -> None:
        """A step was not taken although there is no loss scaler to decide that."""
        self._once(
            "skipped step",
            "warning: optimizer.step() was not called for a batch, which then makes no progress. Do not accumulate "
            "gradients in the loop: give the loader the total batch size, and run.prepare max_per_slot_batch",
        )

    def plan_changes(self, before: int, after: int) -> None:
        """The per-slot batch changes."""
        if self._batch_norm and after != before:
            self._once(
                "batch norm",
                f"warning: the batch on one slot changes from {before} to {after} samples, and with it what the "
                "model's BatchNorm layers compute",
            )

    def epoch_was_left(self, trained_last: bool, samples_left: int | None) -> None:
        """The loop over batches was left with data remaining: warn if it seems to have counted up to ``len``.

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

    def weights_were_rounded(self) -> None:
        """The weights of workers differed by rounding."""
        self._once(
            "rounding",
            "warning: the weights of workers differed in their last digits towards the end of an epoch; all workers "
            "have the leader's now",
        )

    def _once(self, subject: str, text: str) -> None:
        if subject not in self._given and self._group.leads:
            self._given.add(subject)
            print(f"geminid: {text}", file=sys.stderr, flush=True)
