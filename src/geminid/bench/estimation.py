"""How well throughputs of unseen jobs are estimated from a few measurements, on entries of Gavel's tables held out.

Pairs: each single-GPU job type in turn is unseen, a random part of its pairs measured, all other job types being
references; the error is of the throughput beside a partner relative to running alone. Types: each job type in turn is
known on some GPU types only. What wrong estimates do to a policy that shares slots is simulated on Gavel's traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from geminid.bench.gavel import SETS, TABLE
from geminid.bench.policies import GPU_TYPES
from geminid.cluster import Cluster
from geminid.policies.gavel.estimation import estimate_alone, estimate_pairs
from geminid.policies.gavel.problem import Array
from geminid.sim.profiles.gavel import JobType, ThroughputTable, load_throughputs
from geminid.sim.run import Experiment, simulate
from geminid.sim.workloads import load_workload

MEASURED = (0.0, 0.05, 0.1, 0.2, 0.5)

#: … in a quick run.
QUICK_MEASURED = (0.2,)

#: What is estimated, and by whom, in rows.
PAIRS = "relative throughput beside a partner"
OURS = "geminid"
GAVEL = "factorise, nearest reference (Gavel)"

#: A mean is never 0: who expects this little says that the two do not fit together.
LEAST_KEPT = {"mean of the partner": 0.15, "mean of all": 0.15}

#: Gavel's factorisation.
_RANK = 10
_RIDGE = 1e-2
_SWEEPS = 20


@dataclass(frozen=True, slots=True)
class EstimationRow:
    """Error of one method: mean absolute, and how often it is wrong about whether two jobs fit together at all."""

    estimated: str
    unseen: str
    measured: str
    method: str
    mean_error: float
    wrong_fit: float | None
    entries: int


@dataclass(frozen=True, slots=True)
class ConsequenceRow:
    """A policy on a trace, some part of the pairs measured beforehand (None: it does not share slots)."""

    trace: str
    policy: str
    profiled: float | None
    avg_jct_s: float
    makespan_s: float
    to_all_known: float


def consequences(
    peers: Path, *, seed: int = 0, progress: Callable[[str], None] = lambda _: None
) -> list[ConsequenceRow]:
    """Mean JCTs of max-min fairness with pairs, of which all, some or none have been measured beforehand."""
    rows = []
    for trace in ("A", "B"):
        path, cluster = SETS[trace]
        experiment = Experiment(
            workload=load_workload(peers / path), cluster=Cluster.parse(cluster), profiles=peers / TABLE
        )
        found = {}
        for part in (1.0, 0.5, 0.2, 0.0, None):
            name = "max_min_fairness_perf" if part is None else "max_min_fairness_packed"
            options = "" if part is None else f":profiled={part:g},seed={seed}"
            progress(f"{name}{options} on {trace}")
            found[part] = name, simulate(name + options, experiment)
        known_s = found[1.0][1]["avg_jct_s"]
        rows += [
            ConsequenceRow(trace, name, part, r["avg_jct_s"], r["makespan_s"], r["avg_jct_s"] / known_s - 1.0)
            for part, (name, r) in found.items()
        ]
    return rows


def run(peers: Path, *, seed: int = 0, measured: Iterable[float] = MEASURED) -> list[EstimationRow]:
    """Errors of all methods on pairs and on GPU types."""
    table = load_throughputs(peers / TABLE)
    kinds = [kind for kind in table.by_type[GPU_TYPES[0]].alone if kind[1] == 1]
    alone = np.array([[table.alone(kind, gpu_type) for gpu_type in GPU_TYPES] for kind in kinds])
    kept = _kept(table, kinds, alone)
    rows = []
    families = [model.split(" (")[0] for model, _ in kinds]
    for unseen in ("job type", "model"):
        for part in measured:
            rows += _pairs(kept, families, unseen, part, np.random.default_rng(seed))
    return rows + _types(alone)


def _kept(table: ThroughputTable, kinds: list[JobType], alone: Array) -> Array:
    """What each kind keeps of its throughput beside each other."""
    index = {kind: i for i, kind in enumerate(kinds)}
    kept = np.zeros((len(kinds), len(kinds), len(GPU_TYPES)))
    for j, gpu_type in enumerate(GPU_TYPES):
        for (a, b), (mine, theirs) in table.by_type[gpu_type].pairs.items():
            if a in index and b in index and min(mine, theirs) > 0:
                kept[index[a], index[b], j] = mine / alone[index[a], j]
                kept[index[b], index[a], j] = theirs / alone[index[b], j]
    return kept


#: From what is known (the unseen job last) to what is expected.
Method = Callable[[Array], Array]


def _pairs(kept: Array, families: list[str], unseen: str, part: float, rng: np.random.Generator) -> list[EstimationRow]:
    """Hide pairs of every kind in turn, and of the others of its model with it if models are unseen."""
    errors: dict[str, list[Array]] = {}
    wrong: dict[str, list[Array]] = {}
    for kind, family in enumerate(families):
        others = [r for r in range(len(kept)) if (r != kind if unseen == "job type" else families[r] != family)]
        chosen = [*others, kind]
        truth = kept[np.ix_(chosen, chosen)]
        partial = truth.copy()
        hidden = rng.random((len(others), truth.shape[2])) >= part
        partial[-1, :-1][hidden] = np.nan
        partial[:-1, -1][hidden] = np.nan
        partial[-1, -1] = np.nan
        for name, method in METHODS.items():
            guess = method(partial)
            mine = np.concatenate([guess[-1, :-1][hidden], guess[:-1, -1][hidden]])
            true = np.concatenate([truth[-1, :-1][hidden], truth[:-1, -1][hidden]])
            errors.setdefault(name, []).append(np.abs(mine - true))
            wrong.setdefault(name, []).append((mine > LEAST_KEPT.get(name, 0.0)) != (true > 0))
    return [
        EstimationRow(
            PAIRS,
            unseen,
            f"{100 * part:.0f} % of the pairs",
            name,
            float(np.concatenate(errors[name]).mean()),
            float(np.concatenate(wrong[name]).mean()),
            int(sum(map(len, errors[name]))),
        )
        for name in METHODS
    ]


def _ours(partial: Array) -> Array:
    return estimate_pairs(partial, range(len(partial) - 1))


def _gavel(partial: Array) -> Array:
    """Factorise, then take over the row of the reference job that is most similar by cosine."""
    references = len(partial) - 1
    rows = np.array(
        [
            np.concatenate([partial[r, :references].ravel(), partial[:references, r].ravel()])
            for r in range(references + 1)
        ]
    )
    factored = _factorise(rows)[-1]
    lengths = np.linalg.norm(rows[:-1], axis=1) * np.linalg.norm(factored)
    nearest = int(np.argmax(rows[:-1] @ factored / np.maximum(lengths, 1e-12)))
    result = partial.copy()
    result[-1, :-1] = np.where(np.isnan(partial[-1, :-1]), partial[nearest, :-1], partial[-1, :-1])
    result[:-1, -1] = np.where(np.isnan(partial[:-1, -1]), partial[:-1, nearest], partial[:-1, -1])
    return result


def _factorise(rows: Array) -> Array:
    """Probabilistic matrix factorisation by alternating ridge regressions over the known entries."""
    known = (~np.isnan(rows)).astype(float)
    values = np.where(known > 0, rows, 0.0)
    rng = np.random.default_rng(0)
    left, right = rng.normal(0.0, 0.1, (rows.shape[0], _RANK)), rng.normal(0.0, 0.1, (rows.shape[1], _RANK))
    for _ in range(_SWEEPS):
        for mine, theirs, value, weight in ((left, right, values, known), (right, left, values.T, known.T)):
            gram = np.einsum("ij,jk,jl->ikl", weight, theirs, theirs) + _RIDGE * np.eye(_RANK)
            mine[:] = np.linalg.solve(gram, (value @ theirs)[..., None])[..., 0]
    return np.asarray(left @ right.T)


def _partner_mean(partial: Array) -> Array:
    """What references keep beside the same partner, on average, and what the partner keeps beside references."""
    result = partial.copy()
    result[-1, :-1] = np.where(np.isnan(partial[-1, :-1]), partial[:-1, :-1].mean(axis=0), partial[-1, :-1])
    result[:-1, -1] = np.where(np.isnan(partial[:-1, -1]), partial[:-1, :-1].mean(axis=1), partial[:-1, -1])
    return result


def _overall_mean(partial: Array) -> Array:
    return np.where(np.isnan(partial), np.nanmean(partial), partial)


METHODS: dict[str, Method] = {
    OURS: _ours,
    GAVEL: _gavel,
    "mean of the partner": _partner_mean,
    "mean of all": _overall_mean,
}


def _types(alone: Array) -> list[EstimationRow]:
    """Hide one or two GPU types of every kind in turn."""
    usable = np.flatnonzero((alone > 0).all(axis=1))
    rows = []
    for count in (1, 2):
        errors: dict[str, list[float]] = {"geminid": [], "mean ratio": []}
        for kind in usable.tolist():
            reference = alone[usable[usable != kind]]
            for seen in combinations(range(alone.shape[1]), count):
                partial = np.full(alone.shape[1], np.nan)
                partial[list(seen)] = alone[kind, list(seen)]
                hidden = np.isnan(partial)
                ours = estimate_alone(partial[None], reference)[0]
                ratio = np.exp(np.log(reference).mean(axis=0))
                naive = ratio * np.exp(np.log(partial[~hidden]).mean() - np.log(ratio[~hidden]).mean())
                for name, guess in (("geminid", ours), ("mean ratio", naive)):
                    errors[name] += np.abs(guess / alone[kind] - 1.0)[hidden].tolist()
        rows += [
            EstimationRow(
                "throughput alone on other GPU types",
                "job type",
                f"{count} of {alone.shape[1]} GPU types",
                name,
                float(np.mean(values)),
                None,
                len(values),
            )
            for name, values in errors.items()
        ]
    return rows
