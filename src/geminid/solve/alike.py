"""Where most jobs are like others, how many of each kind get what is a small program, however many jobs there are.

At any prices all jobs of a kind choose the same, so the dual's own decision gives every one of them a configuration or
none: repairing it is slow and bad where there are few kinds. The linear program over kinds says how many are to have
each configuration. Only as many of its counts are broken as there are kinds and limits, and an integer program of the
same size mends those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from geminid.solve.choices import Array, Choices, IntArray, Prices
from geminid.solve.lp import LinearProgram, minimise

#: Most kinds of jobs for which jobs of a kind are counted instead of decided one by one: the program is fast then.
MOST_KINDS = 256

#: Fewest jobs per kind, on average, for the same.
LEAST_JOBS_PER_KIND = 8

#: Most nodes of the integer program's search tree: a limit in seconds would make decisions depend on the machine.
MOST_TREE_NODES = 200


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which jobs are alike: the kind of every job, and for every kind one of its jobs and how many there are."""

    of_job: IntArray
    example: IntArray
    jobs: Array

    @staticmethod
    def of(problem: Choices) -> Kinds | None:
        """The kinds, if they are few."""
        few = min(MOST_KINDS, len(problem.utility) // LEAST_JOBS_PER_KIND)
        if len(np.unique(problem.utility.max(axis=1))) > few:  # as in most problems: a quick look is enough
            return None
        worth = np.where(problem.utility > 0.0, problem.utility, -1.0)
        _, example, of_job, jobs = np.unique(
            _fingerprints(worth, problem), return_index=True, return_inverse=True, return_counts=True
        )
        if len(example) > few or not np.array_equal(worth, worth[example][of_job]):
            return None
        return Kinds(of_job.astype(np.intp), example.astype(np.intp), jobs.astype(float))


def _fingerprints(worth: Array, problem: Choices) -> Array:
    """A number for each job that is the same for jobs that are alike, and hardly ever for others."""
    rng = np.random.default_rng(0)
    # Sums of products in a fixed order: a matrix product may round the same row differently from place to place.
    marks = (worth * rng.random(worth.shape[1])).sum(axis=1)
    if problem.group is not None:
        marks = marks + rng.random(problem.groups + 1)[problem.group]
    return np.asarray(marks)


class Programs:
    """How many jobs of each kind get each configuration: as a linear and as an integer program."""

    def __init__(self, problem: Choices, kinds: Kinds) -> None:
        self.problem, self.kinds = problem, kinds
        self.kind, self.column = np.nonzero(problem.utility[kinds.example] > 0.0)
        self.worth = problem.utility[kinds.example[self.kind], self.column]
        types, number = len(problem.capacity), len(kinds.example)
        entries = [
            (self.kind, np.ones(len(self.kind))),
            (number + problem.resource[self.column], problem.slots[self.column]),
        ]
        if problem.group is not None:
            group = problem.group[kinds.example[self.kind]]
            limited = np.where(group >= 0, problem.use[self.column], 0.0)
            entries.append((number + types + np.maximum(group, 0), limited))
        rows, values = (np.concatenate(part) for part in zip(*entries, strict=True))
        each = np.tile(np.arange(len(self.kind)), len(entries))
        self.matrix = csc_array((values, (rows, each)), shape=(number + len(problem.limits), len(self.kind)))
        self.most = np.concatenate([kinds.jobs, problem.limits])

    def prices(self) -> tuple[Prices, IntArray] | None:
        """The prices at the optimum of the linear program, and a choice for every job: its counts, rounded down."""
        found = LinearProgram(self.worth, self.matrix, np.full(len(self.most), -np.inf), self.most).solve()
        if found is None:
            return None
        types, number = len(self.problem.capacity), len(self.kinds.example)
        duals = np.maximum(found.row_duals[number:], 0.0)
        return Prices(duals[:types], duals[types:]), self._choice(np.floor(found.values + 1e-6))

    def best(self, enough: float) -> tuple[IntArray, float] | None:
        """The best choice for every job up to a share of ``enough``, and a bound on what any is worth."""
        upper = self.kinds.jobs[self.kind]
        lower = np.full(len(self.most), -np.inf)
        found = minimise(
            -self.worth, upper, self.matrix, lower, self.most, integer=True, gap=enough, tree_nodes=MOST_TREE_NODES
        )
        return None if found is None else (self._choice(np.round(found.values)), -found.bound)

    def _choice(self, counts: Array) -> IntArray:
        """A configuration for as many jobs of each kind as the counts say, those that come first, −1 for the rest."""
        counts = counts.astype(np.intp)
        choice = np.full(len(self.kinds.of_job), -1, dtype=np.intp)
        for kind in range(len(self.kinds.example)):
            given = np.repeat(self.column[self.kind == kind], counts[self.kind == kind])
            choice[np.flatnonzero(self.kinds.of_job == kind)[: len(given)]] = given
        return choice
