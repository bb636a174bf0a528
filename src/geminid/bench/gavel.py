"""Gavel's own simulations, to repeat: three traces under all its policies, and one load of its Figure 8.

The figures are those that its published simulator gives (``gavel/results/summary.csv`` beside its traces and tables).
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from geminid.job import Adaptivity
from geminid.policies.registry import BUILT_IN
from geminid.sim.profiles import load_throughputs
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import load_workload

#: How near ours should be: optimal fractions are not unique, and mean JCTs spread by as much between solvers.
TOLERANCE = 0.04

TABLE = "gavel/simulation_throughputs.json"
_PHYSICAL = "v100:8x1,p100:16x1,k80:24x1"

#: Where each set of results comes from.
SETS = {
    "A": ("gavel/traces/physical_cluster/max_min_fairness.trace", _PHYSICAL),
    "B": ("gavel/traces/physical_cluster/minimize_makespan.trace", _PHYSICAL),
    "C": ("gavel/traces/generated/continuous_single_300_seed0.trace", "v100:12x1,p100:12x1,k80:12x1"),
}

#: Names that differ. Its own ``fifo`` never uses the GPU type that it draws; what it should do is compared instead.
OUR_NAMES = {"fifo-fixed": "fifo_agnostic", "gandiva": "gandiva_packed"}
_DEFECT = "fifo"

#: Figure 8: jobs per hour, and which of them are measured. Later ones only keep the load up until those are done.
FIGURE_8_JOBS_PER_HOUR = 4.4
FIGURE_8_MEASURED = range(4000, 5000)
FIGURE_8_JOBS = 6500
FIGURE_8_CLUSTER = "v100:36x1,p100:36x1,k80:36x1"

#: What its generator chooses from: models and their batch sizes per GPU, in the order in which it draws them.
_MODELS = (
    ("ResNet-18", (16, 32, 64, 128, 256)),
    ("ResNet-50", (16, 32, 64, 128)),
    ("Transformer", (16, 32, 64, 128, 256)),
    ("LM", (5, 10, 20, 40, 80)),
    ("Recommendation", (512, 1024, 2048, 4096, 8192)),
    ("A3C", ()),
    ("CycleGAN", ()),
)


@dataclass(frozen=True, slots=True)
class GavelResult:
    """One simulation of the published code."""

    policy: str
    set: str
    avg_jct_s: float
    makespan_s: float


def published(peers: Path) -> Iterator[GavelResult]:
    """Its results with default settings, for policies that we have."""
    path = peers / "gavel/results/summary.csv"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            usual = (row["round_s"], row["min_reset_s"], row["solver"]) == ("360", "1920", "ECOS")
            name = OUR_NAMES.get(row["policy"], row["policy"])
            if usual and name in BUILT_IN and row["policy"] != _DEFECT and row["code"] != "POP":
                hours = float(row["avg_jct_h"]), float(row["makespan_h"])
                yield GavelResult(name, row["set"], 3600 * hours[0], 3600 * hours[1])


def workload_of(peers: Path, name: str) -> Workload:
    """The workload of a set of results."""
    return figure_8(peers) if name == "F44" else load_workload(peers / SETS[name][0])


def figure_8(peers: Path, *, jobs_per_hour: float = FIGURE_8_JOBS_PER_HOUR, jobs: int = FIGURE_8_JOBS) -> Workload:
    """Single-GPU jobs of a Poisson process, drawn as Gavel's generator draws them with seed 0.

    Durations on a V100 are 10^U(1.5, 3) minutes for four fifths of the jobs and 10^U(3, 4) for the rest; the models
    are equally likely. The first draw of each job is the size of its gang, which is not used here.
    """
    table = load_throughputs(peers / TABLE)
    models = [f"{model} (batch size {size})" if size else model for model, sizes in _MODELS for size in sizes or (0,)]
    draw, gap = random.Random(2), random.Random(3)
    result, arrival_s = [], 0.0
    for number in range(jobs):
        draw.uniform(0, 1)
        minutes = 10 ** (draw.uniform(3, 4) if draw.random() >= 0.8 else draw.uniform(1.5, 3))
        model = draw.choice(models)
        result.append(
            TraceJob(
                name=f"job-{number}",
                submit_s=arrival_s,
                requested_slots=1,
                application=model,
                steps=int(60 * minutes * table.alone((model, 1), "v100")),
                adaptivity=Adaptivity.RIGID,
            )
        )
        arrival_s -= math.log(1.0 - gap.random()) * 3600 / jobs_per_hour
    return Workload(f"figure 8, {jobs_per_hour:g} jobs/h", tuple(result))
