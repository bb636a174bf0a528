"""How fast thousands of jobs are refitted, against scipy's general minimiser, at which loss.

The baseline is ``scipy.optimize.minimize`` (L-BFGS-B, numerical gradients) on the same loss with the same bounds and
priors, from Pollux's published starting point, on a sample of the same jobs in the same run. It reads the loss from
plain numpy formulas for one job, as one would write them by hand; both results are judged by those. Our own model has
no baseline: its time is given for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from geminid.bench.timing import timed
from geminid.goodput.fit import fit_many
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import MODELS, Shape

#: Jobs that scipy fits, to be timed.
SCIPY_JOBS = 25

#: … in a quick run.
QUICK_SCIPY_JOBS = 6

#: A mean loss that is higher than scipy's by less than this counts as equal.
WORSE_LOSS = 1e-6

#: Refitting is at least this many times as fast as scipy's minimiser.
TIMES_FASTER = 20.0


@dataclass(frozen=True, slots=True)
class FitRow:
    """CPU time to refit all jobs with one model, beside the baseline (for Pollux's) extrapolated from a sample."""

    model: str
    jobs: int
    observations_per_job: str
    cpu_s: float
    scipy_cpu_s: float | None = None
    times_faster: float | None = None
    mean_loss: float | None = None
    scipy_mean_loss: float | None = None
    worst_loss_excess: float | None = None


def run(*, jobs: int = 1_000, sampled_jobs: int = SCIPY_JOBS, seed: int = 0) -> list[FitRow]:
    """Refit ``jobs`` jobs with noisy measurements of 4 to 32 configurations each."""
    rng = np.random.default_rng(seed)
    profiles = [random_profile(rng) for _ in range(jobs)]
    sample = profiles[:sampled_jobs]
    _, cpu_s, fits = timed(lambda: fit_many(profiles, "pollux"))
    _, sample_s, reference = timed(lambda: [_scipy_fit(profile) for profile in sample])
    scipy_s = sample_s * jobs / sampled_jobs
    losses = [_scipy_problem(profile)[0] for profile in sample]
    ours = [
        loss(np.array(_unraised(fitted.parameters, profile)))
        for loss, fitted, profile in zip(losses, fits, sample, strict=False)
    ]
    theirs = [loss(np.array(parameters)) for loss, parameters in zip(losses, reference, strict=True)]

    topology_s = timed(lambda: fit_many(profiles, "geminid")).cpu_s
    size = "4 to 32"
    return [
        FitRow(
            "pollux",
            jobs,
            size,
            cpu_s,
            scipy_s,
            scipy_s / cpu_s,
            float(np.mean(ours)),
            float(np.mean(theirs)),
            float(np.max(np.array(ours) - np.array(theirs))),
        ),
        FitRow("geminid", jobs, size, topology_s),
    ]


def random_profile(rng: np.random.Generator) -> Profile:
    """Measurements, noisy by 3 %, of random configurations of a job that follows Pollux's model."""
    truth = np.array([*np.exp(rng.normal(np.log([0.1, 0.002, 0.08, 0.004, 0.03, 0.002]), 0.6)), rng.uniform(1.0, 6.0)])
    observations = []
    for _ in range(int(rng.integers(4, 33))):
        nodes = int(rng.integers(1, 5))
        slots = nodes * int(rng.integers(1, 5))
        batch = int(2 ** rng.integers(3, 9))
        times = MODELS["pollux"].step_times(truth, Shape.of(nodes, slots, batch))
        noise = np.exp(rng.normal(0.0, 0.03, 2))
        observations.append(
            Observation(
                nodes=nodes,
                slots=slots,
                busiest_node_slots=-(-slots // nodes),
                per_slot_batch=batch,
                accumulation_s=float(times.accumulation_s) * noise[0],
                step_s=float(times.step_s) * noise[1],
            )
        )
    return Profile.of(observations)


def _unraised(parameters: tuple[float, ...], profile: Profile) -> tuple[float, ...]:
    """The minimiser's own parameters: what is assumed about links that were never seen is put on top of them."""
    if any(seen.nodes > 1 for seen in profile.observations):
        return parameters
    return (*parameters[:2], 1e-8, 1e-8, *parameters[4:])


def _scipy_fit(profile: Profile) -> tuple[float, ...]:
    """Pollux's fit with a general minimiser and numerical gradients."""
    loss, start, bounds = _scipy_problem(profile)
    result = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    return tuple(float(x) for x in result.x)


def _scipy_problem(
    profile: Profile,
) -> tuple[Callable[[np.ndarray], float], np.ndarray, list[tuple[float, float]]]:
    rows = profile.observations
    nodes, slots, batch = (np.array([getattr(r, n) for r in rows], float) for n in ("nodes", "slots", "per_slot_batch"))
    log_pass, log_step = (np.log([getattr(r, n) for r in rows]) for n in ("accumulation_s", "step_s"))

    def loss(p: np.ndarray) -> float:
        grad_s = p[0] + p[1] * batch
        beyond = np.maximum(slots - 2.0, 0.0)
        sync_s = np.where(nodes == 1, p[4] + p[5] * beyond, p[2] + p[3] * beyond)
        sync_s = np.where(slots == 1, 1e-12, sync_s)
        step_s = (grad_s ** p[6] + sync_s ** p[6]) ** (1.0 / p[6])
        return float(
            np.sqrt(np.mean((np.log(grad_s) - log_pass) ** 2))
            + np.sqrt(np.mean((np.log(step_s) - log_step) ** 2))
            + 1e-3 * (p[6] - 1.0) ** 2
            + 1e-2 * ((p[3] / p[2]) ** 2 + (p[5] / p[4]) ** 2)
        )

    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    bounds = [(1e-8, 1e4)] * 6 + [(1.0, 10.0)]
    fixed: dict[int, float] = {}
    if len(set(batch)) == 1:
        fixed[0] = float(np.exp(log_pass).mean() / 2)
    if not (nodes > 1).any():
        fixed |= {2: 1e-8, 3: 1e-8}
    if not ((nodes == 1) & (slots > 1)).any():
        fixed |= {4: 1e-8, 5: 1e-8}
    if not (slots > 2).any():
        fixed |= {3: 1e-8, 5: 1e-8}
    for index, value in fixed.items():
        start[index] = value
        bounds[index] = (value, value)
    return loss, start, bounds
