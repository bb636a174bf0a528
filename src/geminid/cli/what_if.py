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
    from geminid.serve.snapshot import Snapshot


def snapshot(extra_job: str | None = None) -> Snapshot:
    """The jobs, the cluster and the policy of the running service, as they are now; perhaps with one job more."""
    from geminid.serve.snapshot import ExtraJob, Snapshot

    try:
        extra = None if extra_job is None else ExtraJob.parse(extra_job)
    except ValueError as problem:
        give_up(f"--extra-job: {problem}")
    with reporting_trouble():
        taken: dict[str, Any] = client().get("snapshot")
    found = Snapshot.from_dict(taken)
    return found if extra is None else found.plus(extra)


def what_if(
    live: Snapshot,
    policies: list[str],
    *,
    cluster: Cluster | None,
    rescale_s: float | None,
    json_file: Path | None,
    report: Path | None,
    timings: bool,
) -> None:
    """Simulate what the jobs of a snapshot have left to do; on the service's own cluster unless another is given."""
    from geminid.serve.snapshot import notes
    from geminid.serve.whatif import from_now
    from geminid.sim.metrics import summary
    from geminid.sim.result import NoProgress

    chosen = cluster or live.cluster
    if chosen is None:
        give_up("nothing of the cluster is in service (`geminid nodes` shows why); --cluster simulates another one")
    world = live.world(chosen, rescale_s=rescale_s)
    said = notes(live, chosen, world)
    if not world.workload.jobs:
        write_json(json_file, [])
        _print_notes(said)
        unwritten = "" if report is None else ", and no report to write"
        console.print(f"no jobs are waiting or running: there is nothing to simulate{unwritten}")
        return
    results = []
    for text in policies:
        try:
            result = world.simulator(chosen, live.policy(text)).run()
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
    _print_notes(said)
    write_page(report, world.workload_from_now, chosen, results, None)
    if any(r["unfinished_jobs"] for r in results):
        raise typer.Exit(1)


def _print_notes(said: list[str]) -> None:
    for sentence in said:
        console.print(f"[yellow]note:[/] {sentence}")
