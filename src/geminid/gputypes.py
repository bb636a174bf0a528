"""GPU types: how much memory, at what cost, joined by which links; and a catalogue of well-known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

from geminid.documents import Document
from geminid.fields import (
    NOT_SHOWN,
    InvalidInput,
    Problem,
    Reader,
    check_boolean,
    check_integer,
    check_name,
    check_number,
    check_tuple,
)
from geminid.units import Bytes, BytesPerSecond, Seconds, format_bandwidth, format_duration, format_size


class LinkClass(StrEnum):
    """How far apart two slots are: the smallest part of the cluster that holds both."""

    NODE = "node"
    RACK = "rack"
    ZONE = "zone"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one slot gets when it sends to another: bandwidth in one direction, and latency."""

    bandwidth_bytes_per_s: BytesPerSecond
    latency_s: Seconds = 0.0

    def __post_init__(self) -> None:
        problems = [
            *check_number("bandwidth", self.bandwidth_bytes_per_s, above=0),
            *check_number("latency", self.latency_s, at_least=0),
        ]
        if problems:
            raise InvalidInput(problems)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a mapping of bandwidth and latency."""
        return reader.attempt(
            lambda: cls(
                bandwidth_bytes_per_s=reader.bandwidth("bandwidth"),
                latency_s=reader.duration("latency", 0.0),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The links between slots of one GPU type, by how far apart the slots are.

    ``efficiency`` is the share of the bandwidth of links between nodes that collectives reach. It limits what a node
    sends; an uplink that several nodes share is filled completely.
    """

    node: Link
    rack: Link
    zone: Link
    cluster: Link
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        problems = check_number("efficiency", self.efficiency, above=0, at_most=1)
        if problems:
            raise InvalidInput(problems)

    def link(self, link_class: LinkClass) -> Link:
        """The link between two slots that are this far apart."""
        link: Link = getattr(self, link_class.value)
        return link

    @classmethod
    def read(cls, reader: Reader, defaults: Interconnect) -> Self | None:
        """Read the links; one that is left out keeps its default."""
        return reader.attempt(
            lambda: cls(
                **{name: _read_link(reader, name, defaults) for name in LinkClass},
                efficiency=reader.number("efficiency", defaults.efficiency),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Bandwidths as text such as ``300GB/s``; with a latency, a mapping of both."""
        links = {name.value: self.link(name) for name in LinkClass}
        return {name: _link_to_plain(link) for name, link in links.items()} | {"efficiency": self.efficiency}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A kind of accelerator (or a CPU slot): its memory, its cost relative to other types, its links."""

    name: str
    memory_bytes: Bytes
    relative_cost: float = 1.0
    interconnect: Interconnect

    def __post_init__(self) -> None:
        problems = [
            *check_name("name", self.name),
            *check_integer("memory", self.memory_bytes, at_least=1),
            *check_number("relative_cost", self.relative_cost, at_least=0),
        ]
        if problems:
            raise InvalidInput(problems)

    @classmethod
    def read(cls, reader: Reader, name: str) -> Self | None:
        """Read a type of a given name; what is left out is as in :func:`named_gpu_type`."""
        known = named_gpu_type(name)
        links = reader.nested("interconnect")
        return reader.attempt(
            lambda: cls(
                name=name,
                memory_bytes=reader.size("memory", known.memory_bytes),
                relative_cost=reader.number("relative_cost", known.relative_cost),
                interconnect=(links and Interconnect.read(links, known.interconnect)) or known.interconnect,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """All but the name, in full, so that a change of the catalogue changes nothing that was written."""
        return {
            "memory": format_size(self.memory_bytes),
            "relative_cost": self.relative_cost,
            "interconnect": self.interconnect.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPreference(Document):
    """Which GPU types a job may use: any of some, or some in order of preference; no names for any at all."""

    names: tuple[str, ...] = ()
    ordered: bool = False

    def __post_init__(self) -> None:
        form = "ordered" if self.ordered is True else "any_of"
        problems = check_tuple(form, self.names, check_name)
        if not problems and len(set(self.names)) < len(self.names):
            problems.append(Problem(form, self.names, "must name each type once"))
        problems += check_boolean("ordered", self.ordered)
        if problems:
            raise InvalidInput(problems)

    def allows(self, gpu_type: str) -> bool:
        """May the job use this type?"""
        return not self.names or gpu_type in self.names

    def rank(self, gpu_type: str) -> int:
        """How far down the order of preference an allowed type is; all are first where there is no order."""
        return self.names.index(gpu_type) if self.ordered and self.names else 0

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read ``any_of`` or ``ordered``, a list of names that is not empty."""
        return reader.attempt(lambda: cls(**_read_names(reader)))

    def to_dict(self) -> dict[str, Any]:
        """``any_of`` or ``ordered`` with the names."""
        return {"ordered" if self.ordered else "any_of": list(self.names)}


ANY_GPU_TYPE: Final = GpuPreference()
"""No preference at all."""


def named_gpu_type(name: str) -> GpuType:
    """The type that the catalogue has under a name, in any case, or else a plain PCIe card with 16 GiB.

    Raises:
        InvalidInput: the text cannot be a name.
    """
    known = name.lower()
    return replace(CATALOGUE.get(ALIASES.get(known, known), _UNKNOWN), name=name)


def is_in_catalogue(name: str) -> bool:
    """Does the catalogue know this name, itself or as an alias?"""
    return name.lower() in CATALOGUE or name.lower() in ALIASES


def read_preference(reader: Reader, field: str) -> GpuPreference | None:
    """Read a list, ``{any_of: list}`` or ``{ordered: list}``; None if the field is absent or wrong."""
    value = reader.raw(field)
    if value is None:
        return None
    choice = value if isinstance(value, Mapping) else {"any_of": value}
    return GpuPreference.read(Reader(choice, at=reader.field_name(field), problems=reader.problems))


def _read_names(reader: Reader) -> dict[str, Any]:
    any_of, ordered = reader.texts("any_of", None), reader.texts("ordered", None)
    names = any_of or ordered
    if not names or (any_of is not None and ordered is not None):
        reader.report("", NOT_SHOWN, "must be either any_of or ordered, a list that names at least one type")
    return {"names": names or (), "ordered": ordered is not None}


def _read_link(reader: Reader, name: LinkClass, defaults: Interconnect) -> Link:
    """A link is written as its bandwidth, or as a mapping of bandwidth and latency."""
    entry = reader.nested(name) if isinstance(reader.raw(name), Mapping) else None
    if entry is not None:
        return Link.read(entry) or defaults.link(name)
    bandwidth = reader.bandwidth(name, None)
    return defaults.link(name) if bandwidth is None else Link(bandwidth_bytes_per_s=bandwidth)


def _link_to_plain(link: Link) -> str | dict[str, str]:
    bandwidth = format_bandwidth(link.bandwidth_bytes_per_s)
    if not link.latency_s:
        return bandwidth
    return {"bandwidth": bandwidth, "latency": format_duration(link.latency_s)}


# --- The catalogue ---
#
# Memory: about what a program can use, in whole GiB, and rather too little than too much.
# Relative cost: V100 = 1. V100, P100 and K80 from the prices of Gavel's evaluation ($0.74, 0.43 and 0.135 an
# hour); the others approximate public on-demand cloud prices; workstation cards are a guess in proportion.
# Links, one direction: inside a node the data sheets' NVLink (V100 6 × 25 GB/s, A100 12 × 25, H100 and H200
# 18 × 25) or about 12 GB/s for PCIe 3.0 × 16; between nodes of a rack the network that such machines usually
# come with (25 Gbit/s; InfiniBand HDR for A100, NDR for H100 and H200); half of that across racks (a spine
# oversubscribed two to one); 10 Gbit/s between zones.
# Efficiency: the share of the links between nodes that all-reduce reaches; T4 and RTX 2080 Ti fitted, roughly, to
# published step times of Pollux and Sia, the others estimated.
# They are starting points: a cluster file overrides them, and measured step times correct what follows.

_GB: Final = 10**9
_GIB: Final = 2**30
PCIE_BYTES_PER_S: Final = 12 * _GB
_PCIE: Final = PCIE_BYTES_PER_S
_ETHERNET: Final = 3.125 * _GB


def _catalogue() -> Iterator[GpuType]:
    rows = (
        # name, memory in GiB, relative cost, bytes/s within a node, bytes/s within a rack, efficiency between nodes
        ("cpu", 4, 0.02, 10 * _GB, 1.25 * _GB, 0.5),
        ("k80", 11, 0.1824, _PCIE, _ETHERNET, 0.5),
        ("p100", 15, 0.5811, _PCIE, _ETHERNET, 0.5),
        ("v100", 15, 1.0, 150 * _GB, _ETHERNET, 0.5),
        ("v100-32gb", 31, 1.2, 150 * _GB, _ETHERNET, 0.5),
        ("t4", 14, 0.14, _PCIE, _ETHERNET, 0.3),
        ("rtx2080ti", 10, 0.2, _PCIE, _ETHERNET, 0.3),
        ("quadro-rtx6000", 22, 0.4, _PCIE, _ETHERNET, 0.3),
        ("a100-40gb", 39, 1.2, 300 * _GB, 25 * _GB, 0.6),
        ("a100-80gb", 79, 1.6, 300 * _GB, 25 * _GB, 0.6),
        ("h100", 79, 4.0, 450 * _GB, 50 * _GB, 0.6),
        ("h200", 139, 4.5, 450 * _GB, 50 * _GB, 0.6),
        ("unknown", 16, 1.0, _PCIE, _ETHERNET, 0.5),
    )
    for name, memory_gib, relative_cost, node, rack, efficiency in rows:
        links = {"node": node, "rack": rack, "zone": rack / 2, "cluster": min(1.25 * _GB, rack / 2)}
        yield GpuType(
            name=name,
            memory_bytes=memory_gib * _GIB,
            relative_cost=relative_cost,
            interconnect=Interconnect(
                **{link: Link(bandwidth_bytes_per_s=float(bandwidth)) for link, bandwidth in links.items()},
                efficiency=efficiency,
            ),
        )


*_known_types, _UNKNOWN = _catalogue()

CATALOGUE: Final = MappingProxyType({gpu_type.name: gpu_type for gpu_type in _known_types})
"""Well-known GPU types by name."""

ALIASES: Final = MappingProxyType(
    # Names that people and published workloads (Sia's) use for types of the catalogue.
    {
        "a100": "a100-40gb",
        "aws": "t4",
        "azure": "v100",
        "dgx": "a100-40gb",
        "dgx-ext": "a100-40gb",
        "quad": "quadro-rtx6000",
        "rtx": "rtx2080ti",
        "rtx6000": "quadro-rtx6000",
    }
)
"""Other names for types of the catalogue."""
