"""Read the profiles that Rubick's authors publish: measured iteration times by execution plan and placement.

``DIR/placements/<model>.csv`` has one row per plan and placement: ``exec_plan``, ``placement`` (one digit per node, the
slots there) and ``iter_time`` in seconds, 0 where it does not run. Plans are ``ga`` (data parallel), ``gc`` (with
gradient checkpointing), ``zero-dp``, ``zero-offload``, or three digits: pipeline, tensor and data parallel degrees.
``DIR/profile/<model>/config.csv`` has the number of parameters, ``DIR/validation_points.csv`` the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from geminid.executionplan import BUILT_IN_PLANS, ExecutionPlan
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.sim.csvfile import COUNT, NON_NEGATIVE, POSITIVE, TEXT, read_csv
from geminid.sim.measurements import PLACEMENT

#: The GPUs that were measured, A800 with 80 GB, by the catalogue's name of their like.
GPU_TYPE = "a100-80gb"

#: Slots of a node there.
NODE_SLOTS = 8

#: Rubick's names of plans that are built in here.
_PLANS = {"ga": "dp", "gc": "dp-gc", "zero-dp": "zero", "zero-offload": "zero-offload"}

#: Offload together with checkpointing, which has no built-in name.
_OFFLOAD_CHECKPOINTED = ExecutionPlan(name="zero-offload-gc", zero=True, offload=True, gradient_checkpointing=True)

#: Parameters, in units of 2²⁰, of models without a profile of their own (one folder is a copy of another's).
_PARAMETERS = {"llama30": 31_000.0, "t5_3B": 2_720.0}

#: Global batches of placements that no validation point names.
_BATCHES = {"t5_3B": 4, "llama7b_bsz16": 16}

_UNIT = 2**20


def plan_named(text: str) -> ExecutionPlan:
    """The plan that Rubick's files call by this name.

    Raises:
        ValueError: it is none.
    """
    if text in _PLANS:
        return BUILT_IN_PLANS[_PLANS[text]]
    if text == "zero-offload+gc":
        return _OFFLOAD_CHECKPOINTED
    if len(text) != 3 or not text.isdigit() or "0" in text:
        raise ValueError
    pipeline, tensor = int(text[0]), int(text[1])
    if pipeline * tensor == 1:
        return BUILT_IN_PLANS["dp"]
    return split_plan(pipeline=pipeline, tensor=tensor)


def split_plan(*, pipeline: int, tensor: int) -> ExecutionPlan:
    """The plan that splits a model over slots, under the name that it has everywhere."""
    return ExecutionPlan(name=f"pp{pipeline}-tp{tensor}", pipeline_stages=pipeline, tensor_parallel=tensor)


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """A measured iteration: a plan on the slots of each node."""

    plan: ExecutionPlan
    placement: tuple[int, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """All that was measured of one model at one global batch; ``failed`` are the rows that did not run."""

    name: str
    parameters: float
    global_batch: int
    measurements: tuple[PlanMeasurement, ...]
    failed: tuple[tuple[ExecutionPlan, tuple[int, ...]], ...]


_PLAN_TEXT = "must be ga, gc, zero-dp, zero-offload, or three digits from 1 to 9"
_ROWS = {"exec_plan": TEXT, "placement": PLACEMENT, "iter_time": NON_NEGATIVE}


def load_models(directory: Path) -> list[MeasuredModel]:
    """Every model below a folder in Rubick's layout, in alphabetical order.

    Raises:
        InvalidInput: the folder has another layout, or a file has cells that make no sense.
    """
    paths = sorted((directory / "placements").glob("*.csv"))
    if not paths:
        expected = "must be a folder with placements/<model>.csv, profile/ and validation_points.csv, as Rubick's"
        raise InvalidInput([Problem("profiles", str(directory), expected)])
    batches = _global_batches(directory / "validation_points.csv")
    return [_model(path, directory, batches) for path in paths]


def _model(path: Path, directory: Path, batches: dict[str, int]) -> MeasuredModel:
    name = path.stem
    profile = next((p for p in (name, f"{name}b", name.split("_")[0]) if (directory / "profile" / p).is_dir()), None)
    if name in _PARAMETERS:
        parameters = _PARAMETERS[name]
    elif profile is not None:
        rows = read_csv(directory / "profile" / profile / "config.csv", {"parameter_size": POSITIVE})
        parameters = rows[0]["parameter_size"]
    else:
        raise InvalidInput([Problem(str(path), NOT_SHOWN, f"has no profile/{name} with its number of parameters")])
    batch = _BATCHES.get(name) or batches.get(name) or batches.get(f"{name}b")
    if batch is None:
        raise InvalidInput([Problem(str(path), NOT_SHOWN, "has no row in validation_points.csv with its global batch")])
    measured, failed = [], []
    for row in read_csv(path, _ROWS):
        placement, step_s = row["placement"], row["iter_time"]
        try:
            plan = _plan_on(row["exec_plan"], placement)
        except ValueError:
            where = f"{path.name}, line {row.line}, column exec_plan"
            raise InvalidInput([Problem(where, row["exec_plan"], _PLAN_TEXT)]) from None
        if sum(placement) % plan.slots_per_replica:
            continue  # some rows run a part of their slots only
        if step_s > 0:
            measured.append(PlanMeasurement(plan, placement, step_s))
        else:
            failed.append((plan, placement))
    return MeasuredModel(name, parameters * _UNIT, batch, tuple(measured), tuple(failed))


def _plan_on(text: str, placement: tuple[int, ...]) -> ExecutionPlan:
    """A row's plan; ``tp+ga`` splits every layer over all slots of a node."""
    return split_plan(pipeline=1, tensor=max(placement)) if text == "tp+ga" else plan_named(text)


def _global_batches(path: Path) -> dict[str, int]:
    rows = read_csv(path, {"model": TEXT, "global_batch": COUNT})
    return {row["model"]: row["global_batch"] for row in rows}
