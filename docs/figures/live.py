"""Draw docs/figures/live.svg: who had how many slots when, in a live run. Needs matplotlib (pip install matplotlib).

geminid demo --json > DEMO.json && python docs/figures/live.py DEMO.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = ("#1f6feb", "#d29922", "#2da44e", "#8250df", "#bf3989", "#57606a")
INK = "#24292f"


def slots_over_time(story: list[dict[str, Any]], at_s: np.ndarray) -> np.ndarray:
    """How many slots a job trained on at each moment, by its story."""
    changes_s = np.array([line["at_s"] for line in story])
    slots = np.array([line["slots"] for line in story])
    before = np.searchsorted(changes_s, at_s, side="right") - 1
    return np.where(before >= 0, slots[before], 0)


def draw(result: dict[str, Any]) -> None:
    """The picture."""
    figure, axes = plt.subplots(figsize=(9.0, 3.1))
    at_s = np.unique([line["at_s"] for job in result["jobs"] for line in job["story"]])
    lasts_s = np.diff(at_s, append=at_s[-1])
    bottom = np.zeros(len(at_s))
    for job, colour in zip(result["jobs"], COLOURS, strict=False):
        slots = slots_over_time(job["story"], at_s)
        axes.fill_between(at_s, bottom, bottom + slots, step="post", color=colour, linewidth=0.6, edgecolor="white")
        widest = int(np.argmax(slots * lasts_s))
        middle = at_s[widest] + lasts_s[widest] / 2, bottom[widest] + slots[widest] / 2
        axes.text(*middle, f"{job['id']} {job['name']}", ha="center", va="center", color="white", fontsize=7)
        bottom = bottom + slots
    if result["killed"] is not None:
        killed_s = result["killed"]["at_s"]
        axes.annotate(
            "a worker is killed",
            (killed_s, result["slots"]),
            (killed_s, result["slots"] + 0.45),
            ha="center",
            fontsize=8,
            color="#cf222e",
            arrowprops={"arrowstyle": "-|>", "color": "#cf222e"},
        )
    pauses_ms = [1e3 * pause for pause in result["pauses_s"]]
    title = f"Six training jobs on {result['slots']} CPU slots: {result['resizes']} live resizes"
    if pauses_ms:
        title += f", each a pause of {np.mean(pauses_ms):.0f} ms on average, {max(pauses_ms):.0f} ms at most"
    axes.set_title(title, loc="left", fontsize=9, color=INK, pad=30)
    axes.set(xlabel="seconds", ylabel="slots", xlim=(0.0, float(at_s[-1])), ylim=(0.0, result["slots"]))
    axes.set_yticks(range(result["slots"] + 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("live.svg"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
