"""How fast the simulator is, in simulated hours and events per second of one core, beside the peers' own simulators."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from geminid.cluster import Cluster
from geminid.sim.run import Experiment, applications_of, policy_of
from geminid.sim.simulator import Simulator
from geminid.sim.workloads.generate import BUILT_IN_APPLICATIONS, generate_workload

#: Simulated hours per CPU-second of Sia's own simulator under its own policy, by the number of jobs (64 slots).
SIA_SIMULATOR = {160: 15.1 / 41.0, 960: 51.3 / 201.0}

#: Simulations to time: policy, jobs, hours, cluster, and whether the jobs train profiled applications (then they are
#: measured, fitted and re-tuned as they go) or are opaque durations. First the same cluster and load for longer and
#: longer: cost per event should stay the same. Then larger clusters. Then policies that compute more.
CASES = (
    ("fifo", 240, 12, "v100:16x4", False),
    ("fifo", 960, 48, "v100:16x4", False),
    ("fifo", 3840, 192, "v100:16x4", False),
    ("fifo", 2500, 42, "v100:32x8", False),
    ("fifo", 10_000, 168, "v100:128x8", False),
    ("tiresias", 960, 48, "v100:16x4", False),
    ("tiresias", 10_000, 168, "v100:128x8", False),
    ("tiresias", 960, 48, "t4:16x4", True),
    ("sia", 160, 8, "t4:6x4,a100:2x8,rtx2080ti:3x8", True),
)


@dataclass(frozen=True, slots=True)
class SimulatorRow:
    """One simulation: its size, its cost in CPU time, and its speed over that of Sia's simulator on 160 or 960 jobs."""

    policy: str
    jobs: int
    profiled: bool
    slots: int
    simulated_hours: float
    events: int
    decisions: int
    cpu_s: float
    microseconds_per_event: float
    simulated_hours_per_s: float
    times_sia_simulator: float


def run(*, seed: int = 0, progress: Callable[[str], None]) -> list[SimulatorRow]:
    """Time every case."""
    return [_measure(*case, seed=seed, progress=progress) for case in CASES]


def _measure(
    policy: str, jobs: int, hours: float, cluster: str, profiled: bool, *, seed: int, progress: Callable[[str], None]
) -> SimulatorRow:
    parsed = Cluster.parse(cluster)
    progress(f"{policy}: {jobs:,} {'profiled' if profiled else 'opaque'} jobs on {parsed.total_slots:,} slots")
    applications = BUILT_IN_APPLICATIONS if profiled else None
    workload = generate_workload(
        jobs=jobs, hours=float(hours), seed=seed, name=f"{jobs} jobs", applications=applications
    )
    experiment = Experiment(workload=workload, cluster=parsed, seed=seed)
    simulator = Simulator(workload, applications_of(experiment), parsed, policy_of(policy, experiment))
    started = time.process_time()
    result = simulator.run()
    cpu_s = time.process_time() - started
    simulated_hours = simulator.now_s / 3600.0
    speed = simulated_hours / cpu_s
    return SimulatorRow(
        policy,
        jobs,
        profiled,
        parsed.total_slots,
        simulated_hours,
        result.events,
        len(result.decision_s),
        cpu_s,
        1e6 * cpu_s / result.events,
        speed,
        speed / SIA_SIMULATOR[160 if jobs <= 160 else 960],
    )
