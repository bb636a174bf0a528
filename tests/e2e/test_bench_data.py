"""The benchmark of the data path."""

from geminid.bench.data import run


def test_loading_is_measured_with_and_without_the_library():
    rows = run(samples=256, rounds=2)
    assert len({row.dataset for row in rows}) == len(rows) == 6
    assert all(row.plain_s > 0 and row.ratio == row.library_s / row.plain_s for row in rows)
