"""How fast the simulator is, in simulated hours and events per second of one core, beside the peers' own simulators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from geminid.cluster import Cluster
from geminid.sim.run import Experiment, applications_of, policy_of
from geminid.sim.simulator import Simulator
from geminid.sim.workloads.generate import generate_workload

#: Simulated hours per CPU-second that the peers' simulators were measured at, on workloads of about the same size.
PEERS = {
    "Sia's (960 jobs, 64 slots, its own policy, 201 CPU-s)": 51.3 / 201.0,
    "Sia's (160 jobs, 64 slots, its own policy, 41 CPU-s)": 15.1 / 41.0,
}


@dataclass(frozen=True, slots=True)
class SimulatorRow:
    """One simulation: its size, its cost, and the ratio to Sia's simulator on 960 jobs."""

    policy: str
    jobs: int
    slots: int
    simulated_hours: float
    events: int
    decisions: int
    seconds: float
    microseconds_per_event: float
    simulated_hours_per_s: float
    times_sia_simulator: float


def run(*, seed: int = 0, progress: Callable[[str], None]) -> list[SimulatorRow]:
    """960 jobs over 48 h on 64 slots, growing with the cluster up to 10,000 jobs on 1,024 slots."""
    rows = []
    for policy in ("fifo", "tiresias:interval=60"):
        for jobs, hours, nodes, per_node in (
            (240, 12, 16, 4),
            (960, 48, 16, 4),
            (2500, 42, 32, 8),
            (10_000, 168, 128, 8),
        ):
            progress(f"{policy}: {jobs:,} jobs on {nodes * per_node:,} slots")
            workload = generate_workload(
                jobs=jobs, hours=float(hours), seed=seed, name=f"{jobs} jobs", applications=None
            )
            experiment = Experiment(workload=workload, cluster=Cluster.parse(f"v100:{nodes}x{per_node}"), seed=seed)
            simulator = Simulator(
                workload, applications_of(experiment), experiment.cluster, policy_of(policy, experiment)
            )
            result = simulator.run()
            simulated = simulator.now_s / 3600.0
            speed = simulated / result.wall_s
            rows.append(
                SimulatorRow(
                    policy,
                    jobs,
                    nodes * per_node,
                    simulated,
                    result.events,
                    len(result.decision_s),
                    result.wall_s,
                    1e6 * result.wall_s / result.events,
                    speed,
                    speed / next(iter(PEERS.values())),
                )
            )
    return rows
