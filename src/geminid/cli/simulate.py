"""``geminid simulate``, ``policies`` and ``workloads``: for researchers."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from geminid.cli.clusterfile import read_cluster
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table
from geminid.fields import NOT_SHOWN, InvalidInput, Problem, suggestion
from geminid.sim.reasons import is_named

if TYPE_CHECKING:
    from geminid.cluster import Cluster
    from geminid.policies.base import Policy
    from geminid.sim.workload import Workload

#: What a change of slots costs with live rescaling: processes stay, state comes from a peer.
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

#: The file that stands for the command's output.
TO_OUTPUT = Path("-")

#: The table of results. What is left out first where there is little room has the highest number.
RESULT_COLUMNS = (
    Column("policy", text=True, least=24),
    Column("avg JCT"),
    Column("median", 1),
    Column("p99", 3),
    Column("makespan", 2),
    Column("queued", 7),
    Column("rescales per job", 5),
    Column("GPU hours", 8),
    Column("util.", 6),
    Column("worst FTF", 4),
    Column("unfair", 11),
    Column("ms per decision", 9),
    Column("wall", 10),
)

#: … of workloads with deadlines.
DEADLINE_COLUMNS = (Column("late", 1), Column("cost", 8))

#: What can be chosen of a what-if; all else comes from the service.
OF_WHAT_IFS = frozenset(
    ("from_live", "cluster", "policy", "adaptive", "rescale", "json_file", "report", "timings", "wide")
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
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two earlier results instead of simulating."),
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
    if from_live and (alien := [option for name, option in given.items() if name not in OF_WHAT_IFS]):
        expected = "cannot be given with --from-live, where the jobs and how they run are those of the service"
        raise InvalidInput([Problem(option, NOT_SHOWN, expected) for option in alien])
    if json_file == TO_OUTPUT:
        usual, console.file = console.file, sys.stderr
        context.call_on_close(lambda: setattr(console, "file", usual))
    for option, path in (("json", json_file), ("report", report)):
        if path not in (None, TO_OUTPUT) and (path.is_dir() or not path.resolve().parent.is_dir()):
            expected = "must be a file, not a folder" if path.is_dir() else "must be in a folder that exists"
            raise InvalidInput([Problem(option, str(path), expected)])
    if compare is not None:
        _compare(*compare, json_file)
        return
    if from_live:
        _what_if(
            cluster=read_cluster(cluster) if "cluster" in given else None,
            policies=_split_policies(policy) if "policy" in given else None,
            adaptive=adaptive,
            rescale_s=_rescale(rescale),
            json_file=json_file,
            report=report,
            timings=timings,
        )
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from geminid.sim.run import Experiment, simulate_all, without_unknown
    from geminid.sim.simulator import NoProgress, Settings

    chosen = without_unknown(_workload(workload, format, seed, load), profiles)
    experiment = Experiment(
        workload=chosen,
        cluster=read_cluster(cluster),
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
        ),
        seed=seed,
        timings=timings,
        stints=report is not None,
    )
    texts = _adaptive(_split_policies(policy)) if adaptive else _split_policies(policy)
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
    if json_file is not None:
        _write_json(json_file, results)
    _print_results(chosen, experiment.cluster.total_slots, results)
    if report is not None:
        _write_report(report, chosen, experiment.cluster, results, seed)
    if any(r["unfinished_jobs"] for r in results):
        raise typer.Exit(1)


def _given(context: typer.Context) -> dict[str, str]:
    """The parameters that were typed, with the names of their options."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name is not None and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
    }


