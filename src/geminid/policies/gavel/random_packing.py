"""Packing by trial, as Gavel models Gandiva: equal shares, and under overload random pairs that are kept if they pay.

While more slots are asked for than there are, jobs of equal gang are paired at random, without asking whether the two
can run together: that shows when they try. At the next turn a pair is dropped whose summed throughputs, each relative
to running alone and averaged over the types, come to less than one job's, and its jobs are paired again. All
combinations have the same static share meanwhile, though pairs cannot use it where they cannot run. (The published code
adds up over the types instead of averaging, so that hardly any pair that runs is ever dropped.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from geminid.policies.gavel.level import finish, unrunnable
from geminid.policies.gavel.maxmin import smallest_share
from geminid.policies.gavel.problem import AllocationProblem, Array, Combination, Mask, TimeFractions


def random_packing(problem: AllocationProblem, *, seed: int = 0, held: Iterable[Combination] = ()) -> TimeFractions:
    """Equal shares of single jobs and random pairs; pairs that are ``held`` stay together while they pay."""
    rng = np.random.default_rng(seed)
    rows = {job.id: i for i, job in enumerate(problem.jobs)}
    single = set(np.flatnonzero(problem.runs).tolist())
    pairs: list[tuple[int, int]] = []
    if problem.pairs is not None and problem.gangs[problem.runs].sum() > problem.slots.sum():
        worth = _worth(problem)
        for combination in held:
            known = [rows[job] for job in combination if job in rows]
            if len(known) == 2 and single.issuperset(known) and worth[known[0], known[1]] >= 1.0:
                pairs.append((known[0], known[1]))
                single -= set(known)
        waiting = sorted(single)
        for _ in range(len(waiting)):
            if len(waiting) < 2:
                break
            i, k = (waiting[n] for n in rng.choice(len(waiting), 2, replace=False).tolist())
            if problem.gangs[i] == problem.gangs[k]:
                waiting = [n for n in waiting if n not in (i, k)]
                single -= {i, k}
                pairs.append((i, k))
    members = [(i,) for i in sorted(single)] + [tuple(sorted(pair)) for pair in pairs]
    combinations = tuple(tuple(problem.jobs[i].id for i in member) for member in members)
    fractions = _equal_shares(problem, members)
    return finish(problem, combinations, fractions, lambda x: smallest_share(problem, x), unrunnable(problem))


def _worth(problem: AllocationProblem) -> Array:
    """How many jobs alone each pair is worth, on average over the types; 0 where it is impossible on one of them."""
    jobs = len(problem.jobs)
    there = problem.slots > 0
    if problem.pairs is None or not there.any():
        return np.zeros((jobs, jobs))
    kinds = problem.pairs.index
    kind = np.array([kinds.get(job.kind, -1) for job in problem.jobs], dtype=np.int64)
    rates = problem.pairs.rates[np.ix_(np.maximum(kind, 0), np.maximum(kind, 0))][:, :, there]
    alone = problem.usable[:, there]
    kept = np.divide(rates, alone[:, None, :], out=np.zeros_like(rates), where=alone[:, None, :] > 0)
    total = kept + kept.transpose(1, 0, 2)
    possible = ((kept > 0) & (kept.transpose(1, 0, 2) > 0)).all(axis=2) & (kind >= 0)[:, None] & (kind >= 0)
    possible &= problem.gangs[:, None] == problem.gangs
    np.fill_diagonal(possible, False)
    return np.where(possible, total.mean(axis=2), 0.0)


def _equal_shares(problem: AllocationProblem, members: list[tuple[int, ...]]) -> Array:
    """N_j/(m·s) for each of m combinations, at most all of the time, nothing where a member cannot run."""
    first = np.array([member[0] for member in members], dtype=np.int64)
    shares = problem.slots / (max(len(members), 1) * problem.gangs[first][:, None])
    shares = shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True))
    runs = np.array([_runs(problem, member) for member in members]).reshape(shares.shape)
    return np.asarray(np.where(runs, shares, 0.0))


def _runs(problem: AllocationProblem, member: tuple[int, ...]) -> Mask:
    """On which types a combination can run."""
    runs = np.asarray((problem.usable[list(member)] > 0).all(axis=0))
    if len(member) == 2 and problem.pairs is not None:
        kinds = problem.pairs.index
        a, b = (kinds.get(problem.jobs[i].kind, -1) for i in member)
        if min(a, b) < 0:
            return np.zeros_like(runs)
        runs &= (problem.pairs.rates[a, b] > 0) & (problem.pairs.rates[b, a] > 0)
    return runs
