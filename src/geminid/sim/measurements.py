"""Read measured step times in the layout of Pollux's and Sia's simulators.

``DIR/<application>/placements[-<gpu type>].csv`` has one row per placement and per-slot batch size; a placement is one
digit per node, the slots there. ``scalability[-<gpu type>].csv`` gives larger ones by nodes and slots alone.
``step_time`` is a synchronising step in seconds, ``sync_time`` the part of it spent waiting for synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.goodput.profile import Observation
from geminid.sim.csvfile import COUNT, NON_NEGATIVE, POSITIVE, Column, read_csv

#: What the GPU type is called where the files name none (Pollux measured a single type).
UNNAMED_TYPE = "any"


def _placement(text: str) -> tuple[int, ...]:
    digits = tuple(int(digit) for digit in text.strip())
    if not digits or 0 in digits:
        raise ValueError
    return digits


PLACEMENT = Column(_placement, "must have one digit from 1 to 9 per node, the slots there")


@dataclass(frozen=True, slots=True)
class MeasuredApplication:
    """All measured step times of one application on one GPU type, raw: repeats are kept."""

    application: str
    gpu_type: str
    observations: tuple[Observation, ...]


def load_measurements(directory: Path) -> list[MeasuredApplication]:
    """Load every application and GPU type below ``directory``, in alphabetical order."""
    if not directory.is_dir():
        raise InvalidInput([Problem("profiles", str(directory), "must be a folder with one folder per application")])
    found: dict[tuple[str, str], list[Observation]] = {}
    for path in sorted(directory.glob("*/*.csv")):
        kind, _, gpu_type = path.stem.partition("-")
        if kind in ("placements", "scalability"):
            rows = _placements(path) if kind == "placements" else _scalability(path)
            found.setdefault((path.parent.name, gpu_type or UNNAMED_TYPE), []).extend(rows)
    if not found:
        missing = "holds no <application>/placements*.csv or <application>/scalability*.csv"
        raise InvalidInput([Problem(str(directory), NOT_SHOWN, missing)])
    return [MeasuredApplication(app, gpu_type, tuple(rows)) for (app, gpu_type), rows in sorted(found.items())]


_TIMES = {"local_bsz": COUNT, "step_time": POSITIVE, "sync_time": NON_NEGATIVE}


def _placements(path: Path) -> list[Observation]:
    return [
        _observation(row["placement"], row["local_bsz"], row["step_time"], row["sync_time"])
        for row in read_csv(path, {"placement": PLACEMENT, **_TIMES})
    ]


def _scalability(path: Path) -> list[Observation]:
    rows = read_csv(path, {"num_nodes": COUNT, "num_replicas": COUNT, **_TIMES})
    for row in rows:
        if row["num_replicas"] < row["num_nodes"]:
            where = f"{path.name}, line {row.line}, column num_replicas"
            raise InvalidInput(
                [Problem(where, row["num_replicas"], f"must be at least num_nodes ({row['num_nodes']})")]
            )
    return [
        _observation(
            _even_spread(row["num_replicas"], row["num_nodes"]), row["local_bsz"], row["step_time"], row["sync_time"]
        )
        for row in rows
    ]


def _even_spread(slots: int, nodes: int) -> tuple[int, ...]:
    return tuple(slots // nodes + (i < slots % nodes) for i in range(nodes))


def _observation(placement: tuple[int, ...], batch: int, step_s: float, sync_s: float) -> Observation:
    return Observation(
        nodes=len(placement),
        slots=sum(placement),
        busiest_node_slots=max(placement),
        per_slot_batch=batch,
        accumulation_s=step_s - sync_s,
        step_s=step_s,
    )
