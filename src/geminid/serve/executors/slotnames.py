"""What the slots of this machine are called, from one service to the next.

Processes outlive the service that started them, and the next one may offer other slots: fewer of them, or other
devices, whose numbers change when one falls off the bus. So a slot's name stands for what the slot *is*, a device or
the number of a CPU slot, and is never given to another; where it is, a node and a number there, may change. Names are
written down in the service's folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from geminid.cluster import Cluster
from geminid.serve.auth import write_private

FILE = "slots.json"

#: Numbers from here on are more than a machine has slots: those of slots that are nowhere any more.
BEYOND = 10_000

#: A node and the number of a slot there.
Place = tuple[str, int]


class SlotNames:
    """The names of a machine's slots, and of those that it had before."""

    def __init__(self, folder: Path, cluster: Cluster, devices: Sequence[str] = ()) -> None:
        places = [(node.name, index) for node in cluster.nodes for index in range(node.slots)]
        self._file, known = folder / FILE, _read(folder / FILE)
        ids = list(devices) or [f"{node}/{index}" for node, index in places]
        self._before = {place: name for name, (_, place) in known.items() if place is not None}
        by_id = {identity: name for name, (identity, _) in known.items()}
        unused = (str(number) for number in range(len(known) + len(ids)) if str(number) not in known)
        self._places = {
            by_id[identity] if identity in by_id else next(unused): place
            for identity, place in zip(ids, places, strict=True)
        }
        self._names = {place: name for name, place in self._places.items()}
        self._written = known
        self._now: dict[str, tuple[str, Place | None]] = {
            name: (identity, None) for name, (identity, _) in known.items()
        }
        self._now |= {name: (identity, self._places[name]) for identity, name in zip(ids, self._places, strict=True)}
        self._node = places[0][0]
        lost = {name: place for place, name in self._before.items() if name not in self._places}
        self._gone = {name: place for name, place in lost.items() if place not in self._names}
        self.lost = [f"{node}/{index}" for node, index in sorted(lost.values())]
        self.count = 1 + max(map(int, self._now))

    def write(self) -> None:
        """Have the next service know these names."""
        if self._now != self._written:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._file, json.dumps({name: list(slot) for name, slot in self._now.items()}))
            self._written = self._now

    def has(self, name: str) -> bool:
        """Whether there still is such a slot."""
        return name in self._places

    def name(self, place: Place) -> str:
        """The slot at a place of now, or at one that ``place`` gave for a slot that is gone."""
        if place in self._names:
            return self._names[place]
        gone = {where: name for name, where in self._gone.items()}
        if place in gone:
            return gone[place]
        return str(place[1] - BEYOND if place[1] >= BEYOND else place[1] + BEYOND)

    def place(self, name: str) -> Place:
        """Where a slot is; one that is gone is where it was, or beyond all others if another is there now."""
        return self._places.get(name) or self._gone.get(name) or (self._node, BEYOND + int(name))

    def moved(self, place: Place) -> Place | None:
        """Where the slot is now that was at a place when the last service ran; None if it is gone."""
        return self._places.get(self._before.get(place, self._names.get(place, "")))


def known_places(folder: Path) -> dict[str, Place]:
    """Where the slots of a service's folder were when it last ran, by their names."""
    return {name: place for name, (_, place) in _read(folder / FILE).items() if place is not None}


def _read(file: Path) -> dict[str, tuple[str, Place | None]]:
    """What was written last: of each name what it stands for, and where that was, if it was anywhere."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(int(name)): (str(identity), None if place is None else (str(place[0]), int(place[1])))
            for name, (identity, place) in document.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return {}


class NodeSlotNames:
    """Slots that are called ``node/index``, where nodes keep their names."""

    def name(self, place: Place) -> str:
        """The name of a slot."""
        return f"{place[0]}/{place[1]}"

    def place(self, name: str) -> Place:
        """The node and the number of a slot."""
        return place_of(name)

    def has(self, name: str) -> bool:
        """Nodes come and go: there may be such a slot."""
        return True

    def moved(self, place: Place) -> Place | None:
        """Slots stay where they are."""
        return place


def place_of(slot: str) -> Place:
    """The node and the number of a slot that is called ``node/index``."""
    node, _, index = slot.rpartition("/")
    return node, int(index)


def node_of(slot: str) -> str:
    """The node of a slot that is called ``node/index``."""
    return slot.rpartition("/")[0]
