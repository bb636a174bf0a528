"""Which worker processes which samples of a step: arithmetic on positions in the epoch's order.

A step takes the next samples of one global order. They are divided into as many contiguous shares as there are
workers, whose sizes differ by at most one, and each share into passes. So the order in which samples are consumed, and
the steps they are consumed in, do not depend on the number of workers; only the division of a step's samples does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepShare:
    """One worker's part of one optimiser step.

    The step consumes ``total`` samples from ``begin`` on; this worker processes ``passes``, spans of positions.
    ``micro_gradients`` is the number of passes of all workers. Where a step has too few samples for all workers (the
    end of an epoch), the leader takes it ``alone``, and the others get its state afterwards.
    """

    begin: int
    total: int
    passes: tuple[Span, ...]
    micro_gradients: int
    alone: bool = False

    @property
    def end(self) -> int:
        """The position after the last sample."""
        return self.begin + self.total


def share_of_step(begin: int, total: int, *, rank: int, size: int, per_slot_batch: int, fewest: int = 1) -> StepShare:
    """The share of worker ``rank`` among ``size`` in a step over ``total`` samples from position ``begin`` on.

    No worker gets fewer than ``fewest`` samples, unless there are no more.
    """
    if size > 1 and total < size * fewest:
        passes = _passes(begin, begin + total, per_slot_batch) if rank == 0 else ()
        return StepShare(begin, total, passes, math.ceil(total / per_slot_batch), alone=True)
    first, last = (begin + total * k // size for k in (rank, rank + 1))
    sizes = (total * (k + 1) // size - total * k // size for k in range(size))
    micro_gradients = sum(math.ceil(share / per_slot_batch) for share in sizes)
    return StepShare(begin, total, _passes(first, last, per_slot_batch), micro_gradients)


def _passes(begin: int, end: int, per_slot_batch: int) -> tuple[Span, ...]:
    """A span cut into as few pieces as fit a pass, of sizes that differ by at most one."""
    samples = end - begin
    count = math.ceil(samples / per_slot_batch)
    cuts = [begin + samples * k // count for k in range(count + 1)]
    return tuple(pairwise(cuts))
