"""Gavel's policies on its own traces, beside what its published simulator gives; more in ``geminid bench fidelity``."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminid.bench import gavel
from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate

PEERS = Path(__file__).parents[3] / "shared" / "peers"

#: The quick ones. Trace C and Figure 8 take minutes.
CASES = {(result.set, result.policy): result for result in gavel.published(PEERS) if result.set == "A"}


@pytest.mark.parametrize("policy", [policy for _, policy in CASES] or ["none"])
def test_trace_a(policy: str) -> None:
    if not CASES:
        pytest.skip("Gavel's results are not at shared/peers/gavel/results")
    expected = CASES["A", policy]
    _, cluster = gavel.SETS["A"]
    experiment = Experiment(
        workload=gavel.workload_of(PEERS, "A"), cluster=Cluster.parse(cluster), profiles=PEERS / gavel.TABLE
    )
    result = simulate(policy, experiment)
    assert result["unfinished_jobs"] == result["rejected_decisions"] == 0
    assert result["avg_jct_s"] == pytest.approx(expected.avg_jct_s, rel=gavel.TOLERANCE)
    assert result["makespan_s"] == pytest.approx(expected.makespan_s, rel=gavel.TOLERANCE)


def test_the_generator_draws_what_gavels_draws() -> None:
    path = PEERS / gavel.SETS["C"][0]
    if not path.exists():
        pytest.skip("Gavel's traces are not at shared/peers/gavel/traces")
    theirs = gavel.workload_of(PEERS, "C").jobs
    ours = gavel.figure_8(PEERS, jobs_per_hour=2.0, jobs=len(theirs)).jobs
    assert [(job.application, job.steps) for job in ours] == [(job.application, job.steps) for job in theirs]
    assert [job.submit_s for job in ours] == pytest.approx([job.submit_s for job in theirs], abs=1e-6)
