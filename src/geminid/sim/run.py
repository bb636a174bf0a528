"""Run policies over a workload, several at a time in processes of their own, and turn results into plain data."""

from __future__ import annotations

import importlib.util
import multiprocessing
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.policies.base import Policy
from geminid.policies.registry import make_policy
from geminid.sim.application import Application
from geminid.sim.metrics import summary
from geminid.sim.profiles import built_in_applications, load_applications
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything that determines a result, and nothing that cannot be sent to another process.

    ``profiles`` is a folder of measured applications; None means the built-in ones.
    """

    workload: Workload
    cluster: Cluster
    profiles: Path | None = None
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    timings: bool = True
    stints: bool = False


def applications_of(experiment: Experiment) -> Mapping[str, Application]:
    """The applications that the workload's jobs are made of; none are loaded for opaque jobs."""
    if all(job.duration_s is not None for job in experiment.workload.jobs):
        return {}
    return built_in_applications() if experiment.profiles is None else load_applications(experiment.profiles)


def policy_of(text: str, experiment: Experiment) -> Policy:
    """Build a policy with the defaults that suit the workload: its seed, and rounds where its paper has them."""
    opaque = all(job.duration_s is not None for job in experiment.workload.jobs)
    policy = make_policy(text, load_policy, seed=experiment.seed)
    if not opaque and policy.profiled_defaults:
        return make_policy(text, load_policy, seed=experiment.seed, **policy.profiled_defaults)
    return policy


def simulate(text: str, experiment: Experiment, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Run one policy and summarise it; the name is the text it was asked for by."""
    policy = policy_of(text, experiment)
    simulator = Simulator(
        experiment.workload, applications_of(experiment), experiment.cluster, policy, experiment.settings
    )
    result = simulator.run(progress)
    return {**summary(result, timings=experiment.timings, stints=experiment.stints), "policy": text}


_updates: Any = None


def _begin(updates: Any) -> None:
    global _updates
    _updates = updates


def _simulate_in_process(index: int, text: str, experiment: Experiment) -> dict[str, Any]:
    step = max(1, len(experiment.workload.jobs) // 100)

    def tell(done: int) -> None:
        if done % step == 0:
            _updates.put((index, done))

    return simulate(text, experiment, tell)


def simulate_all(
    texts: Sequence[str], experiment: Experiment, progress: Callable[[int, int], None], workers: int
) -> list[dict[str, Any]]:
    """Run several policies, ``workers`` at a time; ``progress`` is told (policy, finished jobs)."""
    for text in texts:
        policy_of(text, experiment)  # mistakes in options are told before anything runs
    if len(texts) == 1 or workers == 1:
        return [simulate(text, experiment, partial(progress, i)) for i, text in enumerate(texts)]
    context = multiprocessing.get_context("spawn")
    updates = context.Queue()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(updates,)) as pool:
        futures = [pool.submit(_simulate_in_process, i, text, experiment) for i, text in enumerate(texts)]
        while not all(future.done() for future in futures):
            try:
                progress(*updates.get(timeout=0.1))
            except queue.Empty:
                continue
        return [future.result() for future in futures]


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
    return found
