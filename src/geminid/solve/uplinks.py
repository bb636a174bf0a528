"""Max-min fair shares of links that several jobs use at the same time.

Nobody can have more without somebody who has no more than that having less: progressive filling raises everybody's
share together, and fixes a job's when it has all that it asks for or when one of its links is full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A link is full, and a job served, up to this part of what it carries or asks for.
ROUNDING = 1e-12


def max_min_shares(demand: Array, uses: NDArray[np.bool_], capacity: Array) -> Array:
    """What each job gets of what it asks for (bytes per second).

    ``uses`` is (jobs, links), where a job needs its whole share on each link that it uses; a link's ``capacity`` may be
    infinite.
    """
    share = np.zeros(len(demand))
    left = capacity.astype(float)
    growing = demand > 0.0
    while growing.any():
        users = uses[growing].sum(axis=0)
        used = users > 0
        room = np.min(left[used] / users[used], initial=np.inf)
        step = min(float(room), float(np.min((demand - share)[growing])))
        share[growing] += step
        left[used] -= step * users[used]
        full = np.isfinite(capacity) & (left <= ROUNDING * capacity)
        growing &= (demand - share > ROUNDING * demand) & ~uses[:, full].any(axis=1)
    return share
