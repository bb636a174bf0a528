"""Dividing samples over workers and passes: nothing is lost, nothing is taken twice, and the order stays the same."""

from hypothesis import given
from hypothesis import strategies as st

from geminid.train.shares import share_of_step


@given(
    begin=st.integers(0, 10_000),
    total=st.integers(1, 3_000),
    size=st.integers(1, 40),
    per_slot_batch=st.integers(1, 300),
    fewest=st.integers(1, 2),
)
def test_the_passes_of_all_workers_are_the_step(begin, total, size, per_slot_batch, fewest):
    options = {"size": size, "per_slot_batch": per_slot_batch, "fewest": fewest}
    shares = [share_of_step(begin, total, rank=rank, **options) for rank in range(size)]
    spans = [span for share in shares for span in share.passes]
    assert [position for first, last in spans for position in range(first, last)] == list(range(begin, begin + total))
    assert len(spans) == shares[0].micro_gradients
    assert all(0 < last - first <= per_slot_batch for first, last in spans)
    sizes = [sum(last - first for first, last in share.passes) for share in shares]
    if total >= size * fewest or size == 1:
        assert not shares[0].alone
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(fewest, total)
    else:
        assert shares[0].alone
        assert sizes[0] == total
