"""How well step times are predicted on configurations that the fit has not seen: Pollux's model beside ours.

Errors are |predicted/measured − 1| of the synchronising step's time. Five ways of holding configurations out, from
filling gaps to extrapolating from a handful; the same configurations are held out from both models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.fit import ThroughputFit, fit, fit_many
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import Shape
from geminid.goodput.transfer import Method, transfer
from geminid.sim.measurements import MeasuredApplication

Errors = NDArray[np.float64]
Split = tuple[list[Observation], list[Observation]]

#: The mean error on placements held out from the fit is to be under this.
GOAL = 0.10

#: Above this mean error the report looks for what makes an application unpredictable.
WORTH_EXPLAINING = 0.15

REPETITIONS = 4

#: With fewer rows than this there is nothing to hold out.
FEWEST_ROWS = 8


@dataclass(frozen=True, slots=True)
class ApplicationRow:
    """Errors on placements held out in turn (five folds), for one application on one GPU type."""

    application: str
    gpu_type: str
    configurations: int
    pollux_mean: float
    pollux_p95: float
    geminid_mean: float
    geminid_p95: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """Mean over all applications and types of the mean error, for one way of holding out; and the median cell."""

    held_out: str
    pollux_mean: float
    pollux_median: float
    geminid_mean: float
    geminid_median: float


@dataclass(frozen=True, slots=True)
class TransferRow:
    """Errors on several slots of a type from which only a one-slot profile is known, over all pairs of types."""

    rule: str
    mean: float
    median: float


@dataclass(frozen=True, slots=True)
class Excluded:
    """An application that these models do not describe, and why."""

    application: str
    gpu_type: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Everything that ``geminid bench model`` prints."""

    applications: list[ApplicationRow]
    protocols: list[ProtocolRow]
    transfers: list[TransferRow]
    excluded: list[Excluded]


def run(measured: Sequence[MeasuredApplication], *, seed: int = 0, progress: Callable[[str], None]) -> ModelReport:
    """Evaluate both models on every application and GPU type."""
    cells, excluded = _usable(measured)
    if not cells:
        return ModelReport([], [], [], excluded)
    applications: list[ApplicationRow] = []
    protocols: list[ProtocolRow] = []
    for name, splitter in _PROTOCOLS.items():
        progress(f"held out: {name}")
        splits = [list(splitter(cell.observations, np.random.default_rng(seed))) for cell in cells]
        if not all(splits):
            continue  # some profile is too small to be split this way
        pollux, geminid = _errors(splits, "pollux"), _errors(splits, "geminid")
        means = {model: [e.mean() for e in errors] for model, errors in (("pollux", pollux), ("geminid", geminid))}
        protocols.append(
            ProtocolRow(
                name,
                float(np.mean(means["pollux"])),
                float(np.median(means["pollux"])),
                float(np.mean(means["geminid"])),
                float(np.median(means["geminid"])),
            )
        )
        if name == PLACEMENTS:
            applications = [_row(cell, p, g) for cell, p, g in zip(cells, pollux, geminid, strict=True)]
    progress("carrying fits over to other GPU types")
    return ModelReport(applications, protocols, _transfers(cells), excluded)


def _usable(measured: Sequence[MeasuredApplication]) -> tuple[list[MeasuredApplication], list[Excluded]]:
    """Average repeats; leave out applications whose rows cannot be passes of data-parallel training."""
    cells, excluded = [], []
    for cell in measured:
        good = [seen for seen in cell.observations if seen.problem() is None]
        bad = len(cell.observations) - len(good)
        shapes = {(seen.nodes, seen.slots) for seen in good}
        if bad > len(cell.observations) / 2:
            why = (
                f"in {bad} of {len(cell.observations)} rows the step is not longer than its synchronisation, so they "
                "are not steps of data-parallel training"
            )
            excluded.append(Excluded(cell.application, cell.gpu_type, why))
        elif len(shapes) < 2 or len(good) < FEWEST_ROWS:
            why = f"{len(good)} rows of {len(shapes)} placements are too few to hold some out"
            excluded.append(Excluded(cell.application, cell.gpu_type, why))
        else:
            averaged = Profile.of(good).observations
            cells.append(MeasuredApplication(cell.application, cell.gpu_type, averaged))
    return cells, excluded


# --- Ways of holding out ---


def _by_group(rows: Sequence[Observation], key: Callable[[Observation], object], folds: int) -> Iterator[Split]:
    """Hold out whole groups: in turn, every ``folds``-th group (in an order that mixes small and large)."""
    groups = sorted({key(row) for row in rows}, key=lambda k: (hash(k) * 2654435761) % 2**32)
    fold_of = {group: i % folds for i, group in enumerate(groups)}
    for fold in range(folds):
        held_out = [row for row in rows if fold_of[key(row)] == fold]
        if held_out and len(held_out) < len(rows):
            yield [row for row in rows if fold_of[key(row)] != fold], held_out


def _placements(rows: Sequence[Observation], _: np.random.Generator) -> Iterator[Split]:
    return _by_group(rows, lambda row: (row.nodes, row.slots), 5)


def _batch_sizes(rows: Sequence[Observation], _: np.random.Generator) -> Iterator[Split]:
    return _by_group(rows, lambda row: row.per_slot_batch, 3)


def _all_but(count: int) -> Callable[[Sequence[Observation], np.random.Generator], Iterator[Split]]:
    def split(rows: Sequence[Observation], rng: np.random.Generator) -> Iterator[Split]:
        for _ in range(REPETITIONS):
            order = rng.permutation(len(rows))
            if len(rows) > count:
                yield [rows[i] for i in order[:count]], [rows[i] for i in order[count:]]

    return split


