"""The round mechanism: how time fractions become jobs on slots, round after round, for every policy that has them.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI '20, section 5.

A combination (one job, or a pair on the same slots) that should have a type for a fraction x of the time, and has had
it for a time t since the fractions were last computed, has priority x/t there. Every combination starts with half a
round's credit in t, so that nobody's priority is infinite. In each round the types are gone through one after the
other; combinations are taken by priority, then by deficit (time owed from before), then by x, as long as their gang
fits into the slots that are left and none of their jobs is taken yet. Priorities of zero come last and fill slots that
would be idle: where speeds are known, first with jobs that are nearly as fast there as anywhere. (In the published code
the remainders that an interior-point solver leaves in place of zeros decide: much the same, by accident.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from geminid.policies.gavel.problem import Array, Combination, TimeFractions


@dataclass(slots=True)
class Account:
    """What combinations should have and have had of each GPU type, and who is next.

    ``credit_s`` is what everyone is taken to have had at the start. Deficits outlive new fractions, as long as all jobs
    of the combination do.
    """

    gpu_types: tuple[str, ...]
    credit_s: float
    since_s: float = 0.0
    _rows: dict[Combination, int] = field(default_factory=dict)
    _target: Array = field(default_factory=lambda: np.zeros((0, 0)))
    _had_s: Array = field(default_factory=lambda: np.zeros((0, 0)))
    _owed_s: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def retarget(self, fractions: TimeFractions, jobs: Iterable[str], now_s: float) -> None:
        """Settle what was owed under the old fractions, and start again with these; ``jobs`` are the active ones."""
        owed = self._owed_s + self._target * (now_s - self.since_s) - (self._had_s - self.credit_s)
        new, old = self._replace(fractions, jobs)
        had_s = np.full(self._target.shape, self.credit_s)
        self._owed_s, self._had_s = np.zeros(had_s.shape), had_s
        if new:
            self._owed_s[new] = owed[old]
        self.since_s = now_s

    def revise(self, fractions: TimeFractions, jobs: Iterable[str], now_s: float) -> None:
        """Go on with other fractions for the same jobs, as if they had held all along.

        Everyone stays as far behind or ahead of its share as it was, so that fractions may change often without
        anybody being forgotten.
        """
        target, had_s, owed_s = self._target, self._had_s, self._owed_s
        new, old = self._replace(fractions, jobs)
        self._had_s = self.credit_s + self._target * (now_s - self.since_s)
        self._had_s[new] += had_s[old] - self.credit_s - target[old] * (now_s - self.since_s)
        self._had_s = np.maximum(self._had_s, self.credit_s)
        self._owed_s = np.zeros(self._had_s.shape)
        self._owed_s[new] = owed_s[old]

    def _replace(self, fractions: TimeFractions, jobs: Iterable[str]) -> tuple[list[int], list[int]]:
        """Put in new targets; the rows, new and old, of the combinations that were there before."""
        alone: list[Combination] = [(job_id,) for job_id in jobs]
        rows = {combination: row for row, combination in enumerate(dict.fromkeys([*alone, *fractions.combinations]))}
        self._target = np.zeros((len(rows), len(self.gpu_types)))
        if fractions.combinations:
            self._target[[rows[c] for c in fractions.combinations]] = fractions.fractions
        kept = [c for c in rows if c in self._rows]
        new, old = [rows[c] for c in kept], [self._rows[c] for c in kept]
        self._rows = rows
        return new, old

    def add(self, job_id: str) -> None:
        """A job has arrived that the fractions do not know yet: it waits for slots that nobody else wants."""
        if (job_id,) not in self._rows:
            self._rows[job_id,] = len(self._rows)
            nothing = np.zeros((1, len(self.gpu_types)))
            self._target = np.concatenate([self._target.reshape(-1, nothing.shape[1]), nothing])
            self._had_s = np.concatenate([self._had_s.reshape(-1, nothing.shape[1]), nothing + self.credit_s])
            self._owed_s = np.concatenate([self._owed_s.reshape(-1, nothing.shape[1]), nothing])

    def record(self, combination: Combination, gpu_type: str, seconds: float) -> None:
        """A combination has had slots of a type for some time."""
        row = self._rows.get(combination)
        if row is not None:
            self._had_s[row, self.gpu_types.index(gpu_type)] += seconds

    def priorities(self, combinations: Sequence[Combination]) -> Array:
        """x/t of each combination on each type."""
        rows = [self._rows[c] for c in combinations]
        had_s = self._had_s[rows]
        return np.divide(self._target[rows], had_s, out=1e9 * self._target[rows], where=had_s > 0)

    def select(
        self,
        jobs: Mapping[str, Mapping[str, float]],
        gangs: Mapping[str, int],
        free: Mapping[str, int],
        *,
        backfill: bool = True,
        aware: bool = True,
        taken: Collection[str] = (),
    ) -> list[tuple[Combination, str]]:
        """Who gets which type now.

        Args:
            jobs: The active jobs, with the types that can run them and how fast they run there.
            gangs: Slots that each of them takes.
            free: Free slots of each type, in the order in which types are handed out.
            backfill: Whether priority zero may run at all.
            aware: Whether their speeds decide who of those goes first.
            taken: Jobs that run already.
        """
        busy = set(taken)
        known = [c for c in self._rows if all(job_id in jobs and job_id not in busy for job_id in c)]
        if not known:
            return []
        rows = [self._rows[c] for c in known]
        priority, owed_s, target = self.priorities(known), self._owed_s[rows], self._target[rows]
        size = np.array([gangs[c[0]] for c in known])
        single = np.array([len(c) == 1 for c in known])
        fastest = [max(jobs[c[0]].values(), default=0.0) or 1.0 for c in known]
        chosen: list[tuple[Combination, str]] = []
        for gpu_type, left in free.items():
            column = self.gpu_types.index(gpu_type)
            candidates = priority[:, column] > 0
            if backfill:
                candidates |= single
            spare = np.zeros(len(known))
            if backfill and aware:
                speed = [jobs[c[0]].get(gpu_type, 0.0) / best for c, best in zip(known, fastest, strict=True)]
                spare = np.where(priority[:, column] > 0, 0.0, speed)
            order = np.lexsort((-target[:, column], -owed_s[:, column], -spare, -priority[:, column]))
            for row in order[candidates[order]].tolist():
                if left <= 0:
                    break
                combination = known[row]
                if size[row] > left or not busy.isdisjoint(combination):
                    continue
                if any(jobs[job_id].get(gpu_type, 0.0) <= 0 for job_id in combination):
                    continue
                left -= int(size[row])
                busy.update(combination)
                chosen.append((combination, gpu_type))
        return chosen
