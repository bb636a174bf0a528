"""``geminid simulate``: policies over a workload in virtual time, side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from geminid.cli.clusterfile import read_cluster
from geminid.cli.output import WideOption, console, error_console
from geminid.cli.results import (
    TO_OUTPUT,
    check_output_file,
    compare,
    print_results,
    write_json,
    write_page,
    write_rows,
)
from geminid.fields import NOT_SHOWN, InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.sim.workload import Workload

#: Pause of a change of slots with live rescaling, in seconds: processes stay, state comes from a peer.
LIVE_RESCALE_S = 1.0

DEFAULT_CLUSTER = "v100:8x4,a100-40gb:2x8,t4:8x4"

DEFAULT_POLICIES = "fifo,tiresias,sia,geminid"

#: What ``--policy selection`` stands for: one policy of each kind, all fast enough to simulate a day in a minute.
SELECTION = (
    "fifo",
    "srtf",
    "las",
    "tiresias",
    "gandiva",
    "dally",
    "antman:opportunistic=0.3",
    "lucid",
    "optimus",
    "slaq:interval=30",
    "max_min_fairness_perf",
    "max_min_fairness_packed",
    "themis",
    "shockwave",
    "sia",
    "geminid",
)

#: Parameters that can be combined with --from-live; everything else comes from the service.
WITH_FROM_LIVE = frozenset(
    ("from_live", "cluster", "policy", "adaptive", "rescale", "json_file", "report", "timings", "wide", "extra_job")
)


def simulate(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Option(help="A workload file, or the name of a built-in one (see `geminid workloads`)."),
    ] = "day",
    format: Annotated[
        str | None,
        typer.Option(help="native, pollux, sia, gavel, tiresias or philly; guessed from the file when left out."),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(
            help="Folder of measured applications, as Pollux and Sia lay it out, or Gavel's file of throughputs; "
            "built-in ones when left out."
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="A cluster file, or type:NODESxSLOTS,… as in aws:6x4,dgx-ext:2x8,rtx:3x8.")
    ] = DEFAULT_CLUSTER,
    policy: Annotated[
        str,
        typer.Option(
            help="One or several policies separated by commas, with options after a colon: "
            "fifo,sia:p=-1,tiresias:limits=3250;7200. Your own: path/to/file.py:Class. selection: one of each kind."
        ),
    ] = DEFAULT_POLICIES,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Simulate under this many seeds, from --seed on; means and paired differences.")
    ] = 1,
    load: Annotated[float, typer.Option(min=0.01, help="Scales the arrivals of a built-in workload.")] = 1.0,
    rescale: Annotated[
        str,
        typer.Option(
            help="What a change of slots costs: cold (as profiled; as the live jobs measured), live, or a number "
            "of seconds."
        ),
    ] = "cold",
    model: Annotated[
        Literal["pollux", "geminid"] | None,
        typer.Option(help="Throughput model that schedulers fit; pollux for the peers' profiles, else geminid."),
    ] = None,
    interference: Annotated[
        float, typer.Option(min=0.0, max=0.95, help="Share of speed that distributed jobs lose when they share a node.")
    ] = 0.0,
    node_mtbf: Annotated[
        float | None, typer.Option(min=0.01, help="Mean hours between failures of a node; never when left out.")
    ] = None,
    repair: Annotated[float, typer.Option(min=0.0, help="Hours until a node that failed is back.")] = 0.5,
    checkpoint: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds of work between checkpoints, to which jobs on a failed node fall back."),
    ] = 600.0,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive", help="Let policies that read throughputs read goodputs of jobs that tune themselves instead."
        ),
    ] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Let every policy know what only an oracle can.")] = False,
    estimates: Annotated[
        str,
        typer.Option(
            help="What jobs know of how much they have to do: exact, none, or the standard deviation of the logarithm "
            "by which they are wrong."
        ),
    ] = "exact",
    speeds: Annotated[
        str,
        typer.Option(
            help="What schedulers know of jobs' speeds: measured (what jobs have measured), known (everything), or the "
            "standard deviation of the logarithm by which measurements are wrong."
        ),
    ] = "measured",
    arrivals: Annotated[
        Literal["unknown", "next"], typer.Option(help="Whether schedulers know when the next job will arrive.")
    ] = "unknown",
    bound: Annotated[
        bool,
        typer.Option("--bound", help="Add what no schedule of the workload can be better than (docs/bound.md)."),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="OUT",
            help="Write the results as JSON to this file, or with - to the output, and all else to the errors.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a self-contained page with plots and timelines.")
    ] = None,
    from_live: Annotated[
        bool,
        typer.Option(
            "--from-live",
            help="What if: the jobs of the running service as they are now, at the speeds they have measured. "
            "On its own cluster under its own policy, unless others are given; --adaptive, --rescale, --json, --report "
            "and --no-timings are as usual, all else is the service's.",
        ),
    ] = False,
    extra_job: Annotated[
        str | None,
        typer.Option(metavar="SLOTSxDURATION", help="With --from-live: one job more, as in 2x30m."),
    ] = None,
    compared: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A.json B.json", help="Compare two earlier results instead of simulating."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Policies simulated at a time.")] = None,
    timings: Annotated[
        bool,
        typer.Option(
            help="Add real times (decision_ms, wall_s); without them equal runs give equal files, byte for byte."
        ),
    ] = True,
    wide: WideOption = False,
) -> None:
    """Run policies over a workload in virtual time, side by side."""
    given = _given(context)
    if from_live and (alien := [option for name, option in given.items() if name not in WITH_FROM_LIVE]):
        expected = "cannot be given with --from-live, where the jobs and how they run are those of the service"
        raise InvalidInput([Problem(option, NOT_SHOWN, expected) for option in alien])
    if extra_job is not None and not from_live:
        raise InvalidInput([Problem("--extra-job", NOT_SHOWN, "adds a job to those of the service: give --from-live")])
    if json_file == TO_OUTPUT:
        usual, console.file = console.file, sys.stderr
        context.call_on_close(lambda: setattr(console, "file", usual))
    check_output_file("json", json_file)
    check_output_file("report", report)
    if compared is not None:
        compare(*compared, json_file)
        return
    if from_live:
        from geminid.cli.what_if import snapshot, what_if

        other_cluster = read_cluster(cluster) if "cluster" in given else None
        names = _split_policies(policy) if "policy" in given else None
        rescale_s = _rescale(rescale)
        live = snapshot(extra_job)
        names = names or [live.policy_text]
        what_if(
            live,
            _adaptive(names) if adaptive else names,
            cluster=other_cluster,
            rescale_s=rescale_s,
            json_file=json_file,
            report=report,
            timings=timings,
        )
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from geminid.sim.bound.results import check_whole, with_bounds
    from geminid.sim.result import NoProgress
    from geminid.sim.run import Experiment, simulate_all, without_unknown
    from geminid.sim.settings import Settings

    chosen_cluster = read_cluster(cluster)

    def experiment_of(seed: int) -> Experiment:
        asked = _workload(workload, format, seed, load)
        simulated = without_unknown(asked, profiles)
        if bound:
            check_whole(asked, simulated)
        return Experiment(
            workload=simulated,
            cluster=chosen_cluster,
            profiles=profiles,
            settings=Settings(
                rescale_s=_rescale(rescale),
                interference=interference,
                node_mtbf_s=None if node_mtbf is None else 3600.0 * node_mtbf,
                repair_s=3600.0 * repair,
                checkpoint_s=checkpoint,
                seed=seed,
                model=model or ("pollux" if profiles is not None else "geminid"),
                oracle=oracle,
                estimate_error=_estimate_error(estimates),
                speeds_known=speeds == "known",
                speed_error=_speed_error(speeds),
                arrivals_known=arrivals == "next",
            ),
            seed=seed,
            timings=timings,
            stints=report is not None,
        )

    texts = _adaptive(_split_policies(policy)) if adaptive else _split_policies(policy)
    if seeds > 1:
        from geminid.cli.seeds import print_seeds, simulate_seeds

        if report is not None:
            raise InvalidInput([Problem("--report", NOT_SHOWN, "shows one seed, and cannot be given with --seeds")])
        experiments = [experiment_of(each) for each in range(seed, seed + seeds)]
        try:
            rows = simulate_seeds(texts, experiments, workers or os.cpu_count() or 1, bound=bound)
        except NoProgress as error:
            error_console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(1) from None
        write_rows(json_file, rows)
        print_seeds(experiments[0].workload.name, chosen_cluster.total_slots, rows)
        if any(row["unfinished_jobs"] for row in rows):
            raise typer.Exit(1)
        return
    experiment = experiment_of(seed)
    chosen = experiment.workload
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=error_console, transient=True) as bars:
        tasks = [bars.add_task(text, total=len(chosen.jobs)) for text in texts]
        try:
            results = simulate_all(
                texts, experiment, lambda i, done: bars.update(tasks[i], completed=done), workers or os.cpu_count() or 1
            )
        except NoProgress as error:
            error_console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(1) from None
    if bound:
        with error_console.status("bounding every schedule"):
            results = with_bounds(results, experiment)
    write_json(json_file, results)
    print_results(chosen, experiment.cluster.total_slots, results)
    write_page(report, chosen, experiment.cluster, results, seed)
    if any(r["unfinished_jobs"] for r in results):
        raise typer.Exit(1)


def _given(context: typer.Context) -> dict[str, str]:
    """The parameters that were typed, with the names of their options."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name is not None and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
    }


