"""Packing by trial, as Gavel models Gandiva: equal shares, and under overload random pairs that are kept if they pay.

Jobs of equal gang are paired at random while more slots are asked for than there are. A pair whose summed throughputs,
each relative to running alone and averaged over the types, come to less than one job's is dropped. All combinations
then get the same static share.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from geminid.policies.gavel.level import finish, unrunnable
from geminid.policies.gavel.maxmin import smallest_share
from geminid.policies.gavel.problem import AllocationProblem, Array, Combination, TimeFractions


def random_packing(problem: AllocationProblem, *, seed: int = 0, held: Iterable[Combination] = ()) -> TimeFractions:
    """Equal shares of single jobs and random pairs; pairs that are ``held`` stay together while they pay."""
    rng = np.random.default_rng(seed)
    rows = {job.id: i for i, job in enumerate(problem.jobs)}
    single = set(np.flatnonzero(problem.runs).tolist())
    worth = _worth(problem)
    pairs: list[tuple[int, int]] = []
    for combination in held:
        known = [rows[job] for job in combination if job in rows]
        if len(known) == 2 and single.issuperset(known) and worth[known[0], known[1]] >= 1.0:
            pairs.append((known[0], known[1]))
            single -= set(known)
    asked = float(problem.gangs[list(single)].sum() + sum(problem.gangs[i] for i, _ in pairs))
    order = rng.permutation(sorted(single)).tolist()
    while asked > problem.slots.sum() and order:
        i = order.pop()
        partners = [k for k in order if worth[i, k] > 0]
        if not partners:
            continue
        k = partners[int(rng.integers(len(partners)))]
        if worth[i, k] >= 1.0:  # tried, and kept only if it pays
            order.remove(k)
            single -= {i, k}
            pairs.append((i, k))
            asked -= float(problem.gangs[i])
    members = [(i,) for i in sorted(single)] + [tuple(sorted(pair)) for pair in pairs]
    fractions = _equal_shares(problem, members)
    combinations = tuple(tuple(problem.jobs[i].id for i in member) for member in members)
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
    last = np.array([member[-1] for member in members], dtype=np.int64)
    shares = problem.slots / (max(len(members), 1) * problem.gangs[first][:, None])
    shares = shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True))
    return np.asarray(np.where((problem.usable[first] > 0) & (problem.usable[last] > 0), shares, 0.0))
