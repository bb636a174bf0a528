"""From a cluster's links to predictions: a fit within a rack says what crossing racks would cost."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.fit import fit
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.table import GoodputTable, JobModel
from geminid.goodput.throughput import MODELS, Shape
from geminid.goodput.topology import link_slowdown, link_time_ratio

CLUSTER = Cluster.from_yaml(
    """
gpu_types:
  v100: {memory: 16GiB, interconnect: {node: 100GB/s, rack: 12GB/s, zone: 3GB/s, cluster: 1GB/s}}
  a100: {memory: 40GiB, interconnect: {node: 300GB/s, rack: 24GB/s, zone: 6GB/s, cluster: 1GB/s}}
nodes:
  - {type: v100, count: 4, slots: 4, rack: r1, zone: z1}
  - {type: v100, count: 4, slots: 4, rack: r2, zone: z1}
  - {type: v100, count: 2, slots: 4, rack: r3, zone: z2}
"""
)
NAMES = [node.name for node in CLUSTER.nodes]
TRUTH = np.array([0.1, 0.01, 4.0, 0.05, 0.01, 0.3, 0.02, 1.0, 1e-8, 1e-10, 0.1, 0.5, 1.5])


def test_the_narrowest_link_of_a_placement_counts() -> None:
    assert link_slowdown(CLUSTER, NAMES[:1]) == 1.0
    assert link_slowdown(CLUSTER, NAMES[:4]) == 1.0
    assert link_slowdown(CLUSTER, NAMES[2:6]) == 4.0
    assert link_slowdown(CLUSTER, NAMES) == 12.0


def test_links_of_another_type_are_compared_by_bandwidth() -> None:
    assert link_time_ratio(CLUSTER.gpu_type("v100"), CLUSTER.gpu_type("a100")) == 0.5


def observe(nodes: int, slots: int, batch: int, slowdown: float = 1.0) -> Observation:
    times = MODELS["geminid"].step_times(TRUTH, Shape.of(nodes, slots, batch, None, slowdown))
    return Observation(
        nodes=nodes,
        slots=slots,
        busiest_node_slots=-(-slots // nodes),
        per_slot_batch=batch,
        accumulation_s=float(times.accumulation_s),
        step_s=float(times.step_s),
        link_slowdown=slowdown,
    )


@pytest.mark.parametrize("seen_across", [1.0, 4.0])
def test_a_fit_on_one_kind_of_link_predicts_another(seen_across: float) -> None:
    rows = [
        observe(n, n * k, m, seen_across if n > 1 else 1.0) for n in (1, 3, 4) for k in (1, 2, 4) for m in (4, 16, 64)
    ]
    fitted = fit(Profile.of(rows), "geminid")
    other = 4.0 if seen_across == 1.0 else 1.0
    predicted = fitted.step_times(Shape.of(4, 8, 16, None, other)).step_s
    assert float(predicted) == pytest.approx(observe(4, 8, 16, other).step_s, rel=0.05)


def test_the_table_knows_links() -> None:
    fitted = fit(Profile.of([observe(n, n * k, m) for n in (1, 3, 4) for k in (1, 2) for m in (4, 16)]), "geminid")
    limits = BatchLimits(initial=32, largest=256, smallest_per_slot=4, largest_per_slot=64)
    spread = Configuration(gpu_type="v100", nodes=4, slots=4)
    jobs = {"a": JobModel({"v100": fitted}, {"v100": limits})}
    near = GoodputTable.of([spread], jobs).goodput[0, 0]
    far = GoodputTable.of([spread], jobs, link_slowdowns=[link_slowdown(CLUSTER, NAMES[2:6])]).goodput[0, 0]
    assert far < 0.9 * near
