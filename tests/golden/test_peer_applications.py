"""The peers' applications as their own descriptions have them, where their data is at hand."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from scipy.interpolate import LinearNDInterpolator

from geminid.sim.application import Application
from geminid.sim.profiles import load_applications, load_profiles
from geminid.sim.profiles.measured import MeasuredTruth
from operations import count_calls
from requirements import PEERS

pytestmark = pytest.mark.needs_peers("pollux/traces", "sia/sia-simulator/traces")

POLLUX, SIA = PEERS / "pollux" / "traces", PEERS / "sia" / "sia-simulator" / "traces"

# Initial, largest, smallest and largest per-slot batch sizes, epochs and total progress in steps at the initial one.
TABLE = {
    "cifar10": (128, 4096, 32, 1024, 100, 39063),
    "ncf": (256, 32768, 32, 32768, 10, 194174),
    "bert": (12, 384, 4, 12, 2, 14774),
    "deepspeech2": (20, 640, 10, 80, 80, 28536),
    "yolov3": (8, 512, 4, 8, 50, 103444),
    "imagenet": (200, 12800, 20, 200, 90, 576526),
}


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


@pytest.fixture(scope="module")
def pollux() -> dict[str, Application]:
    return load_applications(POLLUX)


@pytest.fixture(scope="module")
def sia() -> dict[str, Application]:
    return load_applications(SIA)


@pytest.mark.parametrize("name", TABLE)
def test_batch_sizes_and_total_progress_are_those_of_polluxs_table(pollux: dict[str, Application], name: str) -> None:
    application = pollux[name]
    limits = application.limits["t4"]
    sizes = (limits.initial, limits.largest, limits.smallest_per_slot, limits.largest_per_slot)
    assert (*sizes, len(application.progress_steps), round(application.total_steps)) == TABLE[name]
    assert (application.truth["any"].most_slots, application.rescale_s, application.speed_divisor) == (64, 30, 1)


def test_sia_has_the_same_applications_with_its_own_costs_and_limits_by_type(sia: dict[str, Application]) -> None:
    assert {name: round(application.total_steps) for name, application in sia.items()} == {
        name: row[-1] for name, row in TABLE.items()
    }
    costs = {name: application.rescale_s for name, application in sia.items()}
    assert costs == {"cifar10": 50, "deepspeech2": 25, "bert": 120, "yolov3": 80, "imagenet": 250, "ncf": 15}
    divisors = {name: application.speed_divisor for name, application in sia.items()}
    assert divisors == {"cifar10": 1.8, "deepspeech2": 1.2, "bert": 1.2, "yolov3": 1.2, "imagenet": 1.2, "ncf": 1.5}
    assert {t: sia["bert"].limits[t].largest_per_slot for t in ("aws", "rtx", "dgx-ext")} == {
        "aws": 12,
        "rtx": 12,
        "dgx-ext": 48,
    }
    assert {t: sia["bert"].truth[t].most_slots for t in ("aws", "rtx", "dgx-ext")} == {
        "aws": 64,
        "rtx": 24,
        "dgx-ext": 16,
    }


def test_the_pipeline_parallel_application_is_left_out_with_the_reason(sia: dict[str, Application]) -> None:
    assert set(load_profiles(SIA).skipped) == {"gpt_pmp"}


def test_every_measured_row_is_reproduced(pollux: dict[str, Application], sia: dict[str, Application]) -> None:
    for directory, applications in ((POLLUX, pollux), (SIA, sia)):
        for name, application in applications.items():
            for path in directory.glob(f"{name}/placements*.csv"):
                truth = application.truth[path.stem.partition("-")[2] or "any"]
                for row in rows(path):
                    placement = [int(digit) for digit in row["placement"][1:] + row["placement"][:1]]  # turned by one
                    accumulation_s, step_s = truth.step_times(placement, int(float(row["local_bsz"])))
                    assert step_s == float(row["step_time"])
                    assert step_s - accumulation_s == pytest.approx(float(row["sync_time"]), abs=1e-12)


def test_measured_shapes_are_reproduced_where_only_their_shape_is_known(pollux: dict[str, Application]) -> None:
    for name, application in pollux.items():
        for row in rows(POLLUX / name / "scalability.csv"):
            nodes, slots = int(row["num_nodes"]), int(row["num_replicas"])
            placement = [slots // nodes + (i < slots % nodes) for i in range(nodes)]
            _, step_s = application.truth["any"].step_times(placement, int(row["local_bsz"]))
            assert step_s == pytest.approx(float(row["step_time"]), rel=1e-9)


def test_other_placements_have_the_times_that_the_artifacts_interpolation_gives(pollux: dict[str, Application]) -> None:
    for name in ("bert", "yolov3"):
        truth = cast(MeasuredTruth, pollux[name].truth["any"])
        points = [(shape.nodes, shape.slots, shape.per_slot_batch) for shape in truth._measured]
        reference = LinearNDInterpolator(points, list(truth._measured.values()))
        for nodes, busiest, batch in product((5, 6, 11, 13, 16), (2, 3, 4), (4, 5, 7, 8)):
            placement = (busiest,) * (nodes - 1) + (1,)
            assert truth.step_times(placement, batch) == pytest.approx(tuple(reference(nodes, sum(placement), batch)))


def test_loading_costs_a_few_calls_for_every_row() -> None:
    rows_in_all = sum(sum(1 for _ in rows(path)) for path in SIA.rglob("*.csv"))
    assert count_calls(lambda: load_applications(SIA)) < 30 * rows_in_all
