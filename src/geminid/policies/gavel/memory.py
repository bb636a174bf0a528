"""What a policy keeps of one solve to start the next one from.

Between rounds little changes: a few jobs have come or gone, everyone has made some progress. The next solve then starts
from the last one's basis (simplex), with the tangents that mattered last time, or from a point on the last one's way to
the optimum (interior point). All of it is kept by what jobs are, not by where they stood in a program, so that it
serves for any later problem; of one that is nothing like it, nothing fits and the solve starts from scratch. The
optimum is the same either way; which of several optimal solutions is found may depend on what was solved before, in
the same way whenever the same things happen.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from geminid.solve.raising import Start


@dataclass(slots=True)
class Memory:
    """The last solve: basic columns and rows by name, rates at which groups' tangents were tight, the level, a point.

    Names of columns are (group, partner, types), of rows (group or types, rate); groups are named by what their jobs
    have in common, points' blocks by the jobs in them.
    """

    basic: frozenset[Hashable] = frozenset()
    nonbasic_rows: frozenset[Hashable] = frozenset()
    rates: dict[Hashable, tuple[float, ...]] = field(default_factory=dict)
    level: float | None = None
    start: Start | None = None
    block_of: dict[str, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Start from scratch next time."""
        self.basic = self.nonbasic_rows = frozenset()
        self.rates, self.level, self.start, self.block_of = {}, None, None, {}

    def copy(self) -> Memory:
        """The same, to be changed without changing this one."""
        return Memory(self.basic, self.nonbasic_rows, dict(self.rates), self.level, self.start, dict(self.block_of))
