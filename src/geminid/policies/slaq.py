"""SLAQ: slots go where the training loss is predicted to fall most.

Zhang et al., "SLAQ: Quality-Driven Scheduling for Distributed Machine Learning", SoCC '17.

Every few seconds each job's reported losses are fitted by 1/(a·k² + b·k + c) + d and by an exponential, recent points
weighing more, and the better fit predicts how far the loss falls within the next ``horizon`` seconds on each size
(``lossfits.py``). Drops are divided by the largest that the job has seen, from its first loss to its lowest, so that
losses of different kinds compare. Every job gets its smallest size; then, step by step, the job whose drop grows most
per slot is enlarged, until no slot is left or none helps. ``share=fair`` gives all jobs equally many slots instead,
as the fair scheduler that the paper compares with.

From memory of the paper, unverified: the families, the normalisation and the greedy rule. Deviations. The paper's
sizes are cores of a parameter server; here they are the configurations of the cluster, one GPU type per job, and how
much work a job does on each is what our goodput model says. A job with too few points for a fit is taken to be on the
steepest part of its curve; a job that reports no losses gains from slots as the others do on average. Because a change
of slots costs a pause here, a job that has changed keeps its slots for ten times as long as its pause. A point of a fit
is the mean of the reports since the last point, and a curve is fitted again when its job has a new point.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from geminid.configuration import Configuration
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.goodputs import Goodputs
from geminid.policies.lossfits import LEAST_POINTS, POINTS, Array, LossFits, fit_losses
from geminid.policies.options import Positive

#: A point is remembered when a job has got on by this part since the last one: fits need points that differ.
SPACING = 0.05

#: A loss that is the same to the last digit counts as measured again when the job has this many times the progress:
#: scripts report a loss once per epoch, and the job repeats it with every report of its progress.
REPEATED_UNTIL = 2.0

#: Time for which a job keeps changed slots, in pauses of its own.
SETTLE_PAUSES = 10.0

#: What a size is worth to the job that has it, of what it is worth to others: nobody changes for next to nothing.
STAYING = 1.05

#: Running time after which a job that has reported no loss is taken to report none, in seconds.
SILENT_S = 120.0

#: Sizes are raised as long as a slot still adds this to a job's normalised drop: less is noise of the fits.
LEAST_GAIN = 1e-12

#: The curve of a job that has reported nothing.
NO_FIT = fit_losses([[]])


@dataclass(slots=True)
class History:
    """What a job has reported: its first loss, and its latest points (progress, loss), each the mean of some reports.

    ``last_progress`` and ``last_loss`` are those of the last report that counts. ``fit`` is the curve through the
    points, None if it has to be fitted again.
    """

    first_loss: float
    points: list[tuple[float, float]]
    last_progress: float
    pending: list[tuple[float, float]] = field(default_factory=list)
    fit: LossFits | None = None
    last_loss: float = math.nan

    def report(self, progress: float, loss: float) -> None:
        """Take in a loss; reports between two points are averaged, which takes out some of their noise."""
        repeated = loss == self.last_loss and progress < REPEATED_UNTIL * self.last_progress
        if progress <= self.last_progress or repeated:
            return
        self.last_progress, self.last_loss = progress, loss
        self.pending.append((progress, loss))
        if progress > (1.0 + SPACING) * self.points[-1][0]:
            done, losses = zip(*self.pending, strict=True)
            self.points = [*self.points[1 - POINTS :], (sum(done) / len(done), sum(losses) / len(losses))]
            self.pending = []
            self.fit = None


@dataclass(slots=True)
class Slaq(Policy):
    """Slots go where the training loss is predicted to fall most, relative to what each job's loss has fallen so far.

    It knows the losses that jobs report and their goodput on each size; it changes the number of slots every few
    seconds, a slot at a time to the job that gains most from it. New jobs, whose loss falls fast, get many slots, jobs
    that have nearly converged few. Jobs that report no loss are treated like the average.
    """

    name = "slaq"
    paper = "Zhang et al., SoCC '17"
    objective = "largest sum of predicted normalised loss drops, greedily by drop per slot"
    adapts_batch = True
    needs_models = True
    brings_profiles = True
    meanings: ClassVar[Mapping[str, str]] = {
        "interval": "seconds between decisions",
        "horizon": "seconds ahead for which losses are predicted",
        "share": "by quality, or equally many slots for everyone (the paper's baseline)",
    }

    interval_s: Positive | None = 5.0
    horizon_s: Positive = 60.0
    share: Literal["quality", "fair"] = "quality"
    _goodputs: Goodputs = field(init=False)
    _histories: dict[str, History] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._goodputs = Goodputs(growth=2.0)

    def decide(self, view: ClusterView) -> Decision:
        """Predict everybody's gain from every size, and hand out slots greedily."""
        self._remember(view.jobs)
        if not any(view.usable_slots):
            return Decision({})
        configurations, goodput = self._goodputs.of(view)
        gain = self._gains(view, goodput) if self.share == "quality" else _fair(configurations, goodput)
        gain *= np.where([[job.has(c) for c in configurations] for job in view.jobs], STAYING, 1.0)
        capacity = view.usable_slots_per_type()
        kept: dict[str, Configuration | Allocation] = {}
        rows = []
        for row, job in enumerate(view.jobs):
            settling = view.now_s < job.since_s + SETTLE_PAUSES * job.facts.rescale_s
            if job.allocation and settling and job.stands(view.usable_slots):
                kept[job.id] = job.allocation
                capacity[view.cluster.nodes[job.allocation[0][0]].gpu_type] -= job.slots
            else:
                rows.append(row)
        chosen = _greedy(view, rows, configurations, goodput, gain, capacity)
        return Decision({**kept, **{view.jobs[row].id: configurations[column] for row, column in chosen.items()}})

    def _remember(self, jobs: Sequence[JobView]) -> None:
        """Take in the losses that jobs have reported since the last decision."""
        known = self._histories
        self._histories = {job.id: known[job.id] for job in jobs if job.id in known}
        for job in jobs:
            if job.loss is None:
                continue
            if job.id in self._histories:
                self._histories[job.id].report(job.progress, job.loss)
            else:
                points = [(job.progress, job.loss)]
                self._histories[job.id] = History(job.loss, points, job.progress, last_loss=job.loss)

    def _fits(self, jobs: Sequence[JobView]) -> LossFits:
        """The curves of all jobs; those with new points are fitted again, all at the same time."""
        histories = [self._histories.get(job.id) for job in jobs]
        stale = [history for history in histories if history is not None and history.fit is None]
        if stale:
            fitted = fit_losses([history.points for history in stale])
            for row, history in enumerate(stale):
                history.fit = fitted.row(row)
        return LossFits.joined([NO_FIT if each is None or each.fit is None else each.fit for each in histories])

    def _gains(self, view: ClusterView, goodput: Array) -> Array:
        """Predicted drops of the loss on every size, of the largest drop seen."""
        fits = self._fits(view.jobs)
        histories = [self._histories.get(job.id) for job in view.jobs]
        first = np.array([np.inf if history is None else history.first_loss for history in histories])
        largest = np.maximum(first - fits.lowest, fits.width)
        share = np.where(fits.known, fits.width / np.where(fits.known, largest, 1.0), 0.0)
        drop = fits.falls_by(self.horizon_s * goodput) * share[:, None]
        least = np.where(goodput > 0, goodput, np.inf).min(axis=1, keepdims=True)
        scaled = np.where(goodput > 0, goodput / np.where(np.isfinite(least), least, 1.0), 0.0)
        average = float(drop[fits.known].max(axis=1).mean()) if fits.known.any() else 1.0
        for row, (job, history) in enumerate(zip(view.jobs, histories, strict=True)):
            few_points = history is None or len(history.points) < LEAST_POINTS
            if few_points:  # else a loss that does not fall promises nothing
                silent = job.loss is None and job.executed_s(view.now_s) > SILENT_S
                most = scaled[row].max() if silent else 1.0
                drop[row] = average * scaled[row] / max(most, 1e-300) if silent else 1.0 - np.exp(-scaled[row])
        return drop


