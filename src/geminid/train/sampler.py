"""Which samples a worker gets next: its part of every step, from the one order of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from geminid.supervise.protocol import Plan
from geminid.train.agreement import Place
from geminid.train.data import MapSource, StreamSource
from geminid.train.shares import Span, StepShare, share_of_step
from geminid.train.trainstate import Position


class Feed:
    """Follows the position in the data; whatever changes (epoch, group, plan, or position), it begins anew.

    ``opening`` says that the next batch is the first one since: it takes as long as it takes, because processes are
    started, and streams read up to the position. No worker is given fewer than ``fewest`` samples in a step, unless
    there are no more.
    """

    def __init__(self, source: MapSource | StreamSource, place: Place, *, fewest: int = 1) -> None:
        self._source, self._place, self._fewest = source, place, fewest
        self._fed: tuple[Any, ...] | None = None
        self.opening = False

    def turn_to(self, position: Position, plan: Plan | None) -> None:
        """The next share is to be that from this position on, by this plan."""
        self._key = (position.epoch, self._place.generation, plan)
        self.opening = self._fed != (*self._key, position.cursor)

    def next_share(self, position: Position, plan: Plan, total_batch: int) -> StepShare | None:
        """This worker's part of the next step; None at the end of the data."""
        total = self._source.available(position.epoch, position.cursor, total_batch)
        if not total:
            return None
        if self.opening:
            self._source.begin(position.epoch, self._spans(position, plan, total_batch))
        self._fed = (*self._key, position.cursor + total)
        return self._share(position.cursor, total, plan)

    def available(self, position: Position, count: int) -> int:
        """How many of so many samples from a position on there are."""
        return self._source.available(position.epoch, position.cursor, count)

    def suffices(self, position: Position, size: int) -> bool:
        """Whether enough of the epoch is left for so many workers to have some of it each."""
        wanted = size * self._fewest
        return self.available(position, wanted) == wanted

    def share_of_leader(self, share: StepShare, plan: Plan) -> StepShare:
        """What the first worker has of a step that is its alone; the samples are prepared to be seen here too."""
        own = self._share(share.begin, share.total, plan, rank=0)
        epoch, *_ = self._key
        self._source.begin(epoch, own.passes)
        self._fed = None
        return own

    def batch(self, span: Span) -> Any:
        """The batch of the next span."""
        batch = self._source.batch(span)
        self.opening = False
        return batch

    def forget(self) -> None:
        """What was prepared is not what comes next."""
        self._fed = None

    def order_code(self) -> int:
        """A small number that differs, most likely, where the epoch's order does."""
        return self._source.order_code()

    def _share(self, begin: int, total: int, plan: Plan, rank: int | None = None) -> StepShare:
        place = self._place
        return share_of_step(
            begin,
            total,
            rank=place.rank if rank is None else rank,
            size=place.size,
            per_slot_batch=plan.per_slot_batch,
            fewest=self._fewest,
        )

    def _spans(self, position: Position, plan: Plan, total_batch: int) -> Iterator[Span]:
        """All spans that this worker will be asked for in this epoch, if nothing changes."""
        length, cursor = self._source.length(position.epoch), position.cursor
        while length is not None and cursor < length:
            share = self._share(cursor, min(total_batch, length - cursor), plan)
            yield from share.passes
            cursor = share.end
