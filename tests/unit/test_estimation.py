"""Completion of partly known rows, and estimates of throughputs by it."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.policies.gavel.estimation import estimate_alone, estimate_pairs
from geminid.solve.completion import complete


def test_rows_of_low_rank_are_recovered_from_few_entries() -> None:
    rng = np.random.default_rng(0)
    right = rng.normal(size=(2, 30))
    full = rng.normal(size=(20, 2)) @ right + 0.5
    truth = rng.normal(size=(3, 2)) @ right + 0.5
    partial = np.where(rng.random(truth.shape) < 0.3, truth, np.nan)
    np.testing.assert_allclose(complete(full, partial, noise=1e-4), truth, atol=1e-2)


def test_what_is_known_stays_and_without_anything_known_it_is_the_mean() -> None:
    full = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 5.0]])
    filled = complete(full, np.array([[np.nan] * 3, [np.nan, 7.0, np.nan]]))
    np.testing.assert_allclose(filled[0], [2.0, 2.0, 4.0])
    assert filled[1, 1] == 7.0


def _kept(appetite: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Jobs keep less the more the partner takes, and do not fit together beyond a total of memory."""
    kept = np.clip(1.2 - 0.4 * appetite[:, None] - 0.6 * appetite[None, :], 0.05, 1.0)
    return np.where(memory[:, None] + memory[None, :] > 1.0, 0.0, kept)[:, :, None]


def test_pairs_of_unseen_jobs_are_estimated_from_a_few_measurements() -> None:
    rng = np.random.default_rng(1)
    truth = _kept(rng.uniform(0.2, 1.0, 24), rng.uniform(0.1, 0.7, 24))
    partial = truth.copy()
    unseen, references = [22, 23], list(range(22))
    for job in unseen:
        hidden = np.setdiff1d(np.arange(24), rng.choice(22, 6, replace=False))
        partial[job, hidden] = np.nan
        partial[hidden, job] = np.nan
    filled = estimate_pairs(partial, references)
    assert not np.isnan(filled).any()
    known = ~np.isnan(partial)
    np.testing.assert_array_equal(filled[known], partial[known])
    hidden_entries = ~known
    error = np.abs(filled - truth)[hidden_entries].mean()
    naive = np.abs(truth[:22, :22].mean() - truth)[hidden_entries].mean()
    assert error < 0.5 * naive
    # A pair either fits for both or for neither.
    np.testing.assert_array_equal(filled > 0, filled.transpose(1, 0, 2) > 0)


def test_speeds_on_other_types_follow_jobs_that_gain_alike() -> None:
    gain = np.linspace(0.2, 1.0, 12)
    reference = np.exp(np.outer(gain, [0.0, 1.0, 2.0]) + np.arange(12)[:, None] % 3)
    job = 5.0 * np.exp(0.55 * np.array([0.0, 1.0, 2.0]))
    filled = estimate_alone(np.array([[job[0], job[1], np.nan]]), reference)[0]
    assert filled[2] == pytest.approx(job[2], rel=0.1)
    np.testing.assert_allclose(filled[:2], job[:2])