def _split_policies(text: str) -> list[str]:
    """Split at commas that separate policies; an option (name=value) belongs to the policy before it."""
    policies: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        is_option = "=" in part and ":" not in part.split("=", 1)[0]
        if part == "selection":
            policies += [each for each in SELECTION if each not in policies]
        elif is_option and policies:
            policies[-1] += f",{part}"
        else:
            policies.append(part)
    if not policies:
        raise InvalidInput([Problem("policy", text, "must name at least one policy")])
    return policies


def _adaptive(texts: list[str]) -> list[str]:
    """The policies with ``adaptive=true`` for those that have the option and do not set it."""
    from geminid.policies.registry import BUILT_IN, options_of

    able = {name for name, kind in BUILT_IN.items() if any(option.name == "adaptive" for option in options_of(kind))}
    if not any(text.partition(":")[0] in able for text in texts):
        expected = f"needs a policy that reads throughputs; of those given ({', '.join(texts)}) none does"
        raise InvalidInput([Problem("--adaptive", NOT_SHOWN, expected)])
    result = []
    for text in texts:
        name, colon, options = text.partition(":")
        sets_it = any(part.startswith("adaptive=") for part in options.split(","))
        result.append(f"{text}{',' if colon else ':'}adaptive=true" if name in able and not sets_it else text)
    return result


