"""All of ``geminid bench``, put together."""

from __future__ import annotations

from geminid.cli import (
    bench,
    bench_decisions,
    bench_model,
    bench_network,
    bench_page,
    bench_paper,
    bench_plans,
    bench_published,
    bench_service,
    bench_simulation,
    bench_training,
)

app = bench.app
for command in (
    *(bench_model.model, bench_model.table, bench_model.fit, bench_model.estimation, bench_plans.plans),
    *(bench_simulation.simulator, bench_decisions.solver, bench_decisions.policies, bench_published.quality),
    *(bench_published.fidelity, bench_simulation.sharing, bench_simulation.entities, bench_simulation.objectives),
    *(bench_network.consolidation, bench_paper.paper),
    *(bench_training.rescale, bench_training.overhead, bench_training.data, bench_training.saving),
    *(bench_service.service, bench_service.live, bench_service.ray, bench_service.scale),
    bench_page.page,
):
    app.command()(command)
