"""How fast the simulator is, in simulated hours and events per second of one core, beside the peers' own simulators."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from geminid.bench.consolidation import SLOTS
from geminid.bench.decisions import in_racks
from geminid.bench.timing import timed
from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.sim.run import Experiment, applications_of, policy_of
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workloads import load_workload
from geminid.sim.workloads.generate import BUILT_IN_APPLICATIONS, generate_workload

T = TypeVar("T")

#: Simulations to time: policy, jobs, hours, cluster, and whether the jobs train profiled applications (then they are
#: measured, fitted and re-tuned as they go) or are opaque durations. First the same cluster and load for longer and
#: longer: cost per event should stay the same. Then larger clusters. Then policies that compute more.
GENERATED = (
    ("fifo", 240, 12, "v100:16x4", False),
    ("fifo", 960, 48, "v100:16x4", False),
    ("fifo", 3840, 192, "v100:16x4", False),
    ("fifo", 10_000, 168, "v100:128x8", False),
    ("tiresias", 960, 48, "v100:16x4", False),
    ("tiresias", 10_000, 168, "v100:128x8", False),
    ("fifo", 960, 48, "t4:16x4", True),
    ("tiresias", 960, 48, "t4:16x4", True),
)

#: … in a quick run.
QUICK_GENERATED = (("fifo", 240, 12, "v100:16x4", False), ("tiresias", 120, 6, "t4:16x4", True))

#: Simulations to time in one rack, in racks, and in racks whose uplinks are oversubscribed: policy, jobs, hours, slots.
ON_NETWORKS = (
    ("fifo", 400, 8, "v100:32x4"),
    ("tiresias", 400, 8, "v100:32x4"),
    ("dally", 400, 8, "v100:32x4"),
)
QUICK_ON_NETWORKS = (("tiresias", 120, 6, "v100:32x4"),)

#: How the nodes are joined: nodes per rack, and oversubscription of the racks' uplinks (None: wide enough).
NETWORKS = {"in one rack": None, "in racks": (4, None), "uplinks 8 : 1": (4, 8.0)}

#: Each of these is run this often, and the least time counts.
TIMES = 3

#: The network model may take this much of the CPU time of the rest, as a part: over the policies, on every network.
MOST_NETWORK_COST = 0.2

#: The simulation, by policy, jobs and slots, that is to take less than this many seconds of a core.
GOAL_CASE = ("fifo", 960, 64)
GOAL_S = 2.0

#: The same on Sia's own workloads, where they are there, and the CPU-seconds of its simulator under its own policy.
SIA_CLUSTER = "aws:6x4,dgx-ext:2x8,rtx:3x8"
SIA_WORKLOADS = (
    ("fifo", "newtrace/workload-1.csv", 201.0),
    ("tiresias", "newtrace/workload-1.csv", 201.0),
    ("sia", "philly/workload-1.csv", 41.0),
)


@dataclass(frozen=True, slots=True)
class SimulatorRow:
    """One simulation: its size and its cost in CPU time; on Sia's workloads, beside that of Sia's own simulator.

    ``network_cpu_s`` is the part of ``cpu_s`` that the network model takes; None where it was not measured.
    """

    policy: str
    workload: str
    jobs: int
    slots: int
    simulated_hours: float
    events: int
    decisions: int
    cpu_s: float
    microseconds_per_event: float
    simulated_hours_per_s: float
    sia_simulator_cpu_s: float | None
    times_faster: float | None
    network_cpu_s: float | None = None


class NetworkTime:
    """Adds up the CPU time that one simulation spends in its network model: finding paths and dividing uplinks."""

    def __init__(self, simulator: Simulator) -> None:
        self.cpu_s = 0.0
        executor = simulator.executor
        for owner, name in (
            (executor, "share_uplinks"),
            (executor.uplinks, "crossing"),
            (executor.uplinks, "note_change"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any) -> T:
            began_s = time.process_time()
            try:
                return function(*args)
            finally:
                self.cpu_s += time.process_time() - began_s

        return call


def run(
    *,
    cases: Sequence[tuple[str, int, int, str, bool]] = GENERATED,
    peers: Path | None,
    seed: int = 0,
    progress: Callable[[str], None],
) -> list[SimulatorRow]:
    """Time every case; those on the peers' workloads where the files are there (None: not at all)."""
    rows = []
    for policy, jobs, hours, cluster, profiled in cases:
        kind = "profiled" if profiled else "opaque"
        workload = generate_workload(
            jobs=jobs,
            hours=float(hours),
            seed=seed,
            name=f"{hours} h of {kind} jobs",
            applications=BUILT_IN_APPLICATIONS if profiled else None,
        )
        experiment = Experiment(workload=workload, cluster=Cluster.parse(cluster), seed=seed)
        rows.append(_measure(policy, experiment, None, progress))
    if peers is None:
        return rows
    folder = peers / "sia" / "sia-simulator"
    for policy, path, cpu_s in SIA_WORKLOADS:
        if (folder / "workloads" / path).is_file():
            experiment = Experiment(
                workload=replace(load_workload(folder / "workloads" / path), name=f"Sia's {path.split('/')[0]} 1"),
                cluster=Cluster.parse(SIA_CLUSTER),
                profiles=folder / "traces",
                settings=Settings(model="pollux"),
                seed=seed,
            )
            rows.append(_measure(policy, experiment, cpu_s, progress))
    return rows


