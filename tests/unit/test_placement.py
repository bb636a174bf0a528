"""Placement: nothing fits by luck, and what runs is left alone where it can be."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.solve.placement import Allocation, Placed, place


def conf(slots: int, nodes: int = 1) -> Configuration:
    return Configuration(gpu_type="v100", nodes=nodes, slots=slots)


def check(cluster: Cluster, wanted: dict[str, Configuration], placed: Placed) -> None:
    """No slot twice, and everybody has the slots that were asked for."""
    free = cluster.node_slots.copy()
    for allocation in placed.allocations.values():
        for node, slots in allocation:
            free[node] -= slots
    assert free.min() >= 0
    for job_id, allocation in placed.allocations.items():
        assert sum(slots for _, slots in allocation) == wanted[job_id].slots
        if job_id not in placed.scattered:
            assert len(allocation) == wanted[job_id].nodes
    assert set(placed.allocations) | set(placed.unplaced) == set(wanted)


def test_running_jobs_stay_and_new_ones_take_the_fullest_node() -> None:
    cluster = Cluster.parse("v100:3x4")
    wanted = {"a": conf(2), "b": conf(2), "c": conf(4)}
    placed = place(cluster, [4, 4, 4], wanted, {"a": ((1, 2),)})
    assert placed.allocations == {"a": ((1, 2),), "b": ((1, 2),), "c": ((0, 4),)}


def test_a_changed_job_grows_where_it_is_if_that_is_as_good() -> None:
    cluster = Cluster.parse("v100:3x4")
    placed = place(cluster, [4, 4, 4], {"a": conf(4)}, {"a": ((2, 2),)})
    assert placed.allocations == {"a": ((2, 4),)}


def test_only_as_many_jobs_move_as_must() -> None:
    """Three nodes with one slot taken on each: one job moves for the newcomer, not all three."""
    cluster = Cluster.parse("v100:3x4")
    current: dict[str, Allocation] = {"a": ((0, 1),), "b": ((1, 1),), "c": ((2, 1),)}
    wanted = {**dict.fromkeys("abc", conf(1)), "new": conf(4)}
    placed = place(cluster, [4, 4, 4], wanted, current)
    check(cluster, wanted, placed)
    assert not placed.unplaced
    assert sum(placed.allocations[j] != current[j] for j in current) == 1


def test_several_nodes_are_cleared_for_a_job_that_needs_them_whole() -> None:
    cluster = Cluster.parse("v100:4x4")
    current: dict[str, Allocation] = {f"j{n}": ((n, 1),) for n in range(4)}
    wanted = {**dict.fromkeys(current, conf(1)), "new": conf(12, 3)}
    placed = place(cluster, [4] * 4, wanted, current)
    check(cluster, wanted, placed)
    assert not placed.unplaced
    assert not placed.scattered


def test_nodes_of_a_job_are_in_one_rack_then_one_zone() -> None:
    cluster = Cluster.from_yaml(
        """
nodes:
  - {type: v100, count: 4, slots: 4, nodes_per_rack: 2, rack: r, zone: z0}
  - {type: v100, count: 2, slots: 4, rack: s, zone: z1}
"""
    )
    wanted = {"a": conf(8, 2), "b": conf(8, 2), "c": conf(8, 2)}
    placed = place(cluster, cluster.node_slots.tolist(), wanted, {})
    check(cluster, wanted, placed)
    for allocation in placed.allocations.values():
        assert len({cluster.nodes[node].rack for node, _ in allocation}) == 1
    placed = place(cluster, [4, 0, 4, 4, 4, 0], {"a": conf(12, 3)}, {})
    assert {cluster.nodes[node].zone for node, _ in placed.allocations["a"]} == {"z0"}


def test_room_is_made_in_one_rack_where_that_moves_no_more_jobs() -> None:
    cluster = Cluster.from_yaml("nodes:\n  - {type: v100, count: 8, slots: 4, nodes_per_rack: 2, rack: r}\n")
    current: dict[str, Allocation] = {f"j{node}": ((node, 1 + node % 2),) for node in range(8)}
    jobs = {name: Configuration(gpu_type="v100", nodes=1, slots=slots) for name, ((_, slots),) in current.items()}
    new = Configuration(gpu_type="v100", nodes=2, slots=8)
    placed = place(cluster, [4] * 8, {**jobs, "new": new}, current)
    assert len({cluster.node_rack[node] for node, _ in placed.allocations["new"]}) == 1
    assert sum(placed.allocations[name] != allocation for name, allocation in current.items()) == 2
    assert not placed.scattered


def test_odd_sizes_take_whole_nodes_and_a_rest_where_even_shares_leave_no_room() -> None:
    jobs = {name: Configuration(gpu_type="v100", nodes=2, slots=12) for name in ("a", "b")}
    jobs["c"] = Configuration(gpu_type="v100", nodes=1, slots=8)
    placed = place(Cluster.parse("v100:4x8"), [8] * 4, jobs, {})
    assert not placed.scattered
    assert sorted(slots for _, slots in placed.allocations["a"]) == [4, 8]
    assert len(placed.allocations["c"]) == 1
    alone = place(Cluster.parse("v100:4x8"), [8] * 4, {"a": jobs["a"]}, {})
    assert [slots for _, slots in alone.allocations["a"]] == [6, 6]


def test_odd_sizes_that_cannot_be_packed_are_scattered_and_said() -> None:
    cluster = Cluster.parse("v100:2x4")
    wanted = {"a": conf(3), "b": conf(3), "c": conf(2)}
    placed = place(cluster, [4, 4], wanted, {})
    check(cluster, wanted, placed)
    assert not placed.unplaced
    assert "too scattered" in placed.scattered["c"]


def test_more_than_there_is_leaves_out_with_a_reason() -> None:
    cluster = Cluster.parse("v100:1x4")
    wanted = {"a": conf(4), "b": conf(1)}
    placed = place(cluster, [4], wanted, {})
    assert list(placed.allocations) == ["a"]
    assert "no slots are left" in placed.unplaced["b"]


@pytest.mark.parametrize("seed", range(30))
def test_decisions_within_capacity_are_always_placed_as_wanted(seed: int) -> None:
    """Random life of a cluster in powers of two and whole nodes: nothing is left out or scattered."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.parse("v100:8x8")
    sizes = [conf(1), conf(2), conf(4), conf(8), conf(16, 2), conf(24, 3)]
    jobs: dict[str, Configuration] = {}
    current: dict[str, Allocation] = {}
    for step in range(20):
        for job_id in list(jobs):
            if rng.random() < 0.3:
                del jobs[job_id]
            elif rng.random() < 0.2:
                jobs[job_id] = sizes[rng.integers(len(sizes))]
        jobs |= {f"{step}-{i}": sizes[rng.integers(len(sizes))] for i in range(rng.integers(1, 12))}
        while sum(c.slots for c in jobs.values()) > 64:
            jobs.pop(list(jobs)[rng.integers(len(jobs))])
        placed = place(cluster, [8] * 8, jobs, current)
        check(cluster, jobs, placed)
        assert not placed.unplaced
        assert not placed.scattered
        current = placed.allocations
