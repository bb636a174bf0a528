"""What ``geminid measure`` prints: two tables and what they mean, or one JSON object."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib.metadata import version

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from geminid.train.measure import Recording
from geminid.train.study import LIMITS, Comparison, Outlook, Study

#: From this spread on, the machine's own noise is worth a sentence.
NOISY = 0.3

BAR_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringReport:
    """The outcome of measuring."""

    study: Study
    recording: Recording
    slots: int
    cores: int
    parameters: int
    seed: int

    def document(self) -> dict[str, object]:
        """Everything as plain data; times in seconds, errors as fractions."""
        study, recording = self.study, self.recording
        return {
            "machine": {"cores": self.cores, "slots": self.slots, "torch": version("torch")},
            "model": {"parameters": self.parameters, "seed": self.seed},
            "points": [_point(row) for row in study.comparisons],
            "fits": {
                name: {
                    "parameters": list(fitted.parameters),
                    "source": fitted.source,
                    "reason": fitted.reason,
                    "held_out_error": study.held_out_error(name),
                }
                for name, fitted in study.fits.items()
            },
            "held_out_spread": study.held_out_spread,
            "loss": {"first": recording.first_loss, "last": recording.last_loss, "steps": len(recording.loss)},
            "noise": {
                "scale": study.noise_scale,
                "squared_gradient": study.gradient.squared_gradient,
                "variance": study.gradient.variance,
                "initial_batch": LIMITS.initial,
                "steps": recording.noise_steps,
            },
            "outlook": [
                {"slots": seen.slots, "measured": seen.measured, "speedup": seen.speedup, **asdict(seen.plan)}
                for seen in study.outlooks
            ],
        }

    def show(self, console: Console) -> None:
        """Print the tables with explanations."""
        for part in (
            self._what_was_done(),
            self._step_times(),
            self._errors(),
            self._noise(),
            self._outlook(),
            self._meaning(),
        ):
            console.print(part)
            console.print()

    def _what_was_done(self) -> str:
        recording = self.recording
        shared = f", sharing {_count(self.cores, 'core')}" if self.slots > self.cores else ""
        return (
            f"Trained a convolutional network of {self.parameters / 1e6:.1f} million parameters for "
            f"{len(recording.loss)} steps on up to {_count(self.slots, 'slot')} (one worker process each{shared}); "
            f"its loss went from {recording.first_loss:.2f} to {recording.last_loss:.2f}."
        )

    def _step_times(self) -> Table:
        table = _table("Time of one optimiser step, measured and predicted")
        for heading in ("slots", "batch\nper slot", "measured\nms", "spread\n±", "Pollux\nms", "error"):
            table.add_column(heading, justify="right")
        table.add_column("Geminid\nms", justify="right", style="bold")
        table.add_column("error", justify="right", style="bold")
        table.add_column("", style="cyan", no_wrap=True)
        previous = self.study.comparisons[0].measured.point.slots
        for row in self.study.comparisons:
            point = row.measured.point
            if point.slots != previous:
                table.add_section()
                previous = point.slots
            cells = [f"{point.slots}", f"{point.per_slot_batch}", _ms(row.measured.step_s)]
            cells.append(f"{row.measured.spread / 2:.0%}")
            for model in ("pollux", "geminid"):
                cells += [_ms(row.predicted_s[model]), f"{row.error(model):+.0%}"]
            table.add_row(*cells, "held out" if row.held_out else "")
        return table

    def _errors(self) -> str:
        study = self.study
        shown = sum(not row.held_out for row in study.comparisons)
        text = (
            f"The models were fitted to {shown} of the {len(study.comparisons)} configurations. Mean error on those "
            f"held out: [bold]Geminid {study.held_out_error('geminid'):.1%}[/], "
            f"Pollux {study.held_out_error('pollux'):.1%}. "
            "(Spread: about half of the measured steps lie within ± that much of the median.)"
        )
        if study.held_out_spread > NOISY:
            text += (
                " [yellow]This machine was busy or noisy[/]: the spread is wide, so expect other errors next time, "
                "and smaller ones when nothing else runs or with a longer --seconds."
            )
        return text

    def _noise(self) -> str:
        scale = self.study.noise_scale
        if not math.isfinite(scale):
            return (
                f"{self.recording.noise_steps} steps were not enough to tell the gradient from its noise: "
                "try a longer --seconds. Until then larger batches are assumed to lose nothing."
            )
        return (
            f"Gradient noise scale, from the gradients of {self.recording.noise_steps} steps: "
            f"[bold]{scale:.0f} samples[/]. "
            f"In a batch of that size, a sample teaches half of what it does in a tiny batch."
        )

    def _outlook(self) -> Table:
        table = _table(f"Best batch plan on each number of slots, for a job tuned for batches of {LIMITS.initial}")
        for heading in ("slots", "batch", "samples/s", "efficiency", "goodput", "speed-up"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, style="cyan")
        top = self.study.best.plan.goodput
        for seen in self.study.outlooks:
            plan = seen.plan
            table.add_row(
                f"{seen.slots}",
                _batch(seen),
                f"{plan.throughput:.0f}",
                f"{plan.efficiency:.0%}",
                f"{plan.goodput:.0f}",
                f"{seen.speedup:.2f}×",
                "█" * round(BAR_WIDTH * plan.goodput / top),
                style="" if seen.measured else "dim",
            )
        return table

    def _meaning(self) -> str:
        best, most = self.study.best, self.study.outlooks[-1]
        text = (
            "What this means: throughput is how fast samples are processed, efficiency how much each still teaches at "
            "that batch size, and goodput, their product, how fast the job really learns. "
        )
        if best.slots == most.slots:
            text += f"Every further slot helps this job here: {best.speedup:.2f} times the progress on {best.slots}. "
        elif best.slots == 1:
            text += "On this machine a second slot costs this job more than it brings, so one is best. "
        else:
            text += (
                f"On this machine the job learns fastest on {best.slots} slots with a batch of "
                f"{best.plan.total_batch}, {best.speedup:.2f} times as fast as on one; beyond that, slots are wasted. "
            )
        return text + (
            "Geminid computes such a table for every job and GPU type, and gives each slot to the job that gains most "
            f"by it. The row for {most.slots} slots goes beyond what was measured. Read next: docs/goodput-model.md "
            "explains the model, docs/job-file.md how a job is described."
        )


def _point(row: Comparison) -> dict[str, object]:
    seen = row.measured
    return {
        "slots": seen.point.slots,
        "per_slot_batch": seen.point.per_slot_batch,
        "held_out": row.held_out,
        "accumulation_s": seen.accumulation_s,
        "step_s": seen.step_s,
        "spread": seen.spread,
        "timed_steps": len(seen.step_times_s),
        "predicted": {name: {"step_s": row.predicted_s[name], "error": row.error(name)} for name in row.predicted_s},
    }


def _batch(seen: Outlook) -> str:
    plan = seen.plan
    passes = f"×{plan.accumulation_steps + 1}" if plan.accumulation_steps else ""
    return f"{plan.total_batch} = {seen.slots}×{plan.per_slot_batch}{passes}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
