"""A worker's view of its group: its rank, the other workers, and where they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Layout:
    """How a job's slots are spread: how many, on how many nodes, and the most on one node (0: all of them)."""

    slots: int = 1
    nodes: int = 1
    busiest: int = 0

    @classmethod
    def of(cls, hosts: Sequence[int]) -> Layout:
        """The layout of workers on these hosts."""
        counts = Counter(hosts)
        return cls(len(hosts), len(counts), max(counts.values()))

    @property
    def busiest_node_slots(self) -> int:
        """Slots on the node that has most of them."""
        return self.busiest or self.slots


@dataclass(slots=True)
class GroupView:
    """This worker's place in the current generation of its group.

    ``lost`` says why the group cannot continue, if a member is lost. ``held`` says that there are fewer workers than
    the job needs: they take no step until more have joined.
    """

    rank: int = 0
    generation: int = 0
    layout: Layout = field(default_factory=Layout)
    lost: str | None = None
    held: bool = False

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.layout.slots

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader."""
        return self.rank == 0

    @property
    def intact(self) -> bool:
        """Whether there are other workers, and none is known to be lost."""
        return self.size > 1 and self.lost is None
