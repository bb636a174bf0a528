"""Load applications from folders of measurements, in the layout of Pollux's and Sia's simulators.

``DIR/<application>/`` holds ``placements[-<gpu type>].csv`` and, for larger shapes, ``scalability[-<gpu type>].csv``
(``geminid.sim.measurements`` has the columns), and ``validation-<B>.csv``: a whole training run at total batch size B,
one row per epoch, with ``progress`` at its end in steps at the initial batch size, ``grad_sqr`` and ``grad_var``.
Without a type in their names the files stand for every type. What the files cannot tell is known for the applications
of Pollux and Sia; others bring an ``application.yaml``. For people, all this is in ``docs/profiles.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from geminid.documents import Document
from geminid.fields import NOT_SHOWN, InvalidInput, Problem, Reader, check_integer, check_number
from geminid.goodput.batchplan import BatchLimits
from geminid.gputypes import LinkClass
from geminid.sim.application import Application, LossCurve
from geminid.sim.csvfile import COUNT, NON_NEGATIVE, POSITIVE, Column, Row, read_csv
from geminid.sim.measurements import PLACEMENT
from geminid.sim.profiles.bytype import ByType
from geminid.sim.profiles.measured import MeasuredTruth, Placement, Shape, Times, ValidationRuns

SETTINGS_FILE = "application.yaml"

#: What a cold restart costs an application that does not say.
DEFAULT_RESCALE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Document):
    """What measurements do not tell about an application; None where they do.

    Attributes:
        initial_batch_size: M0; else the smallest batch size with a validation run.
        max_batch_size: M_max; else the largest.
        min_per_slot_batch: The smallest batch for one slot; else the smallest measured on the type.
        max_per_slot_batch: The largest, by GPU type (``""`` for types without their own); else the largest measured.
        epochs: After how many epochs training is over; else after those of the shortest validation run.
        rescale_s: What a cold restart costs.
        speed_divisor: By what goodput is divided.
        pinned_slots: On how many slots adaptive policies run it, if that is not theirs to choose.
        pinned_batch_size: With which total batch size they do.
        gradient_bytes: What a step synchronises; else it follows from the time that takes within a rack.
        loss: What its jobs report as their training loss; else they report none.
    """

    initial_batch_size: int | None = None
    max_batch_size: int | None = None
    min_per_slot_batch: int | None = None
    max_per_slot_batch: Mapping[str, int] = field(default_factory=dict)
    epochs: int | None = None
    rescale_s: float = DEFAULT_RESCALE_S
    speed_divisor: float = 1.0
    pinned_slots: int | None = None
    pinned_batch_size: int | None = None
    gradient_bytes: int | None = None
    loss: LossCurve | None = None

    def __post_init__(self) -> None:
        counts = ("initial_batch_size", "max_batch_size", "min_per_slot_batch", "epochs", "pinned_slots")
        problems = [
            *check_number("rescale", self.rescale_s, at_least=0),
            *check_number("speed_divisor", self.speed_divisor, above=0),
        ]
        for name in (*counts, "pinned_batch_size", "gradient_bytes"):
            if getattr(self, name) is not None:
                problems += check_integer(name, getattr(self, name), at_least=1)
        for gpu_type, largest in self.max_per_slot_batch.items():
            name = f"max_per_slot_batch.{gpu_type}" if gpu_type else "max_per_slot_batch"
            problems += check_integer(name, largest, at_least=1)
        if problems:
            raise InvalidInput(problems)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read an application file; every field may be left out."""
        loss = reader.nested("loss")
        return reader.attempt(
            lambda: cls(
                initial_batch_size=reader.integer("initial_batch_size", None),
                max_batch_size=reader.integer("max_batch_size", None),
                min_per_slot_batch=reader.integer("min_per_slot_batch", None),
                max_per_slot_batch=_read_by_type(reader, "max_per_slot_batch"),
                epochs=reader.integer("epochs", None),
                rescale_s=reader.duration("rescale", DEFAULT_RESCALE_S),
                speed_divisor=reader.number("speed_divisor", 1.0),
                pinned_slots=reader.integer("pinned_slots", None),
                pinned_batch_size=reader.integer("pinned_batch_size", None),
                gradient_bytes=reader.size("gradient_bytes", None),
                loss=None if loss is None else LossCurve.read(loss),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        named: dict[str, Any] = {"rescale": self.rescale_s, "max_per_slot_batch": dict(self.max_per_slot_batch) or None}
        if set(self.max_per_slot_batch) == {""}:
            named["max_per_slot_batch"] = self.max_per_slot_batch[""]
        named["loss"] = None if self.loss is None else self.loss.to_dict()
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("rescale_s", *named)}
        return {name: value for name, value in (fields | named).items() if value is not None}


def _read_by_type(reader: Reader, name: str) -> dict[str, int]:
    """One number for all types, or a mapping of types to numbers."""
    if not isinstance(reader.raw(name), Mapping):
        largest = reader.integer(name, None)
        return {} if largest is None else {"": largest}
    by_type = reader.nested(name)
    return {} if by_type is None else {gpu_type: by_type.integer(gpu_type) for gpu_type in by_type.names()}


# What the artifacts of Pollux and Sia say about their own applications. Both have yolov3 on T4 with up to 16 samples a
# slot on few nodes but only 8 on many, and Pollux's limit of 8 holds for both here. Restarts take Pollux 30 s whatever
# the application; Sia measured them, and divides goodput by what its simulator was faster than its cluster.
_T4_LIMITS: dict[str, Mapping[str, int]] = {"yolov3": {"": 8}}
_EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
_SIA_RESCALE_S = {"bert": 120.0, "cifar10": 50.0, "deepspeech2": 25.0, "imagenet": 250.0, "ncf": 15.0, "yolov3": 80.0}
_SIA_DIVISOR = {"cifar10": 1.8, "ncf": 1.5}

POLLUX = {
    name: Settings(epochs=epochs, rescale_s=30.0, max_per_slot_batch=_T4_LIMITS.get(name, {}))
    for name, epochs in _EPOCHS.items()
}
POLLUX["ncf"] = replace(POLLUX["ncf"], pinned_slots=1, pinned_batch_size=32768)
"""Settings of the applications that Pollux measured, on one GPU type."""

SIA = {
    name: Settings(
        epochs=epochs,
        rescale_s=_SIA_RESCALE_S[name],
        speed_divisor=_SIA_DIVISOR.get(name, 1.2),
        max_per_slot_batch={"aws": limits[""]} if (limits := _T4_LIMITS.get(name)) else {},
    )
    for name, epochs in _EPOCHS.items()
}
"""Settings of the same applications as Sia measured them, on several types."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """The applications of a folder, and why others in it were left out."""

    applications: dict[str, Application]
    skipped: dict[str, str]


def load_applications(directory: Path) -> dict[str, Application]:
    """Load every application below ``directory``; raises InvalidInput with everything wrong with the files."""
    return load_profiles(directory).applications


def load_profiles(directory: Path) -> Profiles:
    """The same, with the reasons for leaving some out."""
    if not directory.is_dir():
        raise InvalidInput([Problem("profiles", str(directory), "must be a folder with one folder per application")])
    loaded = Profiles({}, {})
    problems: list[Problem] = []
    for folder in sorted({path.parent for path in directory.glob("*/placements*.csv")}):
        try:
            with _naming(folder):
                settings, why_not = _settings(folder)
                if settings is None:
                    loaded.skipped[folder.name] = why_not
                else:
                    loaded.applications[folder.name] = _application(folder, settings)
        except InvalidInput as error:
            problems += error.problems
    if not problems and not loaded.applications:
        reasons = "".join(f"; {name}: {why}" for name, why in loaded.skipped.items())
        problems.append(Problem(str(directory), NOT_SHOWN, f"holds no application with measurements{reasons}"))
    if problems:
        raise InvalidInput(problems)
    return loaded


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Put the application's name before the names of its files."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput([replace(bad, field=f"{folder.name}/{bad.field}") for bad in error.problems]) from None


def _settings(folder: Path) -> tuple[Settings | None, str]:
    """What is known of an application, or why it cannot be replayed."""
    if not any(folder.glob("validation-*.csv")):
        return None, "it has no validation-<batch size>.csv, so how much it has to learn is not known"
    path = folder / SETTINGS_FILE
    if path.is_file():
        try:
            return Settings.from_yaml(path.read_text(encoding="utf-8")), ""
        except InvalidInput as error:
            problems = [replace(bad, field=f"{SETTINGS_FILE}, {bad.field or 'the file'}") for bad in error.problems]
            raise InvalidInput(problems) from None
        except (OSError, UnicodeDecodeError):
            raise InvalidInput([Problem(SETTINGS_FILE, NOT_SHOWN, "cannot be read as UTF-8 text")]) from None
    known = POLLUX if (folder / "placements.csv").is_file() else SIA
    return known.get(folder.name), f"it is not one of {', '.join(known)}, and has no {SETTINGS_FILE}"


def _application(folder: Path, settings: Settings) -> Application:
    runs = _validation_runs(folder, settings.epochs)
    initial = settings.initial_batch_size or min(runs)
    truth: dict[str, MeasuredTruth] = {}
    limits: dict[str, BatchLimits] = {}
    for path in sorted(folder.glob("placements*.csv")):
        gpu_type = path.stem.partition("-")[2]
        by_tier = _placements(path)
        placements = by_tier.pop(LinkClass.RACK)
        tiers = {tier: MeasuredTruth(rows) for tier, rows in by_tier.items()}
        shapes = _shapes(folder / path.name.replace("placements", "scalability", 1))
        truth[gpu_type] = MeasuredTruth(placements, shapes, tiers)
        batches = [batch for (_, batch), _ in placements]
        most = settings.max_per_slot_batch
        limits[gpu_type] = _limits(
            initial,
            settings.max_batch_size or max(runs),
            settings.min_per_slot_batch or min(batches),
            most.get(gpu_type) or most.get("") or max(batches),
        )
    truth_of_any, limits_of_any = truth.pop("", None), limits.pop("", None)
    epochs = settings.epochs or min(len(rows) for rows in runs.values())
    progress = [[row["progress"] for row in rows[:epochs]] for rows in runs.values()]
    return Application(
        name=folder.name,
        progress_steps=np.min(np.array(progress), axis=0),
        gradient=ValidationRuns({b: [(row["grad_sqr"], row["grad_var"]) for row in rows] for b, rows in runs.items()}),
        truth=ByType(truth, truth_of_any),
        limits=ByType(limits, limits_of_any),
        rescale_s=settings.rescale_s,
        speed_divisor=settings.speed_divisor,
        pinned_slots=settings.pinned_slots,
        pinned_batch=settings.pinned_batch_size,
        gradient_bytes=settings.gradient_bytes,
        loss=settings.loss,
    )


def _limits(initial: int, largest: int, smallest_per_slot: int, largest_per_slot: int) -> BatchLimits:
    pairs = (
        ("max_batch_size", largest, "initial_batch_size", initial),
        ("max_per_slot_batch", largest_per_slot, "min_per_slot_batch", smallest_per_slot),
        ("max_batch_size", largest, "min_per_slot_batch", smallest_per_slot),
    )
    problems = [
        Problem(f"{SETTINGS_FILE}, {name}", value, f"must be at least {other}, which is {bound}")
        for name, value, other, bound in pairs
        if value < bound
    ]
    if problems:
        raise InvalidInput(problems)
    return BatchLimits(
        initial=initial,
        largest=largest,
        smallest_per_slot=smallest_per_slot,
        largest_per_slot=largest_per_slot,
    )


def _validation_runs(folder: Path, epochs: int | None) -> dict[int, list[Row]]:
    columns = {"progress": POSITIVE, "grad_sqr": NON_NEGATIVE, "grad_var": NON_NEGATIVE}
    runs, problems = {}, []
    for path in sorted(folder.glob("validation-*.csv")):
        batch = path.stem.partition("-")[2]
        if not batch.isdecimal() or int(batch) < 1:
            problems.append(Problem(path.name, NOT_SHOWN, "must be named validation-<total batch size>.csv"))
            continue
        rows = read_csv(path, columns)
        if len(rows) < (epochs or 1):
            problems.append(Problem(path.name, NOT_SHOWN, f"must have a row for each of {epochs or 1} epochs"))
        for before, row in pairwise(rows):
            if row["progress"] <= before["progress"]:
                where = f"{path.name}, line {row.line}, column progress"
                problems.append(Problem(where, row["progress"], "must be more than in the line before"))
                break
        runs[int(batch)] = rows
    if problems:
        raise InvalidInput(problems)
    return runs


_TIMES = {"local_bsz": COUNT, "step_time": POSITIVE, "sync_time": NON_NEGATIVE}


_CROSSED = Column(LinkClass, "must be rack, zone or cluster: the smallest part that held all nodes", required=False)


def _placements(path: Path) -> dict[LinkClass, list[tuple[tuple[Placement, int], Times]]]:
    """Measured placements by the tier that they crossed; a file without such a column was measured within a rack."""
    rows = read_csv(path, {"placement": PLACEMENT, "tier": _CROSSED, **_TIMES})
    by_tier: dict[LinkClass, list[tuple[tuple[Placement, int], Times]]] = {LinkClass.RACK: []}
    for row in rows:
        tier = row.cells.get("tier", LinkClass.RACK)
        tier = LinkClass.RACK if tier is LinkClass.NODE else tier
        by_tier.setdefault(tier, []).append(((row["placement"], row["local_bsz"]), _times(path, row)))
    if not by_tier[LinkClass.RACK]:
        expected = "has no measurements within a rack" if rows else "has no measurements"
        raise InvalidInput([Problem(path.name, NOT_SHOWN, expected)])
    return by_tier


def _shapes(path: Path) -> list[tuple[Shape, Times]]:
    if not path.is_file():
        return []
    rows = read_csv(path, {"num_nodes": COUNT, "num_replicas": COUNT, **_TIMES})
    return [(Shape(row["num_nodes"], row["num_replicas"], row["local_bsz"]), _times(path, row)) for row in rows]


def _times(path: Path, row: Row) -> Times:
    step_s, sync_s = row["step_time"], row["sync_time"]
    if sync_s >= step_s:
        where = f"{path.name}, line {row.line}, column sync_time"
        raise InvalidInput([Problem(where, sync_s, f"must be less than step_time, which is {step_s}")])
    return step_s - sync_s, step_s
