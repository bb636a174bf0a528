"""Shares of uplinks are max-min fair, whatever the jobs and links."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from geminid.solve import uplinks

Array = NDArray[np.float64]
Problem = tuple[Array, NDArray[np.bool_], Array]


def max_min_shares(demand: Array, uses: NDArray[np.bool_], capacity: Array) -> Array:
    links = [np.flatnonzero(row).tolist() for row in uses]
    return np.array(uplinks.max_min_shares(demand.tolist(), links, capacity.tolist()))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, links = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    amount = st.floats(0.01, 100.0)
    demand = np.array(draw(st.lists(st.one_of(amount, st.just(0.0)), min_size=jobs, max_size=jobs)))
    uses = np.array([draw(st.lists(st.booleans(), min_size=links, max_size=links)) for _ in range(jobs)])
    capacity = np.array(draw(st.lists(st.one_of(amount, st.just(np.inf)), min_size=links, max_size=links)))
    return demand, uses, capacity


@given(problems())
def test_no_link_carries_more_than_it_can_and_nobody_gets_more_than_asked(problem: Problem) -> None:
    demand, uses, capacity = problem
    share = max_min_shares(demand, uses, capacity)
    assert (share >= 0).all()
    assert (share <= demand * (1 + 1e-9)).all()
    assert (uses.T.astype(float) @ share <= capacity * (1 + 1e-9)).all()


@given(problems())
def test_whoever_gets_less_than_asked_is_held_back_by_a_full_link_on_which_nobody_has_more(problem: Problem) -> None:
    demand, uses, capacity = problem
    share = max_min_shares(demand, uses, capacity)
    full = uses.T.astype(float) @ share >= capacity * (1 - 1e-9)
    for job in np.flatnonzero(share < demand * (1 - 1e-9)):
        most = [share[uses[:, link]].max() for link in np.flatnonzero(uses[job] & full)]
        assert any(share[job] >= other * (1 - 1e-9) for other in most)


@given(problems(), st.floats(1.0, 10.0))
def test_the_worst_off_of_those_held_back_lose_nothing_when_links_widen(problem: Problem, factor: float) -> None:
    demand, uses, capacity = problem
    before, after = max_min_shares(demand, uses, capacity), max_min_shares(demand, uses, factor * capacity)
    waiting = before < demand * (1 - 1e-9)
    if waiting.any():
        assert after[waiting].min() >= before[waiting].min() * (1 - 1e-9)


@given(problems())
def test_the_order_of_jobs_makes_no_difference(problem: Problem) -> None:
    demand, uses, capacity = problem
    share = max_min_shares(demand, uses, capacity)
    np.testing.assert_allclose(max_min_shares(demand[::-1], uses[::-1], capacity)[::-1], share, rtol=1e-9, atol=1e-12)