def run_on_networks(
    *,
    cases: Sequence[tuple[str, int, int, str]] = ON_NETWORKS,
    seed: int = 0,
    progress: Callable[[str], None],
) -> list[list[SimulatorRow]]:
    """For every case one row per network, with the same jobs: the first is in one rack."""
    found = []
    for policy, jobs, hours, text in cases:
        rows = []
        for name, racks in NETWORKS.items():
            workload = generate_workload(
                jobs=jobs, hours=float(hours), seed=seed, name=name, slots=SLOTS, adaptivity={Adaptivity.RIGID: 1.0}
            )
            plain = Cluster.parse(text)
            experiment = Experiment(workload=workload, cluster=in_racks(plain, *racks) if racks else plain, seed=seed)
            timed_rows = [_measure(policy, experiment, None, progress, network=True) for _ in range(TIMES)]
            rows.append(min(timed_rows, key=lambda row: row.cpu_s))
        found.append(rows)
    return found


def network_cost(rows: Sequence[SimulatorRow]) -> float:
    """CPU time of the network model by that of the rest of some simulations."""
    own_s = sum(row.network_cpu_s or 0.0 for row in rows)
    return own_s / (sum(row.cpu_s for row in rows) - own_s)


def network_costs(networks: Sequence[Sequence[SimulatorRow]]) -> dict[str, float]:
    """The cost of the network model on each network, over all policies."""
    return {rows[0].workload: network_cost(rows) for rows in zip(*networks, strict=True)}


def _measure(
    policy: str,
    experiment: Experiment,
    sia_cpu_s: float | None,
    progress: Callable[[str], None],
    *,
    network: bool = False,
) -> SimulatorRow:
    workload, slots = experiment.workload, experiment.cluster.total_slots
    progress(f"{policy}: {len(workload.jobs):,} jobs on {slots:,} slots")
    applications = applications_of(experiment)
    simulator = Simulator(
        workload, applications, experiment.cluster, policy_of(policy, experiment), experiment.settings
    )
    in_network = NetworkTime(simulator) if network else None
    _, cpu_s, result = timed(simulator.run)
    simulated_hours = simulator.now_s / 3600.0
    return SimulatorRow(
        policy,
        workload.name,
        len(workload.jobs),
        slots,
        simulated_hours,
        result.events,
        len(result.decision_s),
        cpu_s,
        1e6 * cpu_s / result.events,
        simulated_hours / cpu_s,
        sia_cpu_s,
        None if sia_cpu_s is None else sia_cpu_s / cpu_s,
        None if in_network is None else in_network.cpu_s,
    )
