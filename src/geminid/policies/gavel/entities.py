"""The entities that share a cluster, as their file describes them: weights, rules and who belongs to whom.

The hierarchical policies read it (``hierarchical:entities=teams.yaml``). ``rule`` is how the outermost entities share
the cluster; every entity has a weight among its siblings, a rule for its own members, owners and queues whose jobs
belong to it, and entities of its own, to any depth::

    rule: fairness
    entities:
      lab:
        weight: 2
        entities:
          ann: {weight: 3}
          bob: {rule: fifo}
      production: {rule: fifo, queues: [nightly, releases]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from geminid.documents import Document
from geminid.fields import InvalidInput, Problem, Reader, suggestion
from geminid.policies.gavel.problem import LEAST_WEIGHT, MOST_WEIGHT
from geminid.policies.gavel.waterfill import Order

#: Names of an entity and of those that it is part of, the outermost first.
Path = tuple[str, ...]

ORDERS: dict[str, Order] = {"fairness": "fairness", "fifo": "fifo"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One entity: its weight among its siblings, how its members share (None: as others), and whose jobs are its."""

    path: Path
    weight: float = 1.0
    rule: Order | None = None
    owners: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)  # without slots, so that cached properties have a place to live
class Entities(Document):
    """All entities of a file, those outside before those within them, and the rule of the cluster itself."""

    rule: Order | None = None
    described: tuple[Described, ...] = ()

    def __post_init__(self) -> None:
        if problems := [*self._twice("owners"), *self._twice("queues")]:
            raise InvalidInput(problems)

    def _twice(self, field: str) -> Iterator[Problem]:
        """Nobody may belong to two entities."""
        seen: dict[str, Path] = {}
        for entity in self.described:
            for name in getattr(entity, field):
                other = seen.setdefault(name, entity.path)
                if other != entity.path:
                    where = f"{_field(entity.path)}.{field}"
                    yield Problem(where, name, f"must be in one entity only, and is in {'/'.join(other)} too")

    @cached_property
    def by_path(self) -> Mapping[Path, Described]:
        """The entities by their paths."""
        return {entity.path: entity for entity in self.described}

    @cached_property
    def _by_queue(self) -> Mapping[str, Path]:
        return {queue: entity.path for entity in self.described for queue in entity.queues}

    @cached_property
    def _by_owner(self) -> Mapping[str, Path]:
        """Owners that are listed, and those who are called like one entity and no other."""
        names = [entity.path[-1] for entity in self.described]
        alike = {entity.path[-1]: entity.path for entity in self.described if names.count(entity.path[-1]) == 1}
        return {**alike, **{owner: entity.path for entity in self.described for owner in entity.owners}}

    def entity_of(self, owner: str, queue: str) -> Path:
        """Where a job belongs: by its queue, by its owner, or where its owner's name, written like a path, says."""
        if queue in self._by_queue:
            return self._by_queue[queue]
        path = tuple(owner.split("/")) if owner else ()
        return path if path in self.by_path else self._by_owner.get(owner, path)

    def part_of(self, path: Path) -> float | None:
        """What part of the cluster an entity has if all of them always want more; None where it is first come first."""
        part = 1.0
        for depth in range(1, len(path) + 1):
            above = path[: depth - 1]
            if (self.by_path[above].rule if above else self.rule) == "fifo":
                return None
            siblings = [entity.weight for entity in self.described if entity.path[:-1] == above]
            part *= self.by_path[path[:depth]].weight / sum(siblings)
        return part

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read the mapping form."""
        return reader.attempt(lambda: cls(rule=_rule(reader), described=tuple(_within(reader, ()))))

    def to_dict(self) -> dict[str, Any]:
        """The mapping form."""
        return {"rule": self.rule or "fairness", "entities": self._plain(())}

    def _plain(self, path: Path) -> dict[str, Any]:
        result = {}
        for entity in self.described:
            if entity.path[:-1] == path:
                plain: dict[str, Any] = {"weight": entity.weight}
                plain |= {"rule": entity.rule} if entity.rule else {}
                plain |= {"owners": list(entity.owners)} if entity.owners else {}
                plain |= {"queues": list(entity.queues)} if entity.queues else {}
                below = self._plain(entity.path)
                result[entity.path[-1]] = plain | ({"entities": below} if below else {})
        return result


def _within(reader: Reader, path: Path) -> Iterator[Described]:
    """The entities directly within one, each followed by those within it."""
    for name, entry in reader.nested_by_name("entities").items():
        yield from entry.attempt(lambda entry=entry, name=name: _entity(entry, (*path, name))) or ()  # type: ignore[misc]


def _entity(reader: Reader, path: Path) -> list[Described]:
    entity = Described(
        path=path,
        weight=reader.number("weight", 1.0, at_least=LEAST_WEIGHT, at_most=MOST_WEIGHT),
        rule=_rule(reader),
        owners=reader.texts("owners", ()),
        queues=reader.texts("queues", ()),
    )
    return [entity, *_within(reader, path)]


def _rule(reader: Reader) -> Order | None:
    text = reader.text("rule", None)
    if text is not None and text not in ORDERS:
        reader.report("rule", text, f"must be fairness or fifo{suggestion(text, ORDERS)}")
    return ORDERS.get(text or "")


def _field(path: Path) -> str:
    return "entities." + ".entities.".join(path)
