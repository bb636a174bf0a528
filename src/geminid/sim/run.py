"""Run policies over a workload, several at a time in processes of their own, and turn results into plain data."""

from __future__ import annotations

import importlib.util
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from geminid import __version__
from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.gputypes import LinkClass
from geminid.network import Path as NetworkPath
from geminid.policies.base import Policy
from geminid.policies.gavel.timesharing import TimeSharingPolicy
from geminid.policies.registry import make_policy
from geminid.sim.application import Application
from geminid.sim.files import read_data
from geminid.sim.metrics import summary
from geminid.sim.profiles import ThroughputTable, built_in_applications, load_applications, load_throughputs
from geminid.sim.profiles.planspeeds import PlanProfiles, load_plan_profiles
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything that determines a result, and nothing that cannot be sent to another process.

    ``profiles`` is a folder of measured applications, or a table of throughputs for jobs that make steps; None means
    the built-in applications.
    """

    workload: Workload
    cluster: Cluster
    profiles: Path | None = None
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    timings: bool = True
    stints: bool = False


def is_opaque(workload: Workload) -> bool:
    """Whether the inside of no job is known: all run for a time, or make steps at the speed of a table."""
    return all(job.duration_s is not None or job.steps is not None for job in workload.jobs)


def applications_of(experiment: Experiment) -> Mapping[str, Application]:
    """The applications that the workload's jobs are made of; none are loaded for opaque jobs."""
    if is_opaque(experiment.workload):
        return {}
    return built_in_applications() if experiment.profiles is None else load_applications(experiment.profiles)


def throughputs_of(experiment: Experiment) -> ThroughputTable | None:
    """The table of throughputs, where the workload has jobs that make steps and there is one."""
    if experiment.profiles is None or not _reads_throughputs(experiment.workload):
        return None
    return load_throughputs(experiment.profiles)


def plan_profiles_of(experiment: Experiment) -> PlanProfiles | None:
    """Speeds under execution plans, where the workload has jobs with plans."""
    if all(job.plan is None for job in experiment.workload.jobs):
        return None
    if experiment.profiles is None:
        expected = "must be a folder in Rubick's layout: the workload's jobs have execution plans"
        raise InvalidInput([Problem("profiles", NOT_SHOWN, expected)])
    return load_plan_profiles(experiment.profiles)


def _reads_throughputs(workload: Workload) -> bool:
    """Whether there are jobs whose speeds a table like Gavel's has."""
    return any(job.steps is not None and job.plan is None for job in workload.jobs)


def without_unknown(workload: Workload, profiles: Path | None) -> Workload:
    """The workload without the jobs that the table of throughputs has no speed for, and a note that says so.

    Gavel's table has few models on several GPUs, and its older traces many such jobs; it drops them too.
    """
    if profiles is None or not _reads_throughputs(workload):
        return workload
    table = load_throughputs(profiles)
    known = [
        job for job in workload.jobs if job.steps is None or table.knows((job.application or "", job.requested_slots))
    ]
    left_out = len(workload.jobs) - len(known)
    if not known or not left_out:
        return workload
    note = f"{left_out} of {len(workload.jobs)} jobs are left out: {profiles.name} has no throughput of their models"
    return replace(workload, jobs=tuple(known), notes=(*workload.notes, f"{note} on as many slots as they ask for."))


def policy_of(text: str, experiment: Experiment) -> Policy:
    """Build a policy with the defaults that suit the workload: its seed, and rounds where its paper has them."""
    policy = named_policy(text, seed=experiment.seed)
    defaults = policy.traced_defaults if is_opaque(experiment.workload) else policy.profiled_defaults
    return named_policy(text, seed=experiment.seed, **defaults) if defaults else policy


def simulator_of(text: str, experiment: Experiment) -> Simulator:
    """A simulator of one policy."""
    return Simulator(
        experiment.workload,
        applications_of(experiment),
        experiment.cluster,
        policy_of(text, experiment),
        experiment.settings,
        throughputs_of(experiment),
        plan_profiles=plan_profiles_of(experiment),
    )


