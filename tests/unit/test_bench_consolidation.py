"""The benchmark of waiting for close slots: one row for each way of placing, and Dally compared with each."""

from __future__ import annotations

import pytest

from geminid.bench.consolidation import OTHERS, cluster, run, workload
from geminid.policies.dally import Dally
from geminid.policies.registry import make_policy


def test_dally_is_compared_with_every_other_way_on_every_network() -> None:
    rows = run(jobs=20, hours=0.5, networks=(None, 32.0), progress=lambda _: None)
    assert [(row.oversubscription, row.placing) for row in rows] == [
        (network, placing) for network in (None, 32.0) for placing in ("dally", *OTHERS)
    ]
    dally = rows[4]
    assert (dally.dally_jct, dally.dally_makespan, dally.dally_communication) == (0.0, 0.0, 0.0)
    for row in rows[5:]:
        assert row.dally_jct == pytest.approx(dally.avg_jct_s / row.avg_jct_s - 1.0)
        assert row.dally_communication == pytest.approx(dally.communication_h / row.communication_h - 1.0)


def test_the_other_ways_are_dally_with_its_parts_switched_off() -> None:
    built = [make_policy(policy) for name, policy in OTHERS.items() if name != "tiresias"]
    assert all(isinstance(policy, Dally) and not policy.preempt and not policy.auto for policy in built)


def test_the_network_is_congested_as_said() -> None:
    assert cluster(32.0).links.capacity.tolist() == [4 * 3.125e9 / 32.0] * 8 + [float("inf")]
    assert not cluster(None).links.limited
    assert max(job.requested_slots for job in workload(50, 1.0, 0).jobs) == 16
