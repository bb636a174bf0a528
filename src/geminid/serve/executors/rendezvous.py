"""How the processes of a plain command, one on each of its nodes, find each other: as ``torchrun`` wants it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

#: Where they may meet: below the ports that Linux gives to programs that ask for any (from 32768 on) and those of
#: services in Kubernetes (from 30000 on), and above those of Ray's workers (up to 19999).
PORTS = range(20_000, 30_000)


def meeting_place(addresses: Mapping[str, str]) -> dict[str, str]:
    """For all processes of one try: the address of the first node, and a port there that is probably free.

    Nobody keeps the port until then. A try that finds it taken fails, and the next one has another.
    """
    return {"MASTER_ADDR": next(iter(addresses.values())), "MASTER_PORT": str(secrets.choice(PORTS))}


def place_among(addresses: Mapping[str, str], node: str, slots: int) -> dict[str, str]:
    """For the process on one of the nodes, which has ``slots`` slots there: the addresses of all, and its own rank."""
    return {
        "GEMINID_NODES": ",".join(addresses),
        "GEMINID_ADDRESSES": ",".join(addresses.values()),
        "GEMINID_NODE_COUNT": str(len(addresses)),
        "GEMINID_NODE_RANK": str(list(addresses).index(node)),
        "GEMINID_SLOT_COUNT": str(slots),
    }
