"""What a person asks for: the specification of a job.

A :class:`JobSpec` never changes; how the job fares is a :class:`geminid.jobstate.JobState`. The file format
is described for people in ``docs/job-file.md``. In files, a duration has its unit in the text and not in the
name of the field: ``deadline_s=7200`` here is ``deadline: 2h`` there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

from geminid.arrayrange import ArrayRange, read_array
from geminid.dependency import Dependency, check_dependencies, read_dependencies
from geminid.documents import Document
from geminid.executionplan import DATA_PARALLEL, ExecutionPlan, plan_to_plain, read_plans
from geminid.fields import (
    NOT_SHOWN,
    InvalidInput,
    Problem,
    Reader,
    check_boolean,
    check_choice,
    check_instance,
    check_integer,
    check_name,
    check_number,
    check_optional,
    check_text,
    check_tuple,
    show,
)
from geminid.gputypes import ANY_GPU_TYPE, GpuPreference, read_preference
from geminid.nodes import MAX_SLOTS
from geminid.retryrule import RetryRule, check_rules, read_rules
from geminid.units import MAX_BATCH_SIZE, MAX_SAMPLES, GpuSeconds, Seconds, format_duration

MAX_PRIORITY: Final = 1000

#: The most retries that a job may ask for.
MAX_RETRIES: Final = 2**31

#: What a job's owner can be notified of.
OCCASIONS: Final = ("start", "end", "failure", "deadline", "time")

#: How often a job is restarted after a failure, where it does not say.
DEFAULT_MAX_RETRIES: Final = 3

# What Linux allows for one argument or one environment variable, less one for the final NUL.
_MAX_ARGUMENT_LENGTH: Final = 131_071
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


class ScalingRule(StrEnum):
    """How the learning rate follows the batch size; ``auto`` goes by the optimiser, ``none`` keeps it."""

    AUTO = "auto"
    ADASCALE = "adascale"
    ADAMSCALE = "adamscale"
    LINEAR = "linear"
    SQUARE_ROOT = "square_root"
    LEGW = "legw"
    NONE = "none"


class JobKind(StrEnum):
    """How a job is launched, and what may be done with it."""

    ELASTIC = "elastic"
    """A worker process on each slot; its script calls ``geminid.init()``, and it is resized while it runs."""
    PLAIN = "plain"
    """One process on all of its slots (of a node), of a fixed size."""
    RESTART = "restart"
    """As plain, but resized by starting it again from its own checkpoint; not supported yet."""
    UNKNOWN = "unknown"
    """One process on ``min_slots`` slots; it becomes elastic when it calls ``geminid.init()``."""


@dataclass(frozen=True, slots=True)
class FoundKind:
    """What kind a job is, and why that is thought."""

    kind: JobKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class Adaptivity(StrEnum):
    """What a policy may change about a running job (Sia's three categories)."""

    ADAPTIVE = "adaptive"
    """Slots and batch size."""
    FIXED_BATCH = "fixed_batch"
    """Slots only: the batch size stays."""
    RIGID = "rigid"
    """Neither the number of slots nor, therefore, anything but the GPU type and the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Document):
    """What a job is, what it needs, and what the scheduler may do with it.

    Attributes:
        name: What people call the job; need not be unique.
        command: The program and its arguments. It is never given to a shell.
        kind: How it is launched: ``elastic`` or ``plain``; None to find out, at the latest when it runs.
        owner: Who submitted it; the service fills this in.
        queue: The queue, which has quotas.
        priority: Higher goes first, from -1000 to 1000.
        working_dir: Where the command runs; relative to where it was submitted.
        env: Environment variables, as pairs. The values are secrets: never in ``repr``, never in messages.
        min_slots: The fewest slots it runs on.
        max_slots: The most slots it may get; None for as many as are of use.
        slots_per_replica: Slots that one replica of the model takes, for scripts that split their model by
            themselves; "per slot" below then means "per replica".
        gpu_types: Which GPU types it may use.
        initial_batch_size: The total batch size M0 that the script was tuned for; None if the script tells.
        max_batch_size: The largest total batch size M_max allowed; None to keep the batch size as it is.
        min_per_slot_batch: The smallest batch for one slot.
        max_per_slot_batch: The largest batch for one slot; None for what memory allows.
        dataset_samples: Samples in one epoch; None if the script tells.
        epochs: Passes over the data set; the work is epochs × samples.
        scaling_rule: How the learning rate follows the batch size.
        execution_plans: The plans that a policy may choose from.
        deadline_s: When it should have finished, counted from its submission.
        budget_gpu_s: The most GPU-seconds that it may use.
        max_retries: How often it is restarted after a failure; with the next failure it is given up.
        min_runtime_s: How long it runs before it may be preempted.
        checkpoint_interval_s: The longest time between two checkpoints.
        array: The elements of an array, each of which is such a job; None for a single job.
        after: Jobs that must be over, and how, before it may start.
        time_limit_s: How long it may have slots; then it saves what it has done and ends.
        requeue: Whether it goes back to the queue when its time limit is over, instead of ending.
        retry: Rules for what happens after a failure; the first that matches applies.
        notify: On which occasions its owner is notified.
    """

    name: str
    command: tuple[str, ...]
    kind: JobKind | None = None
    owner: str | None = None
    queue: str = "default"
    priority: int = 0
    working_dir: str | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    min_slots: int = 1
    max_slots: int | None = None
    slots_per_replica: int = 1
    gpu_types: GpuPreference = ANY_GPU_TYPE
    initial_batch_size: int | None = None
    max_batch_size: int | None = None
    min_per_slot_batch: int = 1
    max_per_slot_batch: int | None = None
    dataset_samples: int | None = None
    epochs: float | None = None
    scaling_rule: ScalingRule = ScalingRule.AUTO
    execution_plans: tuple[ExecutionPlan, ...] = (DATA_PARALLEL,)
    deadline_s: Seconds | None = None
    budget_gpu_s: GpuSeconds | None = None
    max_retries: int = DEFAULT_MAX_RETRIES
    min_runtime_s: Seconds = 0.0
    checkpoint_interval_s: Seconds = 600.0
    array: ArrayRange | None = None
    after: tuple[Dependency, ...] = ()
    time_limit_s: Seconds | None = None
    requeue: bool = False
    retry: tuple[RetryRule, ...] = ()
    notify: tuple[str, ...] = ()

    # --- What follows from the fields ---

    @property
    def work_samples(self) -> float | None:
        """The useful samples that the job has to process, if it is known before the script says."""
        if self.dataset_samples is None or self.epochs is None:
            return None
        return self.dataset_samples * self.epochs

    @property
    def has_fixed_size(self) -> bool:
        """Does it need an exact number of slots?"""
        return self.min_slots == self.max_slots

    @property
    def has_fixed_batch(self) -> bool:
        """Must the total batch size stay as it is?"""
        return self.max_batch_size is None or self.max_batch_size == self.initial_batch_size

    @property
    def adaptivity(self) -> Adaptivity:
        """What a policy may change about the job while it runs."""
        if self.has_fixed_size:
            return Adaptivity.RIGID
        return Adaptivity.FIXED_BATCH if self.has_fixed_batch else Adaptivity.ADAPTIVE

    def plan(self, name: str) -> ExecutionPlan:
        """The execution plan of a name; raises :class:`InvalidInput` if the job has none."""
        for plan in self.execution_plans:
            if plan.name == name:
                return plan
        known = ", ".join(plan.name for plan in self.execution_plans)
        raise InvalidInput([Problem("plan", name, f"must be one of the plans of this job: {known}")])

    def redacted(self) -> JobSpec:
        """The same job with the values of its environment hidden, for logs, interfaces and bundles."""
        return replace(self, env=tuple((name, "***") for name, _ in self.env))

    # --- What must hold ---

    def __post_init__(self) -> None:
        problems = self._field_problems()
        problems += self._rule_problems({re.split(r"[.\[]", problem.field)[0] for problem in problems})
        if problems:
            raise InvalidInput(problems)

    def _field_problems(self) -> list[Problem]:
        """What is wrong with each field by itself."""
        return [
            *check_name("name", self.name),
            *_check_command("command", self.command),
            *check_optional(_check_kind, "kind", self.kind),
            *check_optional(check_text, "owner", self.owner, max_length=255),
            *check_name("queue", self.queue),
            *check_integer("priority", self.priority, at_least=-MAX_PRIORITY, at_most=MAX_PRIORITY),
            *check_optional(_check_directory, "working_dir", self.working_dir),
            *_check_environment("env", self.env),
            *check_integer("min_slots", self.min_slots, at_least=1, at_most=MAX_SLOTS),
            *check_optional(check_integer, "max_slots", self.max_slots, at_least=1, at_most=MAX_SLOTS),
            *check_integer("slots_per_replica", self.slots_per_replica, at_least=1, at_most=MAX_SLOTS),
            *check_instance("gpu_types", self.gpu_types, GpuPreference),
            *check_optional(_check_batch, "initial_batch_size", self.initial_batch_size),
            *check_optional(_check_batch, "max_batch_size", self.max_batch_size),
            *_check_batch("min_per_slot_batch", self.min_per_slot_batch),
            *check_optional(_check_batch, "max_per_slot_batch", self.max_per_slot_batch),
            *check_optional(check_integer, "dataset_samples", self.dataset_samples, at_least=1, at_most=MAX_SAMPLES),
            *check_optional(check_number, "epochs", self.epochs, above=0, at_most=MAX_SAMPLES),
            *check_choice("scaling_rule", self.scaling_rule, ScalingRule),
            *check_tuple("execution_plans", self.execution_plans, _check_plan),
            *check_optional(check_number, "deadline", self.deadline_s, above=0),
            *check_optional(check_number, "gpu_time_budget", self.budget_gpu_s, above=0),
            *check_integer("max_retries", self.max_retries, at_least=0, at_most=MAX_RETRIES),
            *check_number("min_runtime", self.min_runtime_s, at_least=0),
            *check_number("checkpoint_interval", self.checkpoint_interval_s, above=0),
            *check_optional(check_instance, "array", self.array, ArrayRange),
            *check_dependencies("after", self.after),
            *check_optional(check_number, "time_limit", self.time_limit_s, above=0),
            *check_boolean("requeue", self.requeue),
            *check_rules("retry", self.retry),
            *check_tuple("notify", self.notify, _check_occasion),
        ]

    def _rule_problems(self, faulty: set[str]) -> Iterator[Problem]:
        """What is wrong with fields taken together, leaving out those that are faulty by themselves."""
        for name, other in _AT_LEAST:
            value, least = getattr(self, name), getattr(self, other)
            if not (faulty & {name, other} or value is None or least is None or value >= least):
                yield Problem(name, value, f"must be at least {other}, which is {least}", involves=(other,))
        for name, other in _TOGETHER:
            if getattr(self, name) is not None and getattr(self, other) is None:
                yield Problem(name, getattr(self, name), f"needs {other} as well", involves=(other,))
        if self.requeue is True and self.time_limit_s is None:
            yield Problem("requeue", True, "needs time_limit as well", involves=("time_limit",))
        if not faulty & {"min_slots", "max_slots", "slots_per_replica"}:
            sizes = {"min_slots": self.min_slots, "max_slots": self.max_slots}
            for name, size in ({"slots": self.min_slots} if self.has_fixed_size else sizes).items():
                if size is not None and size % self.slots_per_replica:
                    expected = f"must be a multiple of slots_per_replica, which is {self.slots_per_replica}"
                    yield Problem(name, size, expected, involves=("slots_per_replica",))
        work = None if faulty & {"dataset_samples", "epochs"} else self.work_samples
        if work is not None and work > MAX_SAMPLES:
            most = MAX_SAMPLES // (self.dataset_samples or 1)
            expected = f"must be at most {most}: the work, epochs × dataset_samples, is limited to {MAX_SAMPLES}"
            yield Problem("epochs", self.epochs, expected, involves=("dataset_samples",))
        involved = ("min_slots", "slots_per_replica", "max_batch_size", "initial_batch_size")
        if not faulty & {"min_per_slot_batch", *involved}:
            limit = self.max_batch_size or self.initial_batch_size
            replicas = self.min_slots // self.slots_per_replica
            if limit is not None and self.min_per_slot_batch * replicas > limit:
                expected = f"must be at most {limit // max(replicas, 1)}: {replicas} such batches, as min_slots"
                expected += f" asks for, must fit into the largest total batch, {limit}"
                yield Problem("min_per_slot_batch", self.min_per_slot_batch, expected, involves=involved)
        if "execution_plans" not in faulty:
            yield from self._plan_problems(faulty)

    def _plan_problems(self, faulty: set[str]) -> Iterator[Problem]:
        """What is wrong with the execution plans."""
        names = [plan.name for plan in self.execution_plans]
        if not names:
            yield Problem("execution_plans", self.execution_plans, "must have at least one plan")
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("execution_plans", name, "must be the name of a single plan")
        if faulty & {"max_slots", "slots_per_replica"}:
            return
        for plan in self.execution_plans:
            if plan.slots_per_replica > (self.max_slots or MAX_SLOTS):
                most = (
                    f"a cluster has at most {MAX_SLOTS}" if self.max_slots is None else f"max_slots is {self.max_slots}"
                )
                expected = f"needs {plan.slots_per_replica} slots, and {most}"
                yield Problem("execution_plans", plan.name, expected, involves=("max_slots",))
            if plan.slots_per_replica > 1 and self.slots_per_replica > 1:
                expected = "splits the model, as slots_per_replica says the script does already; give one of both"
                yield Problem("execution_plans", plan.name, expected, involves=("slots_per_replica",))

    # --- How it is written ---

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a job; see ``docs/job-file.md``."""
        return reader.attempt(lambda: cls(**_read_fields(reader)))

    def to_dict(self) -> dict[str, Any]:
        """Everything that is set, under the names of the file format."""
        plain = {
            "name": self.name,
            "command": list(self.command),
            "kind": None if self.kind is None else self.kind.value,
            "owner": self.owner,
            "queue": self.queue,
            "priority": self.priority,
            "working_dir": self.working_dir,
            "env": dict(self.env) or None,
            "slots": self.min_slots if self.has_fixed_size else None,
            "min_slots": None if self.has_fixed_size else self.min_slots,
            "max_slots": None if self.has_fixed_size else self.max_slots,
            "slots_per_replica": self.slots_per_replica,
            "gpu_types": self.gpu_types.to_dict() if self.gpu_types.names else None,
            "initial_batch_size": self.initial_batch_size,
            "max_batch_size": self.max_batch_size,
            "min_per_slot_batch": self.min_per_slot_batch,
            "max_per_slot_batch": self.max_per_slot_batch,
            "dataset_samples": self.dataset_samples,
            "epochs": self.epochs,
            "scaling_rule": self.scaling_rule.value,
            "execution_plans": [plan_to_plain(plan) for plan in self.execution_plans],
            "deadline": _duration_or_none(self.deadline_s),
            "gpu_time_budget": _duration_or_none(self.budget_gpu_s),
            "max_retries": self.max_retries,
            "min_runtime": format_duration(self.min_runtime_s),
            "checkpoint_interval": format_duration(self.checkpoint_interval_s),
            "array": None if self.array is None else str(self.array),
            "after": [str(one) for one in self.after] or None,
            "time_limit": _duration_or_none(self.time_limit_s),
            "requeue": self.requeue or None,
            "retry": [rule.to_dict() for rule in self.retry] or None,
            "notify": list(self.notify) or None,
        }
        return {name: value for name, value in plain.items() if value is not None}


_AT_LEAST: Final = (
    ("max_slots", "min_slots"),
    ("max_batch_size", "initial_batch_size"),
    ("max_per_slot_batch", "min_per_slot_batch"),
)
"""Fields that must be at least as large as another one, where both are given."""

_TOGETHER: Final = (
    ("max_batch_size", "initial_batch_size"),
    ("dataset_samples", "epochs"),
    ("epochs", "dataset_samples"),
)
"""Fields that mean nothing without another one."""


def _duration_or_none(duration_s: Seconds | None) -> str | None:
    return None if duration_s is None else format_duration(duration_s)


def _check_batch(name: str, size: object) -> list[Problem]:
    return check_integer(name, size, at_least=1, at_most=MAX_BATCH_SIZE)


def _check_occasion(name: str, occasion: object) -> list[Problem]:
    return [] if occasion in OCCASIONS else [Problem(name, occasion, f"must be one of {', '.join(OCCASIONS)}")]


def _check_plan(name: str, plan: object) -> list[Problem]:
    return check_instance(name, plan, ExecutionPlan)


def _check_command(name: str, command: object) -> list[Problem]:
    if not isinstance(command, tuple) or command[:1] in ((), ("",)):
        return [Problem(name, command, "must be a list of words that begins with a program to run")]
    return check_tuple(name, command, partial(check_text, max_length=_MAX_ARGUMENT_LENGTH, lines=True))


def _check_kind(name: str, kind: object) -> list[Problem]:
    if kind is JobKind.RESTART:
        expected = "must be elastic or plain: resizing a job by starting it again is not supported yet"
        return [Problem(name, "restart", expected)]
    if kind not in (JobKind.ELASTIC, JobKind.PLAIN):
        return [Problem(name, str(kind), "must be elastic or plain, or be left out")]
    return check_choice(name, kind, JobKind)


def _check_directory(name: str, path: str) -> list[Problem]:
    if problems := check_text(name, path):
        return problems
    return [Problem(name, path, "must not go up with '..'")] if ".." in path.split("/") else []


def _check_environment(name: str, env: Any) -> list[Problem]:
    if not (isinstance(env, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in env)):
        return [Problem(name, NOT_SHOWN, "must be a tuple of pairs")]
    problems = []
    for variable, value in env:
        if not (isinstance(variable, str) and _ENVIRONMENT_NAME.fullmatch(variable)):
            expected = "must be a name of letters, digits and '_' that does not start with a digit"
            problems.append(Problem(f"{name}.{show(variable)}", NOT_SHOWN, expected))
        else:
            label = f"{name}.{variable}"
            problems += check_text(label, value, max_length=_MAX_ARGUMENT_LENGTH, lines=True, secret=True)
    if not problems and len(dict(env)) < len(env):
        problems.append(Problem(name, NOT_SHOWN, "must name each variable once"))
    return problems


def _read_fields(reader: Reader) -> dict[str, Any]:
    """The constructor's arguments; a field that the file leaves out is left to the constructor's default."""
    slots = reader.integer("slots", None, at_least=1, at_most=MAX_SLOTS)
    replica = reader.integer("slots_per_replica", None)
    least, most = reader.integer("min_slots", None), reader.integer("max_slots", None)
    if slots is not None and (least is not None or most is not None):
        reader.report("slots", slots, "means exactly that many; it goes with neither min_slots nor max_slots")
    if least is None:
        least = replica
    arguments = {
        "name": reader.text("name"),
        "command": _read_command(reader),
        "kind": reader.choice("kind", JobKind, None),
        "owner": reader.text("owner", None),
        "queue": reader.text("queue", None),
        "priority": reader.integer("priority", None),
        "working_dir": reader.text("working_dir", None),
        "env": _read_environment(reader),
        "min_slots": least if slots is None else slots,
        "max_slots": most if slots is None else slots,
        "slots_per_replica": replica,
        "gpu_types": read_preference(reader, "gpu_types"),
        "initial_batch_size": reader.integer("initial_batch_size", None),
        "max_batch_size": reader.integer("max_batch_size", None),
        "min_per_slot_batch": reader.integer("min_per_slot_batch", None),
        "max_per_slot_batch": reader.integer("max_per_slot_batch", None),
        "dataset_samples": reader.integer("dataset_samples", None),
        "epochs": reader.number("epochs", None),
        "scaling_rule": reader.choice("scaling_rule", ScalingRule, None),
        "execution_plans": read_plans(reader, "execution_plans"),
        "deadline_s": reader.duration("deadline", None),
        "budget_gpu_s": reader.duration("gpu_time_budget", None),
        "max_retries": reader.integer("max_retries", None),
        "min_runtime_s": reader.duration("min_runtime", None),
        "checkpoint_interval_s": reader.duration("checkpoint_interval", None),
        "array": read_array(reader, "array"),
        "after": read_dependencies(reader, "after"),
        "time_limit_s": reader.duration("time_limit", None),
        "requeue": reader.boolean("requeue", None),
        "retry": read_rules(reader, "retry"),
        "notify": reader.texts("notify", None),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _read_command(reader: Reader) -> tuple[str, ...]:
    """A list of words. A single text is refused rather than split: it was probably meant for a shell."""
    command = reader.raw("command")
    if not isinstance(command, str):
        return reader.texts("command", max_length=_MAX_ARGUMENT_LENGTH, lines=True)
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    example = f"[{', '.join(map(repr, words))}]" if 0 < len(words) <= 8 else "[python, train.py]"
    reader.report("command", command, f"must be a list of words such as {example}; there is no shell to split it")
    return ()


def _read_environment(reader: Reader) -> tuple[tuple[str, str], ...] | None:
    """Pairs of names and values, of which the constructor checks each; no value appears in a message."""
    env = reader.raw("env")
    if env is None:
        return None
    if not isinstance(env, Mapping):
        reader.report("env", NOT_SHOWN, "must be a mapping of variables to texts")
        return None
    return tuple((name if isinstance(name, str) else show(name), value) for name, value in env.items())