def _write_json(path: Path, results: list[dict[str, Any]]) -> None:
    plain = [{**r, "per_job": [_without_stints(job) for job in r["per_job"]]} for r in results]
    _write(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    if path == TO_OUTPUT:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def _write_report(
    path: Path, workload: Workload, cluster: Cluster, results: list[dict[str, Any]], seed: int | None
) -> None:
    from geminid.sim.report import write_report

    write_report(path, workload=workload, cluster=cluster, results=results, seed=seed)
    console.print(f"Report: {path.resolve().as_uri()} (open it in a browser)")


def _without_stints(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key != "stints"}


def _what_if(
    *,
    cluster: Cluster | None,
    policies: list[str] | None,
    adaptive: bool,
    rescale_s: float | None,
    json_file: Path | None,
    report: Path | None,
    timings: bool,
) -> None:
    """Simulate what the live jobs have left to do, perhaps under other policies or on another cluster."""
    from geminid.cli.client import client, give_up, reporting_trouble
    from geminid.cluster import Cluster
    from geminid.serve.forecast import can_start, restrained
    from geminid.serve.livejob import job_from_dict
    from geminid.serve.translation import fits
    from geminid.serve.whatif import from_now, what_if
    from geminid.sim.metrics import summary
    from geminid.sim.simulator import NoProgress

    with reporting_trouble():
        told = client().get("snapshot")
    texts = policies or [told["policy"]]
    texts = _adaptive(texts) if adaptive else texts
    jobs = [job_from_dict(plain) for plain in told["jobs"]]
    if cluster is None and told["cluster"] is None:
        give_up("nothing of the cluster is in service (`geminid nodes` shows why); --cluster simulates another one")
    chosen = cluster or Cluster.from_dict(told["cluster"])
    quotas, borrowers = told["quotas"], frozenset(told["may_borrow"])
    never = {
        job.id
        for job in jobs
        if job.wants_slots
        and not (fits(job, chosen) and can_start(job, chosen, quotas.get(job.id, {}), borrowers.__contains__))
    }
    world = what_if([job for job in jobs if job.id not in never], chosen, told["now_s"], rescale_s=rescale_s)
    if never:
        names = ", ".join(sorted(never))
        console.print(f"[yellow]note:[/] left out, for they need more slots than they can have: {names}")
    if not world.workload.jobs:
        if json_file is not None:
            _write_json(json_file, [])
        unwritten = "" if report is None else ", and no report to write"
        console.print(f"no jobs are waiting or running: there is nothing to simulate{unwritten}")
        return
    results = []
    for text in texts:
        policy_here = restrained(
            text,
            jobs,
            told["now_s"],
            lambda job_id: quotas.get(job_id, {}),
            borrowers.__contains__,
            told["patience_s"],
        )
        try:
            result = world.simulator(chosen, policy_here).run()
        except NoProgress as problem:
            give_up(str(problem))
        results.append({**summary(from_now(result), timings=timings, stints=report is not None), "policy": text})
    if json_file is not None:
        _write_json(json_file, results)
    _print_results(world.workload, chosen.total_slots, results)
    rows = [
        [job["name"], *(_hours(result["per_job"][i]["jct_s"]) for result in results)]
        for i, job in enumerate(results[0]["per_job"])
    ]
    print_table("Finished after", ["job", *(_label(result["policy"]) for result in results)], rows)
    if world.guessed:
        names = ", ".join(sorted(world.guessed))
        console.print(f"[yellow]note:[/] how long these take is a guess: {names}")
    if report is not None:
        _write_report(report, world.workload_from_now, chosen, results, None)
    if any(r["unfinished_jobs"] for r in results):
        raise typer.Exit(1)


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


def _print_results(workload: Workload, slots: int, results: list[dict[str, Any]]) -> None:
    for note in workload.notes:
        console.print(f"[yellow]note:[/] {note}")
    late = any(r["deadlines_missed"] is not None for r in results)
    header = [*RESULT_COLUMNS, *(DEADLINE_COLUMNS if late else ())]
    best = min((r["avg_jct_s"] for r in results if r["avg_jct_s"] is not None), default=None)
    rows = []
    for r in results:
        average = _hours(r["avg_jct_s"])
        rows.append(
            [
                _label(r["policy"]),
                f"[green]{average}[/]" if r["avg_jct_s"] == best and len(results) > 1 else average,
                _hours(r["median_jct_s"]),
                _hours(r["p99_jct_s"]),
                _hours(r["makespan_s"]),
                _hours(r["avg_queue_s"]),
                _number(r["rescales_per_job"], 1),
                _number(r["gpu_hours"], 0),
                _percent(r["utilization"]),
                _number(r["worst_ftf"], 1),
                _percent(r["unfair_fraction"]),
                _number(r["decision_ms_mean"], 1),
                "–" if r["wall_s"] is None else f"{r['wall_s']:.1f} s",
                *([_late(r), _number(r["cost"], 1)] if late else []),
            ]
        )
    print_table(f"{workload.name}: {len(workload.jobs)} jobs on {slots} slots", header, rows)
    for r in results:
        if r["rejected_decisions"]:
            text = f"{r['policy']}: {r['rejected_decisions']} decisions were invalid and not used"
            console.print(f"[yellow]{escape(text)} ({escape(r['rejected_because'])})[/]")
        if r["unfinished_jobs"]:
            console.print(f"[red]{escape(r['policy'])}: {r['unfinished_jobs']} jobs never finished[/]")
        for reason, jobs in r["reasons"].items():
            if is_named(reason):
                console.print(f"[yellow]{escape(_label(r['policy']))}: {escape(reason)} (jobs: {jobs})[/]")


def _late(result: Mapping[str, Any]) -> str:
    """Missed deadlines, of how many."""
    return f"{result['deadlines_missed']} of {sum(job['met'] is not None for job in result['per_job'])}"


def _label(policy: str) -> str:
    """A policy as it is shown: a user's own by its class, without the path."""
    return policy.rpartition(".py:")[2]


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


_COMPARED = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s", "gpu_hours", "rescales_per_job")


def _compare(first: Path, second: Path, json_file: Path | None) -> None:
    """Aggregate and per-job differences between two result files; all jobs go to ``json_file``, if there is one."""
    a, b = _read_results(first), _read_results(second)
    pairs = [(x, y) for x in a for y in b if x["policy"] == y["policy"]] or [(a[0], b[0])]
    if json_file is not None:
        differences = [_differences(x, y) for x, y in pairs]
        _write(json_file, json.dumps(differences, indent=1, allow_nan=False) + "\n")
    for x, y in pairs:
        rows = []
        for key in _COMPARED:
            old, new = x[key], y[key]
            change = "–" if not old or new is None else f"{100 * (new / old - 1):+.1f} %"
            rows.append([key, _number(old, 2), _number(new, 2), change])
        print_table(
            f"{x['policy']} ({first.name}) → {y['policy']} ({second.name})", ["", "first", "second", "change"], rows
        )
        differ = [key for key in x.get("setup", {}) if y.get("setup", {}).get(key) != x["setup"][key]]
        if differ and "setup" in y:
            console.print(f"[yellow]The two runs differ in more than the policy: {', '.join(differ)}.[/]")
        done = sorted(_in_both(x, y), key=lambda pair: pair[1]["jct_s"] - pair[0]["jct_s"])
        if not done:
            console.print(
                "[yellow]The two files have no job in common: the figures above are of different workloads.[/]"
            )
            continue
        shown = done[:5] + done[-5:] if len(done) > 10 else done
        print_table(
            f"Jobs that gained and lost most, of {len(done)} in both",
            ["job", "first", "second", "difference", "ratio"],
            [
                [
                    p["name"],
                    _hours(p["jct_s"]),
                    _hours(q["jct_s"]),
                    f"{q['jct_s'] - p['jct_s']:+,.0f} s",
                    f"{q['jct_s'] / p['jct_s']:.2f}×",
                ]
                for p, q in shown
            ],
        )


def _in_both(x: dict[str, Any], y: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Jobs that are in both results and finished in both."""
    before = {job["name"]: job for job in x["per_job"]}
    pairs = [(before[job["name"]], job) for job in y["per_job"] if job["name"] in before]
    return [(p, q) for p, q in pairs if p["jct_s"] and q["jct_s"]]


def _differences(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return {
        "policies": [x["policy"], y["policy"]],
        **{key: {"first": x[key], "second": y[key]} for key in _COMPARED},
        "per_job": [
            {"name": p["name"], "first_jct_s": p["jct_s"], "second_jct_s": q["jct_s"]} for p, q in _in_both(x, y)
        ],
    }


def _read_results(path: Path) -> list[dict[str, Any]]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        expected = f"must be a file that can be read ({error.strerror})"
        raise InvalidInput([Problem("compare", str(path), expected)]) from None
    except ValueError:
        results = None
    if not (
        isinstance(results, list)
        and results
        and all(isinstance(r, dict) and {*_COMPARED, "policy", "per_job"} <= set(r) for r in results)
    ):
        raise InvalidInput([Problem("compare", str(path), "must be a file written by geminid simulate --json")])
    return results


def policies(
    name: Annotated[str | None, typer.Argument(help="Only this one, with what its options may be.")] = None,
    wide: WideOption = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print a list for programs.")] = False,
) -> None:
    """List the built-in policies with their papers, objectives and options, or describe one of them."""
    from geminid.policies.options import describe
    from geminid.policies.registry import BUILT_IN, options_of

    if name is not None and name not in BUILT_IN:
        expected = f"must be a built-in policy: {', '.join(sorted(BUILT_IN))}{suggestion(name, BUILT_IN)}"
        raise InvalidInput([Problem("policy", name, expected)])
    rows: list[dict[str, Any]] = [
        {
            "name": key,
            "paper": policy.paper,
            "objective": policy.objective,
            "explanation": _explanation(policy),
            "live": not policy.not_live,
            "not_live_because": policy.not_live or None,
            "options": [
                {
                    "name": o.name,
                    "default": o.default,
                    "kind": describe(o.kind),
                    "meaning": policy.meanings.get(o.name, ""),
                }
                for o in options_of(policy)
            ],
        }
        for key, policy in sorted(BUILT_IN.items())
        if name in (None, key)
    ]
    if json_output:
        print_json(rows)
        return
    if name is not None:
        told = rows[0]
        console.print(escape(f"{name}: {told['objective']}\n{told['paper']}\n\n{told['explanation']}"))
        if not told["live"]:
            console.print(escape(f"In simulations only: {told['not_live_because']}."))
        if told["options"]:
            console.print("\nOptions, with their defaults:")
        for option in told["options"]:
            meant = f"{option['meaning']} ({option['kind']})" if option["meaning"] else option["kind"]
            console.print(escape(f"  {option['name']}={_shown(option['default'])}: {meant}"))
        return
    print_table(
        "Built-in policies",
        [
            Column("policy", text=True),
            Column("paper", 2, text=True, least=16),
            Column("objective", 1, text=True, least=28),
            Column("options (default)", 3, text=True, least=24),
        ],
        [
            [
                r["name"],
                r["paper"],
                r["objective"],
                ", ".join(f"{o['name']}={_shown(o['default'])}" for o in r["options"]) or "–",
            ]
            for r in rows
        ],
    )
    console.print("`geminid policies NAME` describes one of them, with its options.")
    console.print("One of each kind, side by side: geminid simulate --policy selection --report policies.html.")
    console.print("Your own: --policy path/to/file.py:Class (docs/writing-a-policy.md).")


#: Paragraphs of a module's docstring that explain its policy.
EXPLAINING_PARAGRAPHS = 3


def _explanation(policy: type[Policy]) -> str:
    """What a policy does, in a few sentences: what its class says, or the beginning of what its module says."""
    text = inspect.cleandoc(policy.__doc__ or "")
    if "see the module's docstring" in text:
        text = inspect.cleandoc(sys.modules[policy.__module__].__doc__ or "")
    paragraphs = text.replace("``", "").split("\n\n")[:EXPLAINING_PARAGRAPHS]
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _shown(value: Any) -> str:
    return ";".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value).lower()


def workloads(
    wide: WideOption = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print a list for programs.")] = False,
) -> None:
    """List the built-in workloads and the file formats."""
    from geminid.sim.workloads import FORMATS
    from geminid.sim.workloads.generate import BUILT_IN_WORKLOADS

    built_in: list[dict[str, Any]] = [
        {"name": w.name, "jobs": w.jobs, "hours": w.hours, "description": w.description}
        for w in BUILT_IN_WORKLOADS.values()
    ]
    if json_output:
        print_json(built_in)
        return
    print_table(
        "Built-in workloads",
        ["workload", "description", "jobs", "hours"],
        [[w["name"], w["description"], f"{w['jobs']:,}", f"{w['hours']:g}"] for w in built_in],
        text_columns=2,
    )
    print_table(
        "File formats", ["format", "description"], [[f.name, f.description] for f in FORMATS.values()], text_columns=2
    )
