"""CPU time of one decision of the pollux policy, beside that of the published code.

    OMP_NUM_THREADS=1 python benchmarks/pollux_decision.py [--exact] [--rounds N]

Jobs have random models and arrive together on an empty cluster; every decision is carried out before the next, so the
first starts cold and the last from a full cluster. The published figures are CPU seconds of one core for the same
population and number of generations (100 and 100), on another machine.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from geminid.bench.table import random_job
from geminid.cluster import Cluster
from geminid.engine.plan import Plan, make_plan
from geminid.policies.base import ClusterView, JobFacts, JobView, slots_of
from geminid.policies.pollux import Pollux

#: Nodes, slots per node, jobs, and the published range of CPU seconds.
CASES = [(16, 4, 10, "1.1-1.5"), (16, 4, 50, "2.9-3.2"), (16, 4, 160, "7.2-7.9"), (64, 8, 200, "28.8-30.2")]

#: Jobs may have up to twice these slots.
MEASURED_SLOTS = 8


def waiting(nodes: int, per_node: int, jobs: int, seed: int) -> ClusterView:
    """Jobs with random models on an empty cluster."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.parse(f"t4:{nodes}x{per_node}")
    views = []
    for i in range(jobs):
        model = random_job("pollux", ["t4"], rng)
        facts = JobFacts(id=f"job-{i}", submitted_s=0.0, requested_slots=1, max_slots=64, limits=model.limits)
        views.append(JobView(facts=facts, model=model, most_slots_measured=MEASURED_SLOTS))
    return ClusterView(600.0, cluster, tuple(views), tuple(cluster.node_slots.tolist()))


def carried_out(view: ClusterView, plan: Plan) -> ClusterView:
    """A minute later."""
    granted = {job.id: plan.allocations.get(job.id, ()) for job in view.jobs}
    jobs = tuple(
        replace(
            job,
            allocation=granted[job.id],
            slots=slots_of(granted[job.id]),
            gpu_type="t4" if granted[job.id] else None,
            since_s=view.now_s,
        )
        for job in view.jobs
    )
    return replace(view, now_s=view.now_s + 60.0, jobs=jobs)


def main() -> None:
    """Print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--exact", action="store_true", help="time the exact solver instead")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'cluster':>8} {'jobs':>5} {'first':>8} {'best':>8} {'median':>8}  {'published':>10}  running")
    for nodes, per_node, jobs, published in CASES:
        view = waiting(nodes, per_node, jobs, options.seed)
        policy = Pollux(seed=options.seed, solver="exact" if options.exact else "genetic")
        seconds, running = [], 0
        for _ in range(options.rounds):
            started = time.process_time()
            decision = policy.decide(view)
            seconds.append(time.process_time() - started)
            plan = make_plan(decision, view)
            assert isinstance(plan, Plan), plan
            running = len(plan.allocations)
            view = carried_out(view, plan)
        cluster = f"{nodes}x{per_node}"
        times = f"{seconds[0]:6.3f} s {min(seconds):6.3f} s {float(np.median(seconds)):6.3f} s"
        print(f"{cluster:>8} {jobs:>5} {times}  {published:>8} s  {running}", flush=True)


if __name__ == "__main__":
    main()
