"""The network between nodes: the links of every tier, and what the uplinks of racks and zones carry.

A job that stands on several nodes synchronises over the narrowest link that it crosses: within its rack, between racks
of its zone, or between zones. :class:`Network` is what a cluster file says of these links; what it leaves out comes
from the GPU types. :class:`Links` answers, for any nodes of a cluster, which tier they cross, how much slower that is
than what profiles were measured on (the GPU type's own link within a rack), and which uplinks it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from geminid.documents import Document
from geminid.fields import NOT_SHOWN, InvalidInput, Problem, Reader, check_number
from geminid.gputypes import Interconnect, Link, LinkClass
from geminid.units import BytesPerSecond, format_bandwidth, format_duration

#: Bytes of one message of a collective: a gradient bucket of 25 MB, in the pieces of a ring of eight. The latency of a
#: link counts once for each.
MESSAGE_BYTES: Final = 25e6 / 8

#: Placements remembered at a time; a simulation meets the same ones again and again.
MOST_REMEMBERED: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """What joins a rack to its zone, or a zone to the cluster: a bandwidth, or one in proportion to what is below.

    ``oversubscription`` is how many times more the links below could send together than the uplink carries.
    """

    bandwidth_bytes_per_s: BytesPerSecond | None = None
    oversubscription: float | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        if (self.bandwidth_bytes_per_s is None) == (self.oversubscription is None):
            problems.append(Problem("", NOT_SHOWN, "must have either a bandwidth or an oversubscription"))
        if self.bandwidth_bytes_per_s is not None:
            problems += check_number("bandwidth", self.bandwidth_bytes_per_s, above=0)
        if self.oversubscription is not None:
            problems += check_number("oversubscription", self.oversubscription, above=0)
        if problems:
            raise InvalidInput(problems)

    def capacity(self, below_bytes_per_s: float) -> float:
        """Bytes per second in one direction, given what everything below it could send together."""
        if self.bandwidth_bytes_per_s is not None:
            return self.bandwidth_bytes_per_s
        assert self.oversubscription is not None
        return below_bytes_per_s / self.oversubscription

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a mapping with one of the two."""
        return reader.attempt(
            lambda: cls(
                bandwidth_bytes_per_s=reader.bandwidth("bandwidth", None),
                oversubscription=reader.number("oversubscription", None),
            )
        )

    def to_plain(self) -> str | dict[str, float]:
        """A bandwidth as text, an oversubscription as a mapping."""
        if self.bandwidth_bytes_per_s is not None:
            return format_bandwidth(self.bandwidth_bytes_per_s)
        assert self.oversubscription is not None
        return {"oversubscription": self.oversubscription}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Document):
    """The links of a cluster as its file describes them.

    A link that is None is that of the GPU types; an uplink that is None never limits anybody.
    """

    rack: Link | None = None
    zone: Link | None = None
    cluster: Link | None = None
    rack_uplink: Uplink | None = None
    zone_uplink: Uplink | None = None

    def link(self, tier: LinkClass, of_type: Interconnect) -> Link:
        """The link of a tier between slots of a GPU type; within a node it is always the type's own."""
        own: Link | None = None if tier is LinkClass.NODE else getattr(self, tier.value)
        return of_type.link(tier) if own is None else own

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read the ``network`` of a cluster file; everything may be left out."""
        return reader.attempt(
            lambda: cls(
                **{tier.value: _read_link(reader, tier.value) for tier in CROSSED_TIERS},
                rack_uplink=_read_uplink(reader, "rack_uplink"),
                zone_uplink=_read_uplink(reader, "zone_uplink"),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """What is not left to the GPU types."""
        links = {tier.value: getattr(self, tier.value) for tier in CROSSED_TIERS}
        uplinks = {"rack_uplink": self.rack_uplink, "zone_uplink": self.zone_uplink}
        written = {name: _link_to_plain(link) for name, link in links.items() if link is not None}
        return written | {name: uplink.to_plain() for name, uplink in uplinks.items() if uplink is not None}


#: Tiers that a network can describe: those between nodes.
CROSSED_TIERS: Final = (LinkClass.RACK, LinkClass.ZONE, LinkClass.CLUSTER)

#: Where a job stands whose nodes cross no further tier, in words.
WHERE: Final = {
    LinkClass.NODE: "on one node",
    LinkClass.RACK: "in one rack",
    LinkClass.ZONE: "across racks",
    LinkClass.CLUSTER: "across zones",
}

#: Nothing is said: the links are those of the GPU types, and no uplink limits anybody.
FROM_GPU_TYPES: Final = Network()


class Path(NamedTuple):
    """What a placement's synchronisation goes over: a tier, and how much slower it is than profiles assume.

    Profiles are of the GPU type's own link within a rack. A faster link has a slowdown below 1.
    """

    tier: LinkClass
    slowdown: float


class Crossing(NamedTuple):
    """The path of a placement, and the uplinks on it as indices into :attr:`Links.capacity`."""

    path: Path
    uplinks: tuple[int, ...] = ()


WITHIN_NODE: Final = Crossing(Path(LinkClass.NODE, 1.0))
WITHIN_RACK: Final = Crossing(Path(LinkClass.RACK, 1.0))


@dataclass(slots=True, eq=False)
class Links:
    """All links of a cluster: ``rack`` and ``zone`` by node, bandwidths by GPU type, capacities by uplink.

    Uplinks are those of the racks in their order, and then those of the zones. ``bandwidth`` has one entry per GPU
    type, by tier, in bytes per second with the latency of messages taken in; ``profiled`` is the type's own bandwidth
    within a rack, which profiles were measured on, and ``reached`` the part of it that collectives reach. ``tiers`` are
    those between nodes that placements can cross, the nearest first; ``limited`` says whether any uplink can be too
    narrow, and ``typical_capacity`` how wide most are on the way across a tier.
    """

    rack: Sequence[int]
    zone: Sequence[int]
    node_type: Sequence[int]
    bandwidth: Sequence[Mapping[LinkClass, float]]
    profiled: Sequence[float]
    reached: Sequence[float]
    capacity: NDArray[np.float64]
    tiers: tuple[LinkClass, ...]
    limited: bool
    typical_capacity: Mapping[LinkClass, float]
    _known: dict[tuple[int, ...], Crossing] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        network: Network,
        interconnects: Sequence[Interconnect],
        rack: NDArray[np.int64],
        zone: NDArray[np.int64],
        node_type: NDArray[np.int64],
    ) -> Links:
        """The links between nodes, given each one's rack, zone and GPU type, and the links of each type."""
        bandwidth = [{tier: effective(network.link(tier, own)) for tier in LinkClass} for own in interconnects]
        profiled = [effective(own.link(LinkClass.RACK)) for own in interconnects]
        reached = [own.efficiency * bandwidth for own, bandwidth in zip(interconnects, profiled, strict=True)]
        nic = np.array([network.link(LinkClass.RACK, own).bandwidth_bytes_per_s for own in interconnects])
        racks, zones = int(rack.max()) + 1, int(zone.max()) + 1
        sent = np.bincount(rack, weights=nic[node_type], minlength=racks)
        of_rack, of_zone = np.full(racks, np.inf), np.full(zones, np.inf)
        if network.rack_uplink is not None and racks > 1:
            of_rack = np.array([network.rack_uplink.capacity(below) for below in sent])
        if network.zone_uplink is not None and zones > 1:
            zone_of_rack = np.zeros(racks, dtype=np.int64)
            zone_of_rack[rack] = zone
            below = np.bincount(zone_of_rack, weights=np.minimum(of_rack, sent), minlength=zones)
            of_zone = np.array([network.zone_uplink.capacity(sum_below) for sum_below in below])
        capacity = np.concatenate([of_rack, of_zone])
        further = [LinkClass.ZONE] * (racks > zones) + [LinkClass.CLUSTER] * (zones > 1)
        limited = bool(np.isfinite(capacity).any())
        tiers = (LinkClass.RACK, *further)
        between_racks = float(np.median(of_rack))
        typical = {LinkClass.ZONE: between_racks, LinkClass.CLUSTER: min(between_racks, float(np.median(of_zone)))}
        positions = rack.tolist(), zone.tolist(), node_type.tolist()
        return cls(*positions, bandwidth, profiled, reached, capacity, tiers, limited, typical)

    @property
    def several_racks(self) -> bool:
        """Whether it makes any difference on which nodes a job stands."""
        return len(self.tiers) > 1

    @property
    def as_profiled(self) -> bool:
        """Whether all nodes are joined as profiles assume: in one rack, by the links of the GPU types."""
        types = range(len(self.bandwidth))
        return not self.several_racks and all(self.slowdown(LinkClass.RACK, index) == 1.0 for index in types)

    def slowdown(self, tier: LinkClass, type_index: int) -> float:
        """How much longer a message takes on a tier than profiles assume, where nobody else sends.

        Uplinks are taken to be as wide as most are; for given nodes, :meth:`crossing` knows those on their path.
        """
        if tier is LinkClass.NODE:
            return 1.0
        return self.slowdown_over(tier, type_index, self.typical_capacity.get(tier, np.inf))

    def slowdown_over(self, tier: LinkClass, type_index: int, uplink_bytes_per_s: float) -> float:
        """The same over given uplinks.

        A path is as fast as the narrowest of its links: within the racks, on the tier, and the uplinks. What profiles
        assume sends ``reached`` bytes per second, so that an uplink which carries as much costs nothing.
        """
        of_type = self.bandwidth[type_index]
        by_links = self.profiled[type_index] / min(of_type[LinkClass.RACK], of_type[tier])
        return max(by_links, self.reached[type_index] / uplink_bytes_per_s)

    def tier(self, nodes: Sequence[int]) -> LinkClass:
        """The smallest part of the cluster that holds all of these nodes."""
        if len(nodes) <= 1:
            return LinkClass.NODE
        if len({self.rack[node] for node in nodes}) == 1:
            return LinkClass.RACK
        return LinkClass.ZONE if len({self.zone[node] for node in nodes}) == 1 else LinkClass.CLUSTER

    def crossing(self, nodes: tuple[int, ...]) -> Crossing:
        """The path between some nodes of one GPU type, and the uplinks on it."""
        found = self._known.get(nodes)
        if found is None:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            found = self._known[nodes] = self._crossing(nodes)
        return found

    def _crossing(self, nodes: tuple[int, ...]) -> Crossing:
        tier = self.tier(nodes)
        if tier is LinkClass.NODE:
            return WITHIN_NODE
        type_index = self.node_type[nodes[0]]
        if tier is LinkClass.RACK:
            return Crossing(Path(tier, self.slowdown(tier, type_index)))
        used = {self.rack[node] for node in nodes}
        if tier is LinkClass.CLUSTER:
            racks = max(self.rack) + 1
            used |= {racks + self.zone[node] for node in nodes}
        uplinks = tuple(sorted(uplink for uplink in used if np.isfinite(self.capacity[uplink])))
        narrowest = float(np.min(self.capacity[list(uplinks)], initial=np.inf))
        return Crossing(Path(tier, self.slowdown_over(tier, type_index, narrowest)), uplinks)


