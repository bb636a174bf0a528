"""Nodes, and the groups of like nodes in which people write them down."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, Self

from geminid.documents import Document
from geminid.fields import InvalidInput, Problem, Reader, check_integer, check_name

MAX_NODES: Final = 1_000_000
MAX_SLOTS: Final = 1_000_000
MAX_SLOTS_PER_NODE: Final = 1024
DEFAULT_RACK: Final = "rack-0"
DEFAULT_ZONE: Final = "zone-0"

# A numbered name is a prefix and a number. The prefix is so short that any number fits into a name.
_MAX_PREFIX_LENGTH: Final = 40
_NUMBERED = re.compile(rf"(.{{1,{_MAX_PREFIX_LENGTH}}})-(0|[1-9][0-9]{{0,8}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with a number of slots of one GPU type."""

    name: str
    gpu_type: str
    slots: int
    rack: str = DEFAULT_RACK
    zone: str = DEFAULT_ZONE

    def __post_init__(self) -> None:
        problems = [
            *check_name("name", self.name),
            *check_name("type", self.gpu_type),
            *check_integer("slots", self.slots, at_least=1, at_most=MAX_SLOTS_PER_NODE),
            *check_name("rack", self.rack),
            *check_name("zone", self.zone),
        ]
        if problems:
            raise InvalidInput(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup(Document):
    """Nodes of one kind, as a cluster file lists them.

    A single node can have a ``name``. Otherwise nodes are called ``PREFIX-0``, ``PREFIX-1``, …: the prefix is
    the GPU type's name unless given, and counting goes on from the group before with the same prefix unless
    ``first`` is given. With ``nodes_per_rack``, racks are called ``RACK-0``, ``RACK-1``, … and are filled one
    after the other.
    """

    gpu_type: str
    slots: int
    count: int = 1
    name: str | None = None
    prefix: str | None = None
    first: int | None = None
    rack: str | None = None
    nodes_per_rack: int | None = None
    zone: str = DEFAULT_ZONE

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    def _problems(self) -> Iterator[Problem]:
        yield from check_name("type", self.gpu_type)
        yield from check_integer("slots", self.slots, at_least=1, at_most=MAX_SLOTS_PER_NODE)
        yield from check_integer("count", self.count, at_least=1, at_most=MAX_NODES)
        yield from check_name("zone", self.zone)
        for label in ("name", "prefix", "rack"):
            if (text := getattr(self, label)) is not None:
                yield from check_name(label, text)
        if self.first is not None:
            yield from check_integer("first", self.first, at_least=0, at_most=999_999_999)
        if self.nodes_per_rack is not None:
            yield from check_integer("nodes_per_rack", self.nodes_per_rack, at_least=1)
        if self.name is not None and (self.count != 1 or self.prefix is not None or self.first is not None):
            expected = "stands for one node and goes with neither count, prefix nor first"
            yield Problem("name", self.name, expected, involves=("count", "prefix", "first"))
        numbered = {"prefix": self.prefix, "rack": self.rack if self.nodes_per_rack else None}
        names_racks = bool(self.nodes_per_rack) and self.rack is None
        if self.prefix is None and (self.name is None or names_racks):
            numbered["type"] = self.gpu_type
        for label, text in numbered.items():
            if isinstance(text, str) and len(text) > _MAX_PREFIX_LENGTH:
                expected = f"must have at most {_MAX_PREFIX_LENGTH} characters, as names of nodes or racks begin so"
                yield Problem(label, text, expected)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read one entry of ``nodes``."""
        return reader.attempt(
            lambda: cls(
                gpu_type=reader.text("type"),
                slots=reader.integer("slots"),
                count=reader.integer("count", 1),
                name=reader.text("name", None),
                prefix=reader.text("prefix", None),
                first=reader.integer("first", None),
                rack=reader.text("rack", None),
                nodes_per_rack=reader.integer("nodes_per_rack", None),
                zone=reader.text("zone", DEFAULT_ZONE),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The entry without what is left to defaults."""
        entry = {
            "type": self.gpu_type,
            "count": self.count if self.name is None else None,
            "slots": self.slots,
            "name": self.name,
            "prefix": self.prefix,
            "first": self.first,
            "rack": self.rack,
            "nodes_per_rack": self.nodes_per_rack,
            "zone": self.zone,
        }
        return {key: value for key, value in entry.items() if value is not None}


def expand(groups: Iterable[NodeGroup]) -> tuple[Node, ...]:
    """The nodes of some groups, with their names and racks.

    Raises:
        InvalidInput: there would be more than a cluster can have.
    """
    groups = tuple(groups)
    nodes, slots = sum(group.count for group in groups), sum(group.count * group.slots for group in groups)
    if problems := check_total(nodes, slots):
        raise InvalidInput(problems)  # before building millions of nodes
    next_node: Counter[str] = Counter()
    next_rack: Counter[str] = Counter()
    return tuple(chain.from_iterable(_expand_group(group, next_node, next_rack) for group in groups))


def _expand_group(group: NodeGroup, next_node: Counter[str], next_rack: Counter[str]) -> list[Node]:
    """The nodes of one group; the counters say where the numbering of a prefix goes on."""
    prefix = group.prefix or group.gpu_type
    names = [group.name] if group.name else _numbered(prefix, group.count, next_node, group.first)
    if group.nodes_per_rack:
        count = -(-group.count // group.nodes_per_rack)
        racks = _numbered(group.rack or f"{prefix}-rack", count, next_rack)
        rack_of = [racks[i // group.nodes_per_rack] for i in range(group.count)]
    else:
        rack_of = [group.rack or DEFAULT_RACK] * group.count
    # A group has checked all that its nodes are made of. Not to check each node again, and to fill one field
    # after the other, makes a large cluster several times cheaper to build.
    nodes = list(map(object.__new__, repeat(Node, group.count)))
    of_all: dict[str, Iterable[object]] = {"name": names, "rack": rack_of}
    of_all |= {"gpu_type": repeat(group.gpu_type), "slots": repeat(group.slots), "zone": repeat(group.zone)}
    for field, values in of_all.items():
        deque(map(vars(Node)[field].__set__, nodes, values), maxlen=0)
    return nodes


def _numbered(prefix: str, count: int, next_number: Counter[str], first: int | None = None) -> list[str]:
    start = next_number[prefix] if first is None else first
    next_number[prefix] = start + count
    return [f"{prefix}-{number}" for number in range(start, start + count)]


def group_nodes(nodes: Iterable[Node]) -> list[NodeGroup]:
    """The groups that :func:`expand` to these nodes: as few as can be without changing their order."""
    next_number: Counter[str] = Counter()
    previous: object = None
    groups: list[dict[str, Any]] = []
    for node in nodes:
        group = {"gpu_type": node.gpu_type, "slots": node.slots, "rack": node.rack, "zone": node.zone}
        match = _NUMBERED.fullmatch(node.name)
        if match is None:
            groups.append({**group, "name": node.name})
            previous = None
            continue
        prefix, number = match[1], int(match[2])
        kind = (prefix, node.gpu_type, node.slots, node.rack, node.zone)
        continues = number == next_number[prefix]
        next_number[prefix] = number + 1
        if continues and kind == previous:
            groups[-1]["count"] += 1
            continue
        previous = kind
        own_prefix = None if prefix == node.gpu_type else prefix
        groups.append({**group, "count": 1, "prefix": own_prefix, "first": None if continues else number})
    return [NodeGroup(**group) for group in groups]


def check_total(nodes: int, slots: int) -> list[Problem]:
    """Is the cluster of a size that can be handled?"""
    problems = [*check_integer("nodes in all", nodes, at_most=MAX_NODES)]
    return [*problems, *check_integer("slots in all", slots, at_most=MAX_SLOTS)]
