"""Draw docs/figures/model.svg: what our throughput model adds to Pollux's. Needs matplotlib (pip install matplotlib).

    python docs/figures/model.py REPORT.json

REPORT.json is the output of ``geminid bench model --profiles DIR --json``. The left panel draws it; the right one fits
both models to step times of ResNet-50 that were measured on one NVIDIA H200 (bf16, median of 12 steps).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

from geminid.goodput.fit import fit
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import Shape

matplotlib.use("svg")
import matplotlib.pyplot as plt

H200_RESNET50_MS = {16: 20.7, 32: 21.8, 64: 21.9, 128: 29.4, 256: 54.5, 512: 104.2}
PALE, STRONG, INK = "#b8c0cc", "#1f6feb", "#24292f"


def draw_errors(axes: plt.Axes, rows: list[dict[str, object]]) -> None:
    """Mean error by what is held out, as pairs of bars."""
    rows = [row for row in rows if row["table"] == "held_out"]
    labels = [
        "placements",
        "batch sizes",
        "all but 16\nconfigurations",
        "all but 8\nconfigurations",
        "larger\nplacements",
    ]
    at = np.arange(len(rows))[::-1]
    for shift, key, colour, name in ((0.2, "pollux_mean", PALE, "Pollux"), (-0.2, "geminid_mean", STRONG, "Geminid")):
        values = [100 * row[key] for row in rows]
        axes.barh(at + shift, values, 0.36, color=colour, label=name)
        for y, value in zip(at + shift, values, strict=True):
            axes.text(value + 0.3, y, f"{value:.1f} %", va="center", fontsize=8, color=INK)
    axes.set_yticks(at, labels)
    axes.set_xlim(0, 23)
    axes.set_xlabel("mean error of the predicted step time, %")
    axes.set_title("Held out from the fit", loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False, loc="upper right")


def draw_plateau(axes: plt.Axes) -> None:
    """Step time against batch size on a large GPU: a plateau, then a line."""
    observations = [
        Observation(
            nodes=1, slots=1, busiest_node_slots=1, per_slot_batch=m, accumulation_s=ms / 1000, step_s=ms / 1000
        )
        for m, ms in H200_RESNET50_MS.items()
    ]
    batch = np.geomspace(16, 512, 200)
    for model, colour, name in (("pollux", PALE, "Pollux"), ("geminid", STRONG, "Geminid")):
        step_s = fit(Profile(tuple(observations)), model).step_times(Shape.of(1, 1, batch)).step_s
        axes.plot(batch, 1000 * step_s, color=colour, linewidth=2, label=name)
    axes.plot(list(H200_RESNET50_MS), list(H200_RESNET50_MS.values()), "o", color=INK, label="measured", zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(H200_RESNET50_MS), [str(m) for m in H200_RESNET50_MS])
    axes.set_ylim(0, None)
    axes.set_xlabel("batch size")
    axes.set_ylabel("step time, ms")
    axes.set_title("ResNet-50 on one H200: the launch plateau", loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False)


def main() -> None:
    """Draw both panels beside each other."""
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "geminid"}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.4), width_ratios=[1.15, 1])
    draw_errors(left, rows)
    draw_plateau(right)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
