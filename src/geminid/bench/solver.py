"""How long a decision takes as the cluster grows: the price solver and placement, beside Sia's integer program."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from geminid.bench.timing import median_of, timed
from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.policies.sia import choose
from geminid.solve.choices import Choices
from geminid.solve.placement import place
from geminid.solve.prices import solve

#: Slots, jobs and GPU types of the growth table.
SIZES = (
    (64, 50, 3),
    (256, 100, 4),
    (512, 200, 4),
    (2_048, 800, 8),
    (8_192, 4_000, 8),
    (32_768, 16_000, 8),
    (100_000, 50_000, 8),
)

#: … of a quick run.
QUICK_SIZES = SIZES[:3]

#: A certified gap is at most this, and the largest decision takes less than this many seconds of a core.
GOAL_GAP = 1e-3
GOAL_S = 0.5

#: Per GPU type: parts of a node of eight slots, then whole nodes.
CONFIGURATION_SLOTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SLOTS_PER_NODE = 8

#: CPU-seconds of one decision of Pollux's published genetic algorithm (population 100, 100 generations), on one core of
#: another machine, by slots and jobs; the last is extrapolated from ten generations.
PUBLISHED_POLLUX_S = {(64, 50): 3.0, (512, 200): 29.0, (2_048, 800): 860.0}

REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class SolverRow:
    """One size: medians of cold and warm solves and of placing the decision; ``ilp_s`` is None beyond the limit.

    ``cpu_seconds`` are those of a cold solve on all cores together: on a busy machine it waits longer than it works.
    """

    slots: int
    jobs: int
    types: int
    configurations: int
    seconds: float
    cpu_seconds: float
    warm_seconds: float
    gap: float
    memory_mb: float
    placement_s: float
    moved_by_placement: int
    ilp_s: float | None
    ilp_value_ratio: float | None
    published_pollux_s: float | None


def problem(
    slots: int, jobs: int, types: int, *, kinds: int | None = None, seed: int = 0
) -> tuple[Choices, list[Configuration]]:
    """Jobs as a policy sees them: speed-ups k^a with a in 0.4 to 0.95, differing by type, most of them limited in size.

    Utilities are the square roots of speed-ups, as in the geminid policy, weighted by rank^−½: a few jobs count far
    more than the others, as with priorities. All jobs differ, unless their number of ``kinds`` is given.
    """
    rng = np.random.default_rng(seed)
    sizes = np.array(CONFIGURATION_SLOTS, dtype=float)
    size, resource = np.tile(sizes, types), np.repeat(np.arange(types), len(sizes))
    speed = rng.lognormal(0.0, 0.5, (jobs, types))
    speedup = (speed / speed.min(axis=1, keepdims=True))[:, resource] * size ** rng.uniform(0.4, 0.95, (jobs, 1))
    weight = ((rng.permutation(jobs) + 1.0) / jobs) ** -0.5
    capacity = np.full(types, slots // types // SLOTS_PER_NODE * SLOTS_PER_NODE, dtype=float)
    possible = (size <= rng.choice([1, 4, 16, 64, 128], (jobs, 1))) & (size <= capacity[resource])
    utility = np.where(possible, weight[:, None] * np.sqrt(speedup), -np.inf)
    if kinds is not None:
        utility = utility[rng.integers(0, min(kinds, jobs), jobs)]
    configurations = [
        Configuration(gpu_type=f"type-{t}", nodes=max(1, int(k) // SLOTS_PER_NODE), slots=int(k))
        for t, k in zip(resource.tolist(), size.tolist(), strict=True)
    ]
    return Choices(utility, size, resource, capacity), configurations


def run(
    *,
    sizes: Sequence[tuple[int, int, int]] = SIZES,
    kinds: int | None = None,
    seed: int = 0,
    ilp_limit_s: float = 20.0,
    progress: Callable[[str], None],
) -> list[SolverRow]:
    """Time every size, with all jobs different or of a few kinds.

    The integer program runs as long as the next smaller size kept within its limit.
    """
    rows = []
    ilp_finishes = True
    for slots, jobs, types in sizes:
        progress(f"{slots:,} slots, {jobs:,} jobs")
        choices, configurations = problem(slots, jobs, types, kinds=kinds, seed=seed)
        cold_s, cpu_s, found = median_of(partial(solve, choices), REPETITIONS)
        warm_s = median_of(partial(solve, choices, start=found.prices), REPETITIONS).wall_s
        tracemalloc.start()
        solve(choices)
        memory_mb = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        place_s, moved = _placement(choices, configurations, found.choice, seed)
        ilp_s = ratio = None
        if ilp_finishes:
            progress(f"{slots:,} slots, {jobs:,} jobs: Sia's integer program")
            capacity = {f"type-{t}": int(slots) for t, slots in enumerate(choices.capacity)}
            ilp_s, _, chosen = timed(partial(choose, choices.utility, configurations, capacity, seconds=ilp_limit_s))
            value = sum(choices.utility[j, c] for j, c in enumerate(chosen) if c is not None)
            ilp_finishes = ilp_s < ilp_limit_s
            ratio = found.value / value if value and ilp_finishes else None
        rows.append(
            SolverRow(
                slots,
                jobs,
                types,
                len(configurations),
                cold_s,
                cpu_s,
                warm_s,
                found.gap,
                memory_mb,
                place_s,
                moved,
                ilp_s if ilp_finishes else None,
                ratio,
                PUBLISHED_POLLUX_S.get((slots, jobs)),
            )
        )
    return rows


def _placement(
    choices: Choices, configurations: list[Configuration], choice: NDArray[np.intp], seed: int
) -> tuple[float, int]:
    """Seconds to place the decision after a tenth of the jobs changed places with others of their kind.

    Also how many of the jobs that could have stayed were moved.
    """
    cluster = Cluster.parse(
        ",".join(f"type-{t}:{int(n) // SLOTS_PER_NODE}x{SLOTS_PER_NODE}" for t, n in enumerate(choices.capacity))
    )
    wanted = {str(job): configurations[column] for job, column in enumerate(choice.tolist()) if column >= 0}
    usable = cluster.node_slots.tolist()
    before = place(cluster, usable, wanted, {}).allocations
    rng = np.random.default_rng(seed)
    changed = rng.choice(list(wanted), len(wanted) // 10, replace=False).tolist()
    configuration_of = dict(zip(changed, (wanted[job_id] for job_id in rng.permutation(changed)), strict=True))
    after = {**wanted, **configuration_of}
    seconds, _, placed = median_of(lambda: place(cluster, usable, after, before), REPETITIONS)
    same = [job_id for job_id in wanted if after[job_id] == wanted[job_id]]
    return seconds, sum(placed.allocations.get(job_id) != before[job_id] for job_id in same)