def _fair(configurations: Sequence[Configuration], goodput: Array) -> Array:
    """Gains that fall with every slot, the same for all jobs: slots are then dealt out evenly."""
    slots = np.array([c.slots for c in configurations], dtype=float)
    return np.where(goodput > 0, np.log1p(slots), 0.0)


def _greedy(
    view: ClusterView,
    rows: Sequence[int],
    configurations: Sequence[Configuration],
    goodput: Array,
    gain: Array,
    capacity: dict[str, int],
) -> dict[int, int]:
    """A configuration for each of the rows: the smallest ones first, then the job that gains most per slot."""
    of_type = {
        gpu_type: [c for c, configuration in enumerate(configurations) if configuration.gpu_type == gpu_type]
        for gpu_type in capacity
    }
    slots = [configuration.slots for configuration in configurations]
    chosen: dict[int, int] = {}
    ladders: dict[int, list[int]] = {}

    def ladder(row: int, gpu_type: str) -> list[int]:
        return sorted((c for c in of_type[gpu_type] if goodput[row, c] > 0), key=slots.__getitem__)

    for row in sorted(rows, key=lambda row: (-float(gain[row].max()), row)):
        job = view.jobs[row]
        options = {t: sizes for t in capacity if (sizes := ladder(row, t)) and slots[sizes[0]] <= capacity[t]}
        if not options:
            continue
        stays = job.gpu_type if job.gpu_type in options else None
        best = stays or max(options, key=lambda t: (goodput[row, options[t][0]] * capacity[t], t))
        ladders[row] = options[best]
        chosen[row] = options[best][0]
        capacity[best] -= slots[chosen[row]]
    offers: list[tuple[float, int, int]] = []

    def offer(row: int) -> None:
        """Offer the step to the larger size that gains most per slot, among those for which there is room."""
        here, best = chosen[row], None
        for there in ladders[row]:
            more = slots[there] - slots[here]
            if 0 < more <= capacity[configurations[there].gpu_type]:
                per_slot = float(gain[row, there] - gain[row, here]) / more
                if per_slot > LEAST_GAIN and (best is None or per_slot > best[0]):
                    best = per_slot, there
        if best is not None:
            heapq.heappush(offers, (-best[0], row, best[1]))

    for row in chosen:
        offer(row)
    while offers:
        _, row, there = heapq.heappop(offers)
        more, gpu_type = slots[there] - slots[chosen[row]], configurations[there].gpu_type
        if more <= capacity[gpu_type]:
            chosen[row] = there
            capacity[gpu_type] -= more
        offer(row)
    return chosen
