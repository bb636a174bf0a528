"""Non-dominated sorting of points with two values, both to be maximised, and who survives a generation of NSGA-II.

Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE Trans. Evol. Comput. 6(2), 2002. With
two values one sort is enough: n·log n instead of n² comparisons.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def rank(values: Array) -> tuple[Indices, Array]:
    """The front and the crowding distance of every point (n, 2).

    Front 0 has the points that no other dominates, front 1 those that only these dominate, and so on. A point's
    distance is how far apart its neighbours in its front lie, in parts of the front's extent, and infinite at the ends.
    Points equal to another of their front add nothing to its variety and get zero, all but one.
    """
    order = np.lexsort((-values[:, 1], -values[:, 0]))
    front = _fronts(values[order])
    by_front = np.argsort(front, kind="stable")
    order, front = order[by_front], front[by_front]
    points = values[order]
    same_front = front[1:] == front[:-1]
    starts = np.concatenate([[0], np.flatnonzero(~same_front) + 1])
    extent = np.abs(points[np.append(starts[1:], len(points)) - 1] - points[starts])
    extent[extent == 0] = 1.0
    gaps = np.zeros(points.shape)
    gaps[1:-1] = np.abs(points[2:] - points[:-2])
    distance = (gaps / extent[front]).sum(axis=1)
    distance[1:][same_front & (points[1:] == points[:-1]).all(axis=1)] = 0.0
    distance[:-1][~same_front] = distance[-1] = np.inf
    distance[starts] = np.inf
    fronts, distances = np.empty_like(front), np.empty_like(distance)
    fronts[order], distances[order] = front, distance
    return fronts, distances


def _fronts(points: Array) -> Indices:
    """The front of every point, of points in descending order."""
    result = []
    best: list[float] = []  # minus the best second value so far of every front; ascends
    last_first = last_second = np.nan
    front = 0
    for first, second in points.tolist():
        if first != last_first or second != last_second:  # equal points do not dominate each other and share a front
            front = bisect_right(best, -second)
            best[front : front + 1] = [-second]
            last_first, last_second = first, second
        result.append(front)
    return np.array(result, dtype=np.intp)


def survivors(values: Array, count: int) -> tuple[Indices, Array]:
    """The ``count`` points that survive, whole fronts first, then the least crowded; and their distances."""
    front, distance = rank(values)
    chosen = np.lexsort((-distance, front))[:count]
    return chosen, distance[chosen]


def tournament(values: Array, distance: Array, pairs: Indices) -> Indices:
    """The winner of each pair (n, 2): the one that dominates the other, else the less crowded, else the first."""
    one, other = pairs.T
    difference = values[one] - values[other]
    wins = (difference >= 0).all(axis=1) & (difference > 0).any(axis=1)
    loses = (difference <= 0).all(axis=1) & (difference < 0).any(axis=1)
    winners: Indices = np.where(loses | (~wins & (distance[other] > distance[one])), other, one)
    return winners
