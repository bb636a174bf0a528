"""Throughputs of jobs that have been profiled in part only, from those of reference jobs profiled in full.

What is completed is relative and so comparable between jobs: logarithms of the throughputs alone on each GPU type; and
of pairs, first whether the two fit together at all, then what each keeps of its throughput if they do. Gavel completes
the latter with zeros where they do not fit, by factorisation, and takes over the row of the most similar reference job;
``geminid bench estimation`` compares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from geminid.policies.gavel.groups import Ints
from geminid.policies.gavel.problem import Array
from geminid.solve.completion import complete

#: Standard deviations of what the reference jobs cannot explain: of the throughput kept, and of fitting (0 or 1).
_KEPT_NOISE = 0.1
_FIT_NOISE = 0.5


def estimate_pairs(kept: Array, references: Sequence[int]) -> Array:
    """Fill in what jobs of each kind keep of their throughput beside each other kind, on each type.

    ``kept[a, b, j]`` is the throughput of a beside b over that of a alone on type j: 0 where they do not fit together,
    not a number where nobody has measured it. All pairs among the ``references`` must be known. Measuring a pair tells
    both sides.
    """
    known = np.array(references, dtype=np.int64)
    unknown = np.isnan(kept)
    fits = np.where(unknown, np.nan, np.where(np.nan_to_num(kept) > 0, 1.0, 0.0))
    expected = _fill(fits, known, _FIT_NOISE)
    together = expected + expected.transpose(1, 0, 2) >= 1.0
    speeds = np.where(fits == 0, np.nan, kept)
    among = np.ix_(known, known)  # the references must be full: where two do not fit, what others keep beside it
    by_partner = np.nanmean(
        np.concatenate([speeds[among], np.full((1, *speeds[among].shape[1:]), _mean(speeds))]), axis=0
    )
    speeds[among] = _keep(speeds[among], np.broadcast_to(by_partner, speeds[among].shape))
    filled = np.clip(_fill(speeds, known, _KEPT_NOISE), 0.0, 1.0)
    return np.where(unknown, np.where(together, filled, 0.0), kept)


def _fill(values: Array, known: Ints, noise: float) -> Array:
    """Complete the entries of all kinds that are not references, first beside references, then beside each other."""
    others = np.setdiff1d(np.arange(len(values)), known)
    result = values.copy()
    if not len(others):
        return result
    full = np.array([_features(result, r, known) for r in known.tolist()])
    rows = complete(full, np.array([_features(result, a, known) for a in others.tolist()]), noise)
    types = values.shape[2]
    width = len(known) * types
    for a, row in zip(others.tolist(), rows, strict=True):
        result[a, known] = _keep(result[a, known], row[:width].reshape(len(known), -1))
        result[known, a] = _keep(result[known, a], row[width : 2 * width].reshape(len(known), -1))
        result[a, a] = _keep(result[a, a], row[2 * width :])
    for b in others.tolist():  # one more column, known (by now) for the references
        wider = np.hstack([full, result[known, b], result[b, known]])
        filled = complete(wider, np.hstack([rows, result[others, b], result[b, others]]), noise)[:, -2 * types :]
        for a, row in zip(others.tolist(), filled, strict=True):
            result[a, b] = _keep(result[a, b], row[:types])
            result[b, a] = _keep(result[b, a], row[types:])
    return result


def _mean(values: Array) -> float:
    """The mean of what is known; 1 where nothing is."""
    return float(np.nanmean(values)) if not np.isnan(values).all() else 1.0


def estimate_alone(throughputs: Array, reference: Array) -> Array:
    """Fill in throughputs (jobs × types, not a number where unknown) from full rows of reference jobs, all positive.

    Completed are logarithms of the speed relative to the mean of the types known of the job; a job of which nothing is
    known gets, on every type, the geometric mean of the references.
    """
    result = throughputs.copy()
    logs = np.log(reference)
    for i, row in enumerate(throughputs):
        known = ~np.isnan(row) & (row > 0)
        base = np.log(row[known]).mean() if known.any() else 0.0
        shift = logs[:, known].mean(axis=1, keepdims=True) if known.any() else np.zeros((len(logs), 1))
        relative = np.where(known, np.log(np.where(known, row, 1.0)) - base, np.nan)
        filled = np.exp(complete(logs - shift, relative[None])[0] + base)
        result[i] = np.where(np.isnan(row), filled, row)
    return result


def _features(kept: Array, kind: int, references: Ints) -> Array:
    """Everything about a kind: beside each reference, each reference beside it, and beside itself."""
    return np.concatenate([kept[kind, references].ravel(), kept[references, kind].ravel(), kept[kind, kind]])


def _keep(measured: Array, estimated: Array) -> Array:
    return np.where(np.isnan(measured), estimated, measured)
