from __future__ import annotations

import numpy as np
import pytest

from geminid.goodput.fit import Corrections, ThroughputFit
from geminid.goodput.throughput import Shape
from geminid.goodput.transfer import transfer

KNOWN = ThroughputFit("pollux", (0.2, 0.02, 0.4, 0.04, 0.1, 0.01, 1.5), "fitted", 0.0, 20)
TWICE_AS_FAST = ThroughputFit("pollux", (0.1, 0.01, 1e-8, 1e-8, 1e-8, 1e-8, 1.0), "fitted", 0.0, 3)
SHAPES = Shape.of([1, 1, 2, 4], [1, 4, 8, 16], [16, 16, 16, 16])


def test_by_sias_rule_a_type_twice_as_fast_on_one_slot_takes_half_the_time_everywhere() -> None:
    carried = transfer(KNOWN, TWICE_AS_FAST, typical_batch=16, method="scaled")
    assert carried.step_times(SHAPES).step_s == pytest.approx(KNOWN.step_times(SHAPES).step_s / 2)
    assert "another GPU type" in carried.reason


def test_with_links_as_much_faster_as_the_gpus_everything_takes_half_the_time() -> None:
    carried = transfer(KNOWN, TWICE_AS_FAST, typical_batch=16, link_time_ratio=0.5)
    assert carried.step_times(SHAPES).step_s == pytest.approx(KNOWN.step_times(SHAPES).step_s / 2)


def test_unknown_links_are_believed_to_be_better_than_the_known_ones_but_not_free() -> None:
    carried = transfer(KNOWN, TWICE_AS_FAST, typical_batch=16).step_times(SHAPES).step_s
    scaled = transfer(KNOWN, TWICE_AS_FAST, typical_batch=16, method="scaled").step_times(SHAPES).step_s
    alone = TWICE_AS_FAST.step_times(SHAPES).step_s
    assert (carried[1:] < scaled[1:]).all()
    assert (carried[1:] > alone[1:]).all()


def test_known_links_are_not_made_faster_by_a_faster_gpu() -> None:
    carried = transfer(KNOWN, TWICE_AS_FAST, typical_batch=16, link_time_ratio=1.0)
    assert carried["alpha_n"] == KNOWN["alpha_n"]
    assert carried["alpha_c"] == TWICE_AS_FAST["alpha_c"]


def test_the_one_slot_profile_is_reproduced_exactly() -> None:
    ours = (0.1, 0.002, 4.0, 0.1, 0.02, 0.3, 0.05, 1.3, 0.01, 0.001, 0.2, 0.5, 1.5)
    known = ThroughputFit("geminid", ours, "fitted", 0.0, 40)
    steep = (0.05, 0.01, 2.0, *ours[3:])
    one_slot = ThroughputFit("geminid", steep, "fitted", 0.0, 5, Corrections((32.0,), (0.1,)))
    alone = Shape.of(1, 1, np.array([1, 8, 32, 256]))
    carried = transfer(known, one_slot, typical_batch=32)
    assert carried.step_times(alone).step_s == pytest.approx(one_slot.step_times(alone).step_s)


def test_fits_of_different_models_are_not_mixed() -> None:
    other = ThroughputFit("geminid", (0.1,) * 13, "fitted", 0.0, 5)
    with pytest.raises(ValueError, match="'pollux' with one of model 'geminid'"):
        transfer(KNOWN, other, typical_batch=16)