def effective(link: Link) -> float:
    """Bytes per second that messages of a collective get on a link, its latency included."""
    if not link.latency_s:
        return link.bandwidth_bytes_per_s
    return MESSAGE_BYTES / (MESSAGE_BYTES / link.bandwidth_bytes_per_s + link.latency_s)


def _read_link(reader: Reader, name: str) -> Link | None:
    """A link is its bandwidth, or a mapping of bandwidth and latency."""
    if isinstance(reader.raw(name), Mapping):
        entry = reader.nested(name)
        return None if entry is None else Link.read(entry)
    bandwidth = reader.bandwidth(name, None)
    return None if bandwidth is None else Link(bandwidth_bytes_per_s=bandwidth)


def _read_uplink(reader: Reader, name: str) -> Uplink | None:
    """An uplink is its bandwidth, or a mapping with a bandwidth or an oversubscription."""
    if isinstance(reader.raw(name), Mapping):
        entry = reader.nested(name)
        return None if entry is None else Uplink.read(entry)
    bandwidth = reader.bandwidth(name, None)
    return None if bandwidth is None else Uplink(bandwidth_bytes_per_s=bandwidth)


def _link_to_plain(link: Link) -> str | dict[str, str]:
    bandwidth = format_bandwidth(link.bandwidth_bytes_per_s)
    if not link.latency_s:
        return bandwidth
    return {"bandwidth": bandwidth, "latency": format_duration(link.latency_s)}
