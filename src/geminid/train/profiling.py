"""Profile a training script: run it on changing slots and batch plans, and fit the goodput model to what it reports.

The script runs as under a scheduler, with live rescales from one number of slots to the next. On every number of slots
some per-slot batches are visited, in several rounds forwards and backwards, so that other load on the machine slows all
of them down alike. The middle one is held out from the fit and then predicted. The result can be written in the layout
that the simulator reads (``docs/profiles.md``).
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from geminid.clock import Clock
from geminid.goodput.batchplan import BatchLimits, TunedPlan, best_plan
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit, fit
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import Shape
from geminid.process.zygote import Zygote
from geminid.supervise.events import JobEvent, JobPhase
from geminid.supervise.protocol import Plan, Progress, Ready
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor

#: How many per-slot batches are visited on each number of slots.
BATCHES_PER_SIZE = 4

#: Time between two reports of a profiled script.
REPORT_S = 0.25

#: Fewest reports of a visit.
FEWEST_REPORTS = 2

#: Most rounds through all slots and batches.
ROUNDS = 4

#: The name of the workload file that is written beside a profile.
WORKLOAD = "workload.yaml"

#: Longest time to wait for the reports of a visit: then the script is too slow to be profiled.
LONGEST_VISIT_S = 120.0


class ProfilingFailed(Exception):
    """The script could not be profiled; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Step times on some slots with one plan, and the fit's prediction for them."""

    slots: int
    plan: Plan
    accumulation_s: float
    step_s: float
    steps: int
    held_out: bool
    predicted_s: float = math.nan

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive if the predicted step is too slow."""
        return self.predicted_s / self.step_s - 1.0

    def observation(self) -> Observation:
        """The visit as input of the fit."""
        return Observation(
            nodes=1,
            slots=self.slots,
            per_slot_batch=self.plan.per_slot_batch,
            accumulation_s=self.accumulation_s,
            step_s=self.step_s,
            busiest_node_slots=self.slots,
        )


@dataclass(frozen=True, slots=True)
class Outlook:
    """The best batch plan on a number of slots."""

    slots: int
    measured: bool
    plan: TunedPlan
    speedup: float


@dataclass(frozen=True, slots=True)
class ScriptProfile:
    """What was measured of a script, the fit to it, and what the fit predicts."""

    ready: Ready
    limits: BatchLimits
    visits: tuple[Visit, ...]
    fitted: ThroughputFit
    gradient: GradientStats
    noise_known: bool
    outlooks: tuple[Outlook, ...]

    def mean_error(self, *, held_out: bool) -> float:
        """Mean absolute relative error of the predicted step times; NaN if there are none."""
        errors = [abs(visit.error) for visit in self.visits if visit.held_out == held_out]
        return sum(errors) / len(errors) if errors else math.nan

    @property
    def noise_scale(self) -> float:
        """φ in samples."""
        return self.gradient.noise_scale(self.limits.initial)


def sizes_up_to(slots: int) -> list[int]:
    """The numbers of slots that are visited: powers of two, and the largest."""
    return sorted({2**i for i in range(slots.bit_length())} | {slots})


def plans_for(limits: BatchLimits, slots: int) -> list[Plan]:
    """Per-slot batches to visit on a number of slots, from large to small; totals stay between M0 and M_max."""
    largest = min(limits.largest_per_slot, limits.largest // slots)
    plans = []
    for number in range(BATCHES_PER_SIZE):
        batch = largest >> number
        if batch < limits.smallest_per_slot:
            break
        passes = max(1, math.ceil(limits.initial / (slots * batch)))
        if slots * batch * passes <= limits.largest:
            plans.append(Plan(batch, passes - 1))
    return plans


def profile_script(
    command: Sequence[str],
    *,
    slots: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    slot_environment: Callable[[str], Mapping[str, str]] = lambda slot: {},
    progress: Callable[[str], None] = lambda text: None,
) -> ScriptProfile:
    """Run a script for about this many seconds (besides its start), and predict how fast it is on how many slots.

    Raises:
        ProfilingFailed: the script does not use ``geminid.init()``, or fails, or is too slow.
    """
    clock, reports = Clock(), list[Progress]()

    def on_event(event: JobEvent) -> None:
        if isinstance(event, Progress):
            reports.append(event)

    with tempfile.TemporaryDirectory(prefix="geminid-") as folder, Zygote(preload="geminid.train.preload") as launcher:
        spec = WorkerSpec(
            command=tuple(command),
            folder=Path(folder),
            working_folder=Path.cwd(),
            name="the script",
            environment=dict(os.environ if environment is None else environment),
            slot_environment=slot_environment,
            max_failures=0,
            report_s=REPORT_S,
            patience=Patience(hang=60.0),
        )
        with Supervisor(spec, on_event=on_event, launcher=launcher) as job:
            try:
                visits, ready, limits = _visit_all(job, reports, slots, seconds, progress, clock)
            except (TimeoutError, ProfilingFailed) as problem:
                raise ProfilingFailed(f"{problem}; its last output: {_last_output(spec.folder)}") from None
    return _fitted(visits, ready, limits, reports)


def _visit_all(
    job: Supervisor,
    reports: list[Progress],
    slots: Sequence[str],
    seconds: float,
    progress: Callable[[str], None],
    clock: Clock,
) -> tuple[list[Visit], Ready, BatchLimits]:
    progress("starting the script")
    job.resize([slots[0]])
    status = job.wait(lambda status: status.settled, 300.0)
    if status.ready is None or status.phase.over:
        silent = "it must call geminid.init()" if status.phase is JobPhase.FINISHED else "it printed no reason"
        raise ProfilingFailed(f"the script {status.phase} before it trained: {status.reason or silent}")
    ready = status.ready
    limits = BatchLimits(
        initial=ready.initial_batch,
        largest=ready.largest_batch,
        smallest_per_slot=ready.smallest_per_slot,
        largest_per_slot=ready.largest_per_slot,
    )
    stops = [(size, plan) for size in sizes_up_to(len(slots)) for plan in plans_for(limits, size)]
    if not stops:
        raise ProfilingFailed("the script's batch limits leave nothing to measure")
    reported: dict[tuple[int, Plan], list[Progress]] = {stop: [] for stop in stops}
    begin_s = round_s = clock.monotonic_s()
    for number in range(ROUNDS):
        for size, plan in stops if number % 2 == 0 else reversed(stops):
            progress(f"round {number + 1}: {size} slots, {plan.per_slot_batch} samples on each")
            reported[size, plan] += _visit(job, reports, slots[:size], plan, seconds / (ROUNDS * len(stops)))
            if job.status.phase.over:
                break
        now_s = clock.monotonic_s()
        if job.status.phase.over or now_s + (now_s - round_s) > begin_s + 1.25 * seconds:
            break  # another round would take too long
        round_s = now_s
    visits = [
        _medians(size, plan, own, held_out=_held_out(plans_for(limits, size), plan))
        for (size, plan), own in reported.items()
        if own
    ]
    if not visits:
        raise ProfilingFailed(f"the script {job.status.phase} before a step was timed: let it train longer")
    return visits, ready, limits


def _held_out(plans: Sequence[Plan], plan: Plan) -> bool:
    """Whether the fit is to predict this one: the middle of several."""
    return len(plans) > 2 and plans.index(plan) == len(plans) // 2


def _visit(
    job: Supervisor, reports: list[Progress], slots: Sequence[str], plan: Plan, seconds: float
) -> list[Progress]:
    """Train on these slots with one plan for a while; the reports, none if the script ended first."""
    size = len(slots)
    if len(job.status.slots) != size:
        job.resize(slots)
        job.wait(lambda status: status.settled and len(status.slots) == size, 300.0)
    job.retune(plan)
    known = len(reports)

    def timed() -> list[Progress]:
        new = reports[known:]
        return [report for report in new if report.size == size and report.plan == plan and report.step_s is not None]

    status = job.wait(lambda status: len(timed()) >= FEWEST_REPORTS, LONGEST_VISIT_S)
    left_s = seconds - len(timed()) * REPORT_S
    if left_s > 0 and not status.phase.over:
        enough = len(timed()) + max(1, round(left_s / REPORT_S))
        with contextlib.suppress(TimeoutError):  # fewer reports are enough
            job.wait(lambda status: len(timed()) >= enough, 2.0 * left_s)
    return timed()


def _medians(size: int, plan: Plan, reports: Sequence[Progress], *, held_out: bool) -> Visit:
    """Medians over all reports, because single steps may be slow."""
    return Visit(
        slots=size,
        plan=plan,
        accumulation_s=median(report.accumulation_s for report in reports if report.accumulation_s is not None),
        step_s=median(report.step_s for report in reports if report.step_s is not None),
        steps=sum(report.steps for report in reports),
        held_out=held_out,
    )


def _fitted(visits: Sequence[Visit], ready: Ready, limits: BatchLimits, reports: Sequence[Progress]) -> ScriptProfile:
    """Fit without what is held out and predict all; then fit to all for the outlook."""
    shown = fit(Profile.of(visit.observation() for visit in visits if not visit.held_out))
    predicted = tuple(
        replace(
            visit,
            predicted_s=float(shown.step_times(Shape.of(1, visit.slots, visit.plan.per_slot_batch)).step_s),
        )
        for visit in visits
    )
    fitted = fit(Profile.of(visit.observation() for visit in visits))
    known = [report for report in reports if report.squared_gradient is not None and report.variance is not None]
    gradient = GradientStats()
    if known:
        gradient = GradientStats.clamped(known[-1].squared_gradient or 0.0, known[-1].variance or 0.0)
    measured = sorted({visit.slots for visit in visits})
    counts = [*measured, 2 * measured[-1]]
    plans = [best_plan(fitted, gradient, limits, nodes=1, slots=count) for count in counts]
    base = plans[0].goodput or 1.0
    outlooks = tuple(
        Outlook(count, count in measured, plan, plan.goodput / base)
        for count, plan in zip(counts, plans, strict=True)
        if plan.goodput > 0
    )
    return ScriptProfile(ready, limits, predicted, fitted, gradient, bool(known), outlooks)


def write_profile(profile: ScriptProfile, folder: Path, gpu_type: str) -> None:
    """Write the profile in the simulator's layout: the folder's name is the application's.

    The noise is assumed to stay constant, because the rest of the training was not measured. A small workload to begin
    with is written beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits, ready = profile.limits, profile.ready
    settings = {
        "initial_batch_size": limits.initial,
        "max_batch_size": limits.largest,
        "min_per_slot_batch": limits.smallest_per_slot,
        "max_per_slot_batch": limits.largest_per_slot,
    }
    (folder / "application.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    name = folder.absolute().name
    jobs = [f"  - {{name: {name}-{i}, submit: {5 * i}m, slots: 1, application: {name}}}\n" for i in range(3)]
    (folder / WORKLOAD).write_text(f"name: three-times-{name}\njobs:\n{''.join(jobs)}")
    with (folder / f"placements-{gpu_type}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["placement", "local_bsz", "step_time", "sync_time"])
        for visit in profile.visits:
            if visit.slots <= 9:  # a placement is written with one digit per node
                sync_s = max(0.0, min(visit.step_s - visit.accumulation_s, 0.999 * visit.step_s))
                rows.writerow([visit.slots, visit.plan.per_slot_batch, f"{visit.step_s:.9f}", f"{sync_s:.9f}"])
    samples = ready.dataset_samples or limits.initial
    epochs = max(1, round((ready.work_samples or samples) / samples))
    for batch in sorted({limits.initial, limits.largest}):
        with (folder / f"validation-{batch}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["epoch", "progress", "grad_sqr", "grad_var"])
            for epoch in range(epochs):
                done = (epoch + 1) * samples / limits.initial
                gradient = profile.gradient
                rows.writerow([epoch, f"{done:.6f}", f"{gradient.squared_gradient:.9g}", f"{gradient.variance:.9g}"])


def _last_output(folder: Path) -> str:
    """The last line that a worker printed."""
    logs = [log.read_text(errors="replace") for log in sorted((folder / "logs").glob("*.log"))]
    lines = [line for text in logs for line in text.splitlines() if line.strip()]
    return repr(lines[-1][:200]) if lines else "none"
