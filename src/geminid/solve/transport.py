"""Assigning many items to few places that hold several each, at the least total cost, exactly.

One item after the other takes the cheapest chain of moves to a place with room (successive shortest paths). Chains run
over places, not items: moving some item from place a to b costs at least the smallest difference among the items in a,
so a step costs a few operations on a small matrix however many items there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def assign(cost: Array, capacity: Ints) -> Ints:
    """The place of every item in an assignment of least total cost; −1 for items that there is no room for.

    ``cost`` is items × places. Items without room are the last ones.
    """
    items, places = cost.shape
    place = np.full(items, -1, dtype=np.int64)
    room = capacity.astype(np.int64).copy()
    moves = np.full((places, places), np.inf)
    mover = np.zeros((places, places), dtype=np.int64)
    inside: list[list[int]] = [[] for _ in range(places)]

    def refresh(a: int) -> None:
        members = np.array(inside[a], dtype=np.int64)
        difference = cost[members] - cost[members, a][:, None]
        which = difference.argmin(axis=0)
        mover[a] = members[which]
        moves[a] = difference[which, np.arange(places)]
        moves[a, a] = np.inf

    favourite = cost.argmin(axis=1) if places else np.zeros(items, dtype=np.int64)
    for item in range(min(items, int(room.sum()))):
        target = int(favourite[item])
        path: list[int] = []
        if room[target] <= 0:
            distance = cost[item].copy()
            before = np.full(places, -1, dtype=np.int64)
            for _ in range(places):
                through = distance[:, None] + moves
                best = through.argmin(axis=0)
                shorter = through[best, np.arange(places)] < distance - 1e-12 * np.abs(distance)
                if not shorter.any():
                    break
                before[shorter] = best[shorter]
                distance = np.where(shorter, through[best, np.arange(places)], distance)
            target = int(np.where(room > 0, distance, np.inf).argmin())
            while before[target] >= 0 and len(path) < places:
                path.append(target)
                target = int(before[target])
            path.reverse()
        moving, here = item, target
        changed = {here}
        for there in path:
            leaving = int(mover[here, there])
            inside[here].remove(leaving)
            inside[here].append(moving)
            place[moving] = here
            moving, here = leaving, there
            changed.add(here)
        inside[here].append(moving)
        place[moving] = here
        room[here] -= 1
        for a in changed:
            if room[a] <= 0:
                refresh(a)
    return place
