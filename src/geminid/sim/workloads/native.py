"""Our own form of a workload, as YAML or CSV; ``docs/workloads.md`` describes it for people.

Both forms have the same fields. YAML is for writing by hand, and holds the workload's name and notes as well; CSV is
for spreadsheets and for thousands of jobs. As in all files, durations carry their unit in the text (``90s``, ``2h30m``;
a bare number means seconds), not in the name of the field.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from geminid.documents import dump_yaml, load_yaml
from geminid.fields import (
    MAX_TEXT_LENGTH,
    NOT_SHOWN,
    InvalidInput,
    Problem,
    Reader,
    check_integer,
    check_name,
    check_number,
    check_text,
)
from geminid.job import Adaptivity
from geminid.nodes import MAX_SLOTS
from geminid.policies.gavel.problem import MOST_WEIGHT
from geminid.sim.application import LossCurve
from geminid.sim.csvfile import MAX_PROBLEMS, Column, Row
from geminid.sim.workload import DEFAULT_QUEUE, TraceJob, Workload
from geminid.sim.workloads.tables import MAX_COUNT, MAX_SECONDS, Table, TextFile, in_order, raise_first
from geminid.units import A_DURATION, format_duration, parse_duration

YAML_SUFFIXES: Final = (".yaml", ".yml", ".json")
_YAML_FIELD = re.compile(r"^(?:jobs|name)\s*:", re.MULTILINE)


def is_yaml(file: TextFile) -> bool:
    """Is a file in the YAML form, by its extension or else by what it holds?"""
    if file.suffix in YAML_SUFFIXES:
        return True
    return file.suffix != ".csv" and _YAML_FIELD.search(file.text) is not None


def load(file: TextFile) -> Workload:
    """Load a workload in either form."""
    return _load_yaml(file) if is_yaml(file) else Table(file, COLUMNS, closed=True).workload(_from_row, unique="name")


def write_native(workload: Workload, path: Path) -> None:
    """Write a workload as YAML or CSV, by the extension of ``path``, so that it is read back without loss.

    CSV holds the jobs alone: the name is that of the file, and notes are not kept. Raises InvalidInput if the extension
    is another one or a job has a value that could not be read back; nothing is written then.
    """
    if path.suffix.lower() not in (".csv", *YAML_SUFFIXES):
        raise InvalidInput([Problem("path", path.name, "must end in .csv, .yaml, .yml or .json")])
    as_csv = path.suffix.lower() == ".csv"
    text = _to_csv(workload) if as_csv else _to_yaml(workload)
    if not as_csv and len(text) > MAX_TEXT_LENGTH:
        raise InvalidInput([Problem("path", path.name, "must end in .csv: there are too many jobs for YAML")])
    load(TextFile(path.name, text))
    path.write_text(text, encoding="utf-8", newline="")


# --- What makes sense ---


def _job(values: Mapping[str, Any]) -> TraceJob:
    """A job from the fields that are given, by their names in files; raises InvalidInput about those."""
    given = {name: value for name, value in values.items() if value is not None}
    problems = _problems(given)
    if problems:
        raise InvalidInput(problems)
    return TraceJob(
        name=given["name"],
        submit_s=given["submit"],
        requested_slots=given["slots"],
        application=given.get("application"),
        requested_batch=given.get("batch_size"),
        adaptivity=given.get("adaptivity", _usual_adaptivity(given)),
        duration_s=given.get("duration"),
        steps=given.get("steps"),
        weight=given.get("weight", 1.0),
        slo_s=given.get("slo"),
        slo_factor=given.get("slo_factor"),
        owner=given.get("owner", ""),
        queue=given.get("queue", DEFAULT_QUEUE),
        opportunistic=given.get("opportunistic", False),
        loss=given.get("loss"),
        plan=given.get("plan"),
    )


def _usual_adaptivity(given: Mapping[str, Any]) -> Adaptivity:
    """Of a job of which only the duration or the steps are known, nobody knows how it would do at another size."""
    return Adaptivity.RIGID if "duration" in given or "steps" in given else Adaptivity.ADAPTIVE


def _problems(given: Mapping[str, Any]) -> list[Problem]:
    checks: dict[str, Callable[[str, Any], list[Problem]]] = {
        "name": check_name,
        "submit": lambda field, value: check_number(field, value, at_least=0, at_most=MAX_SECONDS),
        "slots": lambda field, value: check_integer(field, value, at_least=1, at_most=MAX_SLOTS),
        "application": _check_label,
        "batch_size": lambda field, value: check_integer(field, value, at_least=1, at_most=MAX_COUNT),
        "duration": lambda field, value: check_number(field, value, above=0, at_most=MAX_SECONDS),
        "steps": lambda field, value: check_integer(field, value, at_least=1, at_most=MAX_COUNT),
        "weight": lambda field, value: check_number(field, value, above=0, at_most=MOST_WEIGHT),
        "slo": lambda field, value: check_number(field, value, above=0, at_most=MAX_SECONDS),
        "slo_factor": lambda field, value: check_number(field, value, above=0),
        "owner": _check_label,
        "queue": _check_label,
        "plan": check_name,
    }
    problems = [bad for name, check in checks.items() if name in given for bad in check(name, given[name])]
    if ("application" in given) == ("duration" in given):
        both = "duration" in given
        expected = "goes with no application: give one of the two" if both else "or duration must be given"
        about = "duration" if both else "application"
        problems.append(Problem(about, given.get(about, NOT_SHOWN), expected, involves=("application", "duration")))
    if "steps" in given and "duration" in given:
        problems.append(Problem("steps", given["steps"], "goes with no duration", involves=("duration",)))
    if "plan" in given and "steps" not in given:
        problems.append(Problem("plan", given["plan"], "goes with steps, which are not given", involves=("steps",)))
    if "duration" in given and given.get("adaptivity", Adaptivity.RIGID) is not Adaptivity.RIGID:
        expected = "must be rigid: a duration says nothing about other numbers of slots"
        problems.append(Problem("adaptivity", given["adaptivity"].value, expected, involves=("duration",)))
    if "slo" in given and "slo_factor" in given:
        problems.append(Problem("slo_factor", given["slo_factor"], "goes with no slo", involves=("slo",)))
    return problems


def _check_label(field: str, value: str) -> list[Problem]:
    if value != value.strip() or not value:
        return [Problem(field, value, "must be a text that neither begins nor ends with a blank")]
    return check_text(field, value)


# --- CSV ---


def _optional(parse: Callable[[str], Any], expected: str) -> Column:
    """A column that may be absent, and whose cells may be empty."""
    return Column(lambda text: parse(text.strip()) if text.strip() else None, expected, required=False)


def _stripped(parse: Callable[[str], Any], expected: str) -> Column:
    return Column(lambda text: parse(text.strip()), expected)


def _true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


#: The fourth word of a loss curve in CSV that falls exponentially.
_EXPONENTIAL: Final = "exponential"


def _loss_of_cell(text: str) -> LossCurve:
    """A loss curve from its three numbers, and the word exponential where it is that."""
    start, end, steepness, *family = text.split()
    if family not in ([], [_EXPONENTIAL]):
        raise ValueError
    return LossCurve(start=float(start), end=float(end), steepness=float(steepness), exponential=bool(family))


def _cell_of_loss(curve: LossCurve) -> str:
    words = [repr(curve.start), repr(curve.end), repr(curve.steepness)]
    return " ".join([*words, _EXPONENTIAL] if curve.exponential else words)


_A_LOSS_CURVE: Final = "must be start, end and steepness of a loss curve, as in 2.3 0.1 20, or 2.3 0.1 20 exponential"
_A_WHOLE_NUMBER: Final = (int, "must be a whole number")
_A_NUMBER: Final = (float, "must be a number")
_DURATION: Final = (parse_duration, f"must be {A_DURATION}")

COLUMNS: Final = {
    "name": _stripped(str, ""),
    "submit": _stripped(*_DURATION),
    "slots": _stripped(*_A_WHOLE_NUMBER),
    "application": _optional(str, ""),
    "batch_size": _optional(*_A_WHOLE_NUMBER),
    "adaptivity": _optional(Adaptivity, f"must be one of {', '.join(Adaptivity)}"),
    "duration": _optional(*_DURATION),
    "steps": _optional(*_A_WHOLE_NUMBER),
    "weight": _optional(*_A_NUMBER),
    "slo": _optional(*_DURATION),
    "slo_factor": _optional(*_A_NUMBER),
    "owner": _optional(str, ""),
    "queue": _optional(str, ""),
    "opportunistic": _optional(_true_or_false, "must be true or false"),
    "plan": _optional(str, ""),
    "loss": _optional(_loss_of_cell, _A_LOSS_CURVE),
}


def _from_row(row: Row) -> TraceJob:
    return _job(row.cells)


def _to_csv(workload: Workload) -> str:
    rows = [_plain(job, _plain_seconds, _cell_of_loss) for job in workload.jobs]
    used = {name for row in rows for name in row}
    output = io.StringIO()
    writer = csv.DictWriter(output, [name for name in COLUMNS if name in used], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def _plain_seconds(seconds: float) -> int | float:
    return int(seconds) if seconds.is_integer() and seconds < MAX_SECONDS else seconds


# --- YAML ---


def _load_yaml(file: TextFile) -> Workload:
    if len(file.text) > MAX_TEXT_LENGTH:
        expected = (
            f"has more than the {MAX_TEXT_LENGTH:,} characters of YAML that are allowed; the CSV form may be longer"
        )
        raise InvalidInput([Problem(file.name, NOT_SHOWN, expected)])
    try:
        data = load_yaml(file.text)
    except InvalidInput as error:
        raise InvalidInput([replace(problem, field=file.name) for problem in error.problems]) from None
    reader = Reader(data)
    workload = reader.attempt(lambda: _read_workload(reader, file.stem))
    raise_first(file, [_in_file(file, problem) for problem in reader.problems])
    assert workload is not None, "a reader that finds nothing wrong must build its value"
    return workload


def _in_file(file: TextFile, problem: Problem) -> Problem:
    return replace(problem, field=f"{file.name}, {problem.field}" if problem.field else file.name)


def _read_workload(reader: Reader, default_name: str) -> Workload:
    jobs: list[TraceJob] = []
    places: dict[str, str] = {}
    for index, element in enumerate(reader.items("jobs")):
        if len(reader.problems) > MAX_PROBLEMS:
            break
        entry = Reader(element, at=f"jobs[{index}]", problems=reader.problems)
        job = entry.attempt(partial(_read_job, entry))
        if job is None:
            continue
        if places.setdefault(job.name, entry.at) != entry.at:
            entry.report("name", job.name, f"must be the name of a single job: {places[job.name]} has it as well")
        jobs.append(job)
    if not (jobs or reader.problems):
        reader.report("jobs", NOT_SHOWN, "holds no jobs")
    return Workload(reader.text("name", default_name), in_order(jobs), reader.texts("notes", ()))


def _read_job(reader: Reader) -> TraceJob:
    fields = {
        "name": reader.text("name"),
        "submit": reader.duration("submit"),
        "slots": reader.integer("slots"),
        "application": reader.text("application", None),
        "batch_size": reader.integer("batch_size", None),
        "adaptivity": reader.choice("adaptivity", Adaptivity, None),
        "duration": reader.duration("duration", None),
        "steps": reader.integer("steps", None),
        "weight": reader.number("weight", None),
        "slo": reader.duration("slo", None),
        "slo_factor": reader.number("slo_factor", None),
        "owner": reader.text("owner", None),
        "queue": reader.text("queue", None),
        "opportunistic": reader.boolean("opportunistic", None),
        "plan": reader.text("plan", None),
        "loss": None if (curve := reader.nested("loss")) is None else LossCurve.read(curve),
    }
    return _job(fields)


def _to_yaml(workload: Workload) -> str:
    data: dict[str, Any] = {"name": workload.name}
    if workload.notes:
        data["notes"] = list(workload.notes)
    return dump_yaml({**data, "jobs": [_plain(job, format_duration, LossCurve.to_dict) for job in workload.jobs]})


def _plain(
    job: TraceJob, write_seconds: Callable[[float], object], write_loss: Callable[[LossCurve], object]
) -> dict[str, Any]:
    """A job's fields by their names in files, without those that have their usual value."""

    def seconds(value: float | None) -> object:
        return None if value is None else write_seconds(float(value))

    plain: dict[str, Any] = {
        "name": job.name,
        "submit": seconds(job.submit_s),
        "slots": job.requested_slots,
        "application": job.application,
        "batch_size": job.requested_batch,
        "adaptivity": job.adaptivity.value,
        "duration": seconds(job.duration_s),
        "steps": job.steps,
        "weight": None if job.weight == 1 else job.weight,
        "slo": seconds(job.slo_s),
        "slo_factor": job.slo_factor,
        "owner": job.owner or None,
        "queue": None if job.queue == DEFAULT_QUEUE else job.queue,
        "opportunistic": job.opportunistic or None,
        "plan": job.plan,
        "loss": None if job.loss is None else write_loss(job.loss),
    }
    plain = {name: value for name, value in plain.items() if value is not None}
    if job.adaptivity is _usual_adaptivity(plain):
        del plain["adaptivity"]
    return plain
