"""What checkpoints cost: the benchmark measures something."""

from geminid.bench.saving import Extent, run


def test_saving_is_measured_beside_training():
    row = run(device="cpu", extent=Extent(checkpoints=1, block_steps=20, warm_up_steps=10))
    assert row.state_bytes > 3 * 4 * 10_000_000
    assert 0 < row.pause_s < row.interval_s
    assert row.interval_s >= 60.0
    assert row.step_s > 0
    assert row.write_s > 0