def simulate(text: str, experiment: Experiment, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Run one policy and summarise it; ``policy`` of the result is the text that named it."""
    simulator = simulator_of(text, experiment)
    result = simulator.run(progress)
    figures = summary(result, timings=experiment.timings, stints=experiment.stints)
    sources = sync_sources(simulator)
    setup = {**setup_of(experiment), **({"sync_times": sources} if sources else {})}
    shared = any(stint.partner is not None for job in result.jobs for stint in job.stints)
    return {**figures, "policy": text, "shared_slots": shared, "setup": setup}


def sync_sources(simulator: Simulator) -> dict[str, dict[str, str]]:
    """Where the synchronisation times of applications come from, on each tier, unless all are as profiled."""
    cluster = simulator.cluster
    links = cluster.links
    if links.as_profiled:
        return {}
    apps = {job.application.value.name: job.application.value for job in simulator.jobs.values() if job.application}

    def source(app: Application, tier: LinkClass) -> str:
        types = [name for name in cluster.nodes_of_type if name in app.limits]
        paths = {name: NetworkPath(tier, links.slowdown(tier, cluster.type_index[name])) for name in types}
        return " or ".join(sorted({app.sync_source(name, path) for name, path in paths.items()}))

    return {name: {tier.value: source(app, tier) for tier in links.tiers} for name, app in sorted(apps.items())}


def setup_of(experiment: Experiment) -> dict[str, Any]:
    """What a result depends on besides the policy, so that results can be compared later."""
    return {
        "geminid": __version__,
        "workload": experiment.workload.name,
        "jobs": len(experiment.workload.jobs),
        "cluster": experiment.cluster.short_form() or experiment.cluster.to_dict(),
        "profiles": experiment.profiles.name if experiment.profiles is not None else "built-in",
        **asdict(experiment.settings),
        "seed": experiment.seed,
    }


_updates: Any = None


def _begin(updates: Any) -> None:
    global _updates
    _updates = updates


def _simulate_in_process(index: int, text: str, experiment: Experiment) -> dict[str, Any]:
    step = max(1, len(experiment.workload.jobs) // 100)

    def report(done: int) -> None:
        if done % step == 0:
            _updates.put((index, done))

    return simulate(text, experiment, report)


def simulate_all(
    texts: Sequence[str], experiment: Experiment, progress: Callable[[int, int], None], workers: int
) -> list[dict[str, Any]]:
    """Run several policies, ``workers`` at a time; ``progress`` is called with (policy, finished jobs)."""
    return simulate_tasks([(text, experiment) for text in texts], progress, workers)


def simulate_tasks(
    tasks: Sequence[tuple[str, Experiment]], progress: Callable[[int, int], None], workers: int
) -> list[dict[str, Any]]:
    """Run policies in experiments, ``workers`` at a time; ``progress`` is called with (task, finished jobs)."""
    for text, experiment in tasks:
        policy_of(text, experiment)  # mistakes in options are reported before anything runs
    if len(tasks) == 1 or workers == 1:
        return [simulate(text, experiment, partial(progress, i)) for i, (text, experiment) in enumerate(tasks)]
    context = multiprocessing.get_context("spawn")
    updates = context.Queue()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(updates,)) as pool:
        futures = [pool.submit(_simulate_in_process, i, *task) for i, task in enumerate(tasks)]
        while not all(future.done() for future in futures):
            try:
                progress(*updates.get(timeout=0.1))
            except queue.Empty:
                continue
        return [future.result() for future in futures]


def named_policy(text: str, **defaults: Any) -> Policy:
    """The policy of this name: built in, or a class in a file, with options that may name files."""
    policy = make_policy(text, load_policy, lambda path: read_data(Path(path)), **defaults)
    if isinstance(policy, TimeSharingPolicy):
        policy.measure_by(time.monotonic)
    return policy


def load_policy(text: str) -> type[Policy]:
    """A user's own policy: ``path/to/file.py:Class``."""
    path_text, _, class_name = text.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise InvalidInput([Problem("policy", path_text, "must be a Python file that exists")])
    specification = importlib.util.spec_from_file_location(f"geminid_user_policy_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses with string annotations look them up there
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        reason = f"cannot be imported ({type(error).__name__}: {error})"
        raise InvalidInput([Problem(f"policy file {path}", NOT_SHOWN, reason)]) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        names = [
            n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Policy) and v is not Policy
        ]
        known = ", ".join(names) or "none"
        raise InvalidInput(
            [Problem("policy class", class_name, f"must be a subclass of Policy in {path}, which has: {known}")]
        )
    if not isinstance(getattr(found, "name", None), str):
        raise InvalidInput([Problem(f"policy class {class_name}", NOT_SHOWN, 'must have a name = "…"')])
    if found.__abstractmethods__:
        lacking = ", ".join(sorted(found.__abstractmethods__))
        raise InvalidInput([Problem(f"policy class {class_name}", NOT_SHOWN, f"must define {lacking}")])
    return found
