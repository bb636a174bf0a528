"""The benchmark of the simulator: what the network model itself costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geminid.bench.simulator import NETWORKS, SimulatorRow, network_cost, network_costs, run_on_networks

ROW = SimulatorRow("fifo", "in racks", 10, 8, 1.0, 20, 20, 1.2, 1.0, 1.0, None, None, 0.2)


def test_the_cost_of_the_network_is_its_time_by_that_of_the_rest() -> None:
    assert network_cost([ROW]) == pytest.approx(0.2)
    slower = replace(ROW, policy="tiresias", cpu_s=3.0, network_cpu_s=0.0)
    assert network_cost([ROW, slower]) == pytest.approx(0.2 / 4.0)
    assert network_costs([[ROW], [slower]]) == {"in racks": pytest.approx(0.2 / 4.0)}


def test_simulations_on_every_network_say_what_their_network_model_takes() -> None:
    (rows,) = run_on_networks(cases=(("tiresias", 20, 1, "v100:8x4"),), progress=lambda _: None)
    assert [row.workload for row in rows] == list(NETWORKS)
    assert all(row.network_cpu_s is not None and 0.0 <= row.network_cpu_s < row.cpu_s for row in rows)
