"""What a job is given: a configuration (what a policy chooses), its placement, and a batch plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from geminid.documents import Document
from geminid.fields import InvalidInput, Problem, Reader, check_integer, check_name, show
from geminid.units import MAX_BATCH_SIZE


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Configuration(Document):
    """What a policy chooses for a job: slots of a GPU type, on a number of nodes, run by an execution plan.

    Configurations are ordered by type, then nodes, then slots, so that tables of them have one natural order.
    """

    gpu_type: str
    nodes: int
    slots: int
    plan: str = "dp"

    def __post_init__(self) -> None:
        problems = [
            *check_name("gpu_type", self.gpu_type),
            *check_integer("nodes", self.nodes, at_least=1),
            *check_integer("slots", self.slots, at_least=1),
            *check_name("plan", self.plan),
        ]
        if not problems and self.slots < self.nodes:
            expected = f"must be at least one for each of the {self.nodes} nodes"
            problems.append(Problem("slots", self.slots, expected, involves=("nodes",)))
        if problems:
            raise InvalidInput(problems)

    def __str__(self) -> str:
        plan = "" if self.plan == "dp" else f" as {self.plan}"
        return f"{self.slots} × {self.gpu_type} on {self.nodes} node{'s' if self.nodes > 1 else ''}{plan}"

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a configuration."""
        return reader.attempt(
            lambda: cls(
                gpu_type=reader.text("gpu_type"),
                nodes=reader.integer("nodes"),
                slots=reader.integer("slots"),
                plan=reader.text("plan", "dp"),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields under their own names."""
        return {"gpu_type": self.gpu_type, "nodes": self.nodes, "slots": self.slots, "plan": self.plan}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Document):
    """Which slots of which nodes a job holds.

    Slots are named, not only counted: an executor needs to know which device to use, and that no slot is
    granted twice can then be checked outright. Nodes are in the order of their names and slots ascend, so
    that equal placements are equal values; :meth:`of` sorts.
    """

    slots_by_node: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    def _problems(self) -> Iterator[Problem]:
        if not self.slots_by_node:
            yield Problem("slots_by_node", self.slots_by_node, "must name at least one slot")
        names = [name for name, _ in self.slots_by_node]
        for name, slots in self.slots_by_node:
            yield from check_name("node", name)
            for slot in slots:
                yield from check_integer(f"slots of {show(name)}", slot, at_least=0)
            if not slots or list(slots) != sorted(set(slots)):
                yield Problem(f"slots of {show(name)}", slots, "must be at least one slot, each once, ascending")
        if names != sorted(set(names)):
            yield Problem("slots_by_node", self.slots_by_node, "must name each node once, in order of names")

    @classmethod
    def of(cls, slots_by_node: Mapping[str, Iterable[int]]) -> Self:
        """The placement on these slots of these nodes, given in any order.

        >>> Placement.of({"b-1": [3, 2], "a-0": [0]}).slots_by_node
        (('a-0', (0,)), ('b-1', (2, 3)))
        """
        return cls(slots_by_node=tuple(sorted((name, tuple(sorted(s))) for name, s in slots_by_node.items())))

    @classmethod
    def of_slots(cls, slots: Iterable[tuple[str, int]]) -> Self:
        """The placement on these slots, each a node and a number there.

        >>> Placement.of_slots([("b-1", 3), ("a-0", 0), ("b-1", 2)]).slots_by_node
        (('a-0', (0,)), ('b-1', (2, 3)))
        """
        by_node: dict[str, list[int]] = {}
        for node, slot in slots:
            by_node.setdefault(node, []).append(slot)
        return cls.of(by_node)

    @property
    def num_slots(self) -> int:
        """How many slots there are in all."""
        return sum(len(slots) for _, slots in self.slots_by_node)

    @property
    def num_nodes(self) -> int:
        """How many nodes the slots are on."""
        return len(self.slots_by_node)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that the slots are on."""
        return tuple(name for name, _ in self.slots_by_node)

    def slots(self) -> Iterator[tuple[str, int]]:
        """Every slot, as node and index, in the order in which ranks are given out."""
        return ((name, slot) for name, slots in self.slots_by_node for slot in slots)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a mapping of node names to lists of slots."""
        return reader.attempt(lambda: cls.of({name: reader.integers(name) for name in reader.names()}))

    def to_dict(self) -> dict[str, Any]:
        """A mapping of node names to lists of slots."""
        return {name: list(slots) for name, slots in self.slots_by_node}


def double_grants(placements: Iterable[Placement]) -> set[tuple[str, int]]:
    """The slots, as node and index, that more than one of the placements holds: none, in a valid plan."""
    granted: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for placement in placements:
        slots = set(placement.slots())
        twice |= granted & slots
        granted |= slots
    return twice


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(Document):
    """How a job reaches its total batch: samples per slot, and extra steps of gradient accumulation."""

    per_slot_batch_samples: int
    accumulation_steps: int = 0

    def __post_init__(self) -> None:
        problems = [
            *check_integer("per_slot_batch_samples", self.per_slot_batch_samples, at_least=1, at_most=MAX_BATCH_SIZE),
            *check_integer("accumulation_steps", self.accumulation_steps, at_least=0, at_most=MAX_BATCH_SIZE),
        ]
        if problems:
            raise InvalidInput(problems)

    def total_batch(self, slots: int) -> int:
        """Samples per optimiser step on this many slots.

        >>> BatchPlan(per_slot_batch_samples=32, accumulation_steps=1).total_batch(slots=4)
        256
        """
        return slots * self.per_slot_batch_samples * (self.accumulation_steps + 1)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a batch plan."""
        return reader.attempt(
            lambda: cls(
                per_slot_batch_samples=reader.integer("per_slot_batch_samples"),
                accumulation_steps=reader.integer("accumulation_steps", 0),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields under their own names."""
        return {
            "per_slot_batch_samples": self.per_slot_batch_samples,
            "accumulation_steps": self.accumulation_steps,
        }
