"""Max-min fair shares of links that several jobs use at the same time.

Nobody can have more without somebody who has no more than that having less. A link that is divided evenly among its
users gives each of them its fair share. The smallest fair share of all links is the next level: jobs that ask for no
more get what they ask for, which raises the fair shares of others; where nobody does, all users of that link get it.
A few jobs on a few links are the usual case, and plain numbers are faster than arrays there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def max_min_shares(
    demand: Sequence[float], links: Sequence[Sequence[int]], capacity: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """What each job gets of what it asks for (bytes per second).

    ``links`` are those of each job, which needs its whole share on all of them; a link's ``capacity`` may be infinite.
    """
    share = list(demand)
    users: dict[int, set[int]] = {}
    for job, needed in enumerate(demand):
        if needed > 0.0:
            for link in links[job]:
                users.setdefault(link, set()).add(job)
    left = {link: float(capacity[link]) for link in users}

    def settle(job: int, got: float) -> None:
        share[job] = got
        for link in links[job]:
            users[link].discard(job)
            left[link] = max(left[link] - got, 0.0)
            if not users[link]:
                del users[link], left[link]

    by_demand = sorted({job for some in users.values() for job in some}, key=demand.__getitem__, reverse=True)
    settled: set[int] = set()
    while users:
        tightest = min(users, key=lambda link: left[link] / len(users[link]))
        level = left[tightest] / len(users[tightest])
        if level == math.inf:
            break
        content = False
        while by_demand and (by_demand[-1] in settled or demand[by_demand[-1]] <= level):
            job = by_demand.pop()
            if job not in settled:
                settle(job, demand[job])
                content = True
        if not content:
            for job in sorted(users[tightest]):
                settled.add(job)
                settle(job, level)
    return share