def _workload(text: str, format: str | None, seed: int, load: float) -> Workload:
    from geminid.sim.workloads import load_workload
    from geminid.sim.workloads.generate import BUILT_IN_WORKLOADS, built_in_workload

    if text in BUILT_IN_WORKLOADS:
        return built_in_workload(text, seed=seed, load=load)
    path = Path(text)
    if not path.exists():
        known = ", ".join(BUILT_IN_WORKLOADS)
        raise InvalidInput([Problem("workload", text, f"must be a file that exists or one of: {known}")])
    return load_workload(path, format)


def _rescale(text: str) -> float | None:
    if text == "cold":
        return None
    if text == "live":
        return LIVE_RESCALE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidInput([Problem("rescale", text, "must be cold, live, or a number of seconds")])
    return seconds


def _estimate_error(text: str) -> float | None:
    if text in ("exact", "none"):
        return 0.0 if text == "exact" else None
    try:
        error = float(text)
    except ValueError:
        error = -1.0
    if not 0 <= error <= 5:
        raise InvalidInput([Problem("estimates", text, "must be exact, none, or a number from 0 to 5")])
    return error


def _speed_error(text: str) -> float:
    if text in ("measured", "known"):
        return 0.0
    try:
        error = float(text)
    except ValueError:
        error = -1.0
    if not 0 <= error <= 5:
        raise InvalidInput([Problem("speeds", text, "must be measured, known, or a number from 0 to 5")])
    return error