def _larger(rows: Sequence[Observation], _: np.random.Generator) -> Iterator[Split]:
    """Learn on at most half of the largest number of slots, predict the rest."""
    most = max(row.slots for row in rows)
    yield [row for row in rows if row.slots * 2 <= most], [row for row in rows if row.slots * 2 > most]


PLACEMENTS = "placements (a fifth of the node and slot counts at a time)"
_PROTOCOLS: dict[str, Callable[[Sequence[Observation], np.random.Generator], Iterator[Split]]] = {
    PLACEMENTS: _placements,
    "batch sizes (a third of them at a time)": _batch_sizes,
    "all but 16 random configurations": _all_but(16),
    "all but 8 random configurations": _all_but(8),
    "more slots than half the largest seen": _larger,
}


def _errors(splits: Sequence[Sequence[Split]], model: str) -> list[Errors]:
    """Errors per cell, over all of its splits; all fits of a model are made at once."""
    fits = iter(fit_many([Profile(tuple(known)) for cell in splits for known, _ in cell], model))
    return [np.concatenate([error_of(next(fits), held_out) for _, held_out in cell]) for cell in splits]


def error_of(fitted: ThroughputFit, rows: Sequence[Observation]) -> Errors:
    """Relative errors of the predicted step time."""
    errors: Errors = np.abs(_ratio(fitted, rows) - 1.0)
    return errors


def _ratio(fitted: ThroughputFit, rows: Sequence[Observation]) -> Errors:
    table = np.array([(r.nodes, r.slots, r.per_slot_batch, r.busiest_node_slots, r.step_s) for r in rows], dtype=float)
    predicted = fitted.step_times(Shape.of(table[:, 0], table[:, 1], table[:, 2], table[:, 3])).step_s
    ratio: Errors = predicted / table[:, 4]
    return ratio


# --- Rows of the report ---


def _row(cell: MeasuredApplication, pollux: Errors, geminid: Errors) -> ApplicationRow:
    return ApplicationRow(
        cell.application,
        cell.gpu_type,
        len(cell.observations),
        float(pollux.mean()),
        float(np.percentile(pollux, 95)),
        float(geminid.mean()),
        float(np.percentile(geminid, 95)),
        _why(cell.observations) if geminid.mean() > WORTH_EXPLAINING else "",
    )


def _why(rows: Sequence[Observation]) -> str:
    """What in the measurements themselves no smooth function of the configuration can follow."""
    reasons = []
    few, many = [row for row in rows if row.nodes <= 2], [row for row in rows if row.nodes > 2]
    if few and many:
        jump = float(np.median(1.0 / _ratio(fit(Profile(tuple(few))), many)))
        if jump > 1.5:
            reasons.append(f"placements on three nodes or more take {jump:.1f}× what one and two nodes lead to expect")
    alone = {row.per_slot_batch: row.step_s for row in rows if row.slots == 1}
    faster = [row for row in rows if row.slots > 1 and row.step_s < 0.9 * alone.get(row.per_slot_batch, 0.0)]
    if faster:
        gain = max(alone[row.per_slot_batch] / row.step_s for row in faster)
        reasons.append(f"one slot is up to {gain:.1f}× slower than several slots with the same per-slot batch")
    jagged, pairs = 0, 0
    for shape in {(row.nodes, row.slots, row.busiest_node_slots) for row in rows}:
        same = sorted((r for r in rows if r.key[:3] == shape), key=lambda r: r.per_slot_batch)
        pairs += len(same) - 1
        jagged += sum(b.step_s < 0.9 * a.step_s for a, b in pairwise(same))
    if pairs and jagged > 0.1 * pairs:
        reasons.append(f"in {100 * jagged / pairs:.0f} % of cases the next larger batch is over 10 % faster")
    within = float(error_of(fit(Profile(tuple(rows))), rows).mean())
    reasons.append(f"even fitted to all of its rows our model is {100 * within:.0f} % off")
    return "; ".join(reasons)


def _transfers(cells: Sequence[MeasuredApplication]) -> list[TransferRow]:
    """Predict several slots of one type from another type's fit and a one-slot profile."""
    rules: dict[str, list[float]] = {"optimism: the one-slot profile alone": []}
    methods: dict[str, Method] = {"scaled (Sia's rule)": "scaled", "recombined (ours)": "recombined"}
    rules |= {name: [] for name in methods}
    by_application: dict[str, list[MeasuredApplication]] = {}
    for cell in cells:
        by_application.setdefault(cell.application, []).append(cell)
    for types in by_application.values():
        known = {cell.gpu_type: fit(Profile(cell.observations)) for cell in types}
        alone = {c.gpu_type: fit(Profile(tuple(r for r in c.observations if r.slots == 1))) for c in types}
        for source, target in permutations(types, 2):
            rows = [row for row in target.observations if row.slots > 1]
            if not rows:
                continue
            typical = float(np.exp(np.median(np.log([row.per_slot_batch for row in rows]))))
            one_slot = alone[target.gpu_type]
            rules["optimism: the one-slot profile alone"].append(float(error_of(one_slot, rows).mean()))
            for name, method in methods.items():
                carried = transfer(known[source.gpu_type], one_slot, typical_batch=typical, method=method)
                rules[name].append(float(error_of(carried, rows).mean()))
    return [TransferRow(name, float(np.mean(e)), float(np.median(e))) for name, e in rules.items() if e]
