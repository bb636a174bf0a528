"""Which samples a worker gets next: its share of every step, from the one order of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from geminid.supervise.protocol import Plan
from geminid.train.data import Source
from geminid.train.group_view import GroupView
from geminid.train.progress import Position
from geminid.train.shares import Span, StepShare, share_of_step


class StepSampler:
    """Follows the position in the data; when the epoch, group, plan or position changes, it starts over from there.

    ``opening`` says that the next batch is the first one since then, which may take long: processes are started, and
    streams read up to the position. No worker is given fewer than ``fewest`` samples in a step, unless there are no
    more.
    """

    def __init__(self, source: Source, group: GroupView, *, fewest: int = 1) -> None:
        self._source, self._group, self._fewest = source, group, fewest
        self._prepared_for: tuple[Any, ...] | None = None
        self.opening = False

    def move_to(self, position: Position, plan: Plan) -> None:
        """The next share begins at this position, and follows this plan."""
        self._key = (position.epoch, self._group.generation, plan)
        self.opening = self._prepared_for != (*self._key, position.cursor)

    def next_share(self, position: Position, plan: Plan, total_batch: int) -> StepShare | None:
        """This worker's share of the next step; None at the end of the data."""
        total = self.available(position, total_batch)
        if not total:
            return None
        if self.opening:
            self._source.begin(position.epoch, self._spans(position, plan, total_batch))
        self._prepared_for = (*self._key, position.cursor + total)
        return self.share(position.cursor, total, plan, rank=self._group.rank)

    def available(self, position: Position, count: int) -> int:
        """How many of ``count`` samples there are from a position on."""
        return self._source.available(position.epoch, position.cursor, count)

    def suffices(self, position: Position, size: int) -> bool:
        """Whether enough of the epoch is left for each of ``size`` workers to have some of it."""
        wanted = size * self._fewest
        return self.available(position, wanted) == wanted

    def share_of_leader(self, share: StepShare, plan: Plan) -> StepShare:
        """The leader's share of a step that it takes alone; its samples are prepared on this worker too."""
        leaders = self.share(share.begin, share.total, plan, rank=0)
        epoch, *_ = self._key
        self._source.begin(epoch, leaders.passes)
        self.forget()
        return leaders

    def batch(self, span: Span) -> Any:
        """The batch of the next span."""
        batch = self._source.batch(span)
        self.opening = False
        return batch

    def forget(self) -> None:
        """The samples that were prepared are not those that come next."""
        self._prepared_for = None

    def order_code(self) -> int:
        """A hash code of the epoch's order."""
        return self._source.order_code()

    def share(self, begin: int, total: int, plan: Plan, *, rank: int) -> StepShare:
        """The share of one worker in a step over ``total`` samples."""
        batch, size = plan.per_slot_batch, self._group.size
        return share_of_step(begin, total, rank=rank, size=size, per_slot_batch=batch, fewest=self._fewest)

    def _spans(self, position: Position, plan: Plan, total_batch: int) -> Iterator[Span]:
        """All spans that this worker will process in this epoch, if nothing changes."""
        length, cursor = self._source.length(position.epoch), position.cursor
        while length is not None and cursor < length:
            share = self.share(cursor, min(total_batch, length - cursor), plan, rank=self._group.rank)
            yield from share.passes
            cursor = share.end
