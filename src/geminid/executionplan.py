"""Execution plans: the ways in which a training script may spread its model and its state over slots."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from geminid.documents import Document
from geminid.fields import InvalidInput, Problem, Reader, check_boolean, check_integer, check_name, suggestion

_MAX_SPLIT: Final = 1_000_000  # more slots than that no cluster has

_BUILT_IN: Final[dict[str, dict[str, bool]]] = {
    "dp": {},
    "dp-gc": {"gradient_checkpointing": True},
    "zero": {"zero": True},
    "zero-gc": {"zero": True, "gradient_checkpointing": True},
    "zero-offload": {"zero": True, "offload": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan(Document):
    """A named way to run a script. The plain one, ``dp``, keeps a whole replica of the model on every slot.

    Attributes:
        name: What configurations call the plan.
        tensor_parallel: Slots over which each layer is split.
        pipeline_stages: Slots over which the layers are dealt out.
        zero: Optimiser state (and what goes with it) is sharded over the replicas.
        gradient_checkpointing: Activations are computed again in the backward pass, to save memory.
        offload: Sharded optimiser state lives in host memory.
    """

    name: str
    tensor_parallel: int = 1
    pipeline_stages: int = 1
    zero: bool = False
    gradient_checkpointing: bool = False
    offload: bool = False

    def __post_init__(self) -> None:
        problems = [
            *check_name("name", self.name),
            *check_integer("tensor_parallel", self.tensor_parallel, at_least=1, at_most=_MAX_SPLIT),
            *check_integer("pipeline_stages", self.pipeline_stages, at_least=1, at_most=_MAX_SPLIT),
            *check_boolean("zero", self.zero),
            *check_boolean("gradient_checkpointing", self.gradient_checkpointing),
            *check_boolean("offload", self.offload),
        ]
        if self.offload is True and self.zero is False:
            problems.append(Problem("offload", True, "needs zero to be true as well", involves=("zero",)))
        if isinstance(self.name, str) and self.name in _BUILT_IN and self._settings() != _BUILT_IN[self.name]:
            expected = "is the name of a built-in plan with other settings; choose another"
            problems.append(Problem("name", self.name, expected))
        if problems:
            raise InvalidInput(problems)

    @property
    def slots_per_replica(self) -> int:
        """How many slots one replica of the model takes."""
        return self.tensor_parallel * self.pipeline_stages

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a plan that is written out."""
        return reader.attempt(
            lambda: cls(
                name=reader.text("name"),
                tensor_parallel=reader.integer("tensor_parallel", 1),
                pipeline_stages=reader.integer("pipeline_stages", 1),
                zero=reader.boolean("zero", False),
                gradient_checkpointing=reader.boolean("gradient_checkpointing", False),
                offload=reader.boolean("offload", False),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The name, and the settings that are not those of plain data parallelism."""
        return {"name": self.name, **self._settings()}

    def _settings(self) -> dict[str, Any]:
        settings = {
            "tensor_parallel": self.tensor_parallel,
            "pipeline_stages": self.pipeline_stages,
            "zero": self.zero,
            "gradient_checkpointing": self.gradient_checkpointing,
            "offload": self.offload,
        }
        return {name: value for name, value in settings.items() if value not in (1, False) or value is True}


BUILT_IN_PLANS: Final = MappingProxyType(
    {name: ExecutionPlan(name=name, **settings) for name, settings in _BUILT_IN.items()}
)
"""The plans that can be asked for by name alone."""

DATA_PARALLEL: Final = BUILT_IN_PLANS["dp"]


def read_plans(reader: Reader, field: str) -> tuple[ExecutionPlan, ...] | None:
    """Read a list whose elements are names of built-in plans or plans written out; None if it is absent."""
    if reader.raw(field) is None:
        return None
    plans = []
    for index, element in enumerate(reader.items(field)):
        label = f"{field}[{index}]"
        if not isinstance(element, str):
            entry = Reader(element, at=reader.field_name(label), problems=reader.problems)
            plans.append(ExecutionPlan.read(entry))
        elif element in BUILT_IN_PLANS:
            plans.append(BUILT_IN_PLANS[element])
        else:
            known = ", ".join(BUILT_IN_PLANS)
            hint = suggestion(element, BUILT_IN_PLANS)
            reader.report(label, element, f"must be one of {known}, or a plan that is written out{hint}")
    return tuple(plan for plan in plans if plan is not None)


def plan_to_plain(plan: ExecutionPlan) -> str | dict[str, Any]:
    """A built-in plan as its name, any other written out."""
    return plan.name if plan.name in BUILT_IN_PLANS else plan.to_dict()
