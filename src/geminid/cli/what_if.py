"""``geminid simulate --from-live``: what the live jobs would do under other policies or on another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from geminid.cli.client import client, give_up, reporting_trouble
from geminid.cli.output import console, print_table
from geminid.cli.results import duration, label, print_results, write_json, write_page

if TYPE_CHECKING:
    from geminid.cluster import Cluster


def snapshot() -> dict[str, Any]:
    """The jobs, the cluster and the policy of the running service, as they are now."""
    with reporting_trouble():
        taken: dict[str, Any] = client().get("snapshot")
    return taken


def what_if(
    live: dict[str, Any],
    policies: list[str],
    *,
    cluster: Cluster | None,
    rescale_s: float | None,
    json_file: Path | None,
    report: Path | None,
    timings: bool,
) -> None:
    """Simulate what the jobs of a snapshot have left to do; on the service's own cluster unless another is given."""
    from geminid.cluster import Cluster
    from geminid.serve.forecast import can_start, restrained
    from geminid.serve.livejob import job_from_dict
    from geminid.serve.translation import fits
    from geminid.serve.whatif import from_now, what_if
    from geminid.sim.metrics import summary
    from geminid.sim.result import NoProgress

    jobs = [job_from_dict(plain) for plain in live["jobs"]]
    if cluster is None and live["cluster"] is None:
        give_up("nothing of the cluster is in service (`geminid nodes` shows why); --cluster simulates another one")
    chosen = cluster or Cluster.from_dict(live["cluster"])
    quotas, borrowers = live["quotas"], frozenset(live["may_borrow"])
    never = {
        job.id
        for job in jobs
        if job.wants_slots
        and not (fits(job, chosen) and can_start(job, chosen, quotas.get(job.id, {}), borrowers.__contains__))
    }
    world = what_if([job for job in jobs if job.id not in never], chosen, live["now_s"], rescale_s=rescale_s)
    if never:
        names = ", ".join(sorted(never))
        console.print(f"[yellow]note:[/] left out, because they need more slots than they can have: {names}")
    if not world.workload.jobs:
        write_json(json_file, [])
        unwritten = "" if report is None else ", and no report to write"
        console.print(f"no jobs are waiting or running: there is nothing to simulate{unwritten}")
        return
    results = []
    for text in policies:
        policy = restrained(
            text,
            jobs,
            live["now_s"],
            lambda job_id: quotas.get(job_id, {}),
            borrowers.__contains__,
            live["patience_s"],
        )
        try:
            result = world.simulator(chosen, policy).run()
        except NoProgress as problem:
            give_up(str(problem))
        results.append({**summary(from_now(result), timings=timings, stints=report is not None), "policy": text})
    write_json(json_file, results)
    print_results(world.workload, chosen.total_slots, results)
    rows = [
        [job["name"], *(duration(result["per_job"][i]["jct_s"]) for result in results)]
        for i, job in enumerate(results[0]["per_job"])
    ]
    print_table("Finished after", ["job", *(label(result["policy"]) for result in results)], rows)
    if world.guessed:
        names = ", ".join(sorted(world.guessed))
        console.print(f"[yellow]note:[/] how long these take is a guess: {names}")
    write_page(report, world.workload_from_now, chosen, results, None)
    if any(r["unfinished_jobs"] for r in results):
        raise typer.Exit(1)
