"""Addresses: whether a cluster's head may be at one, and at which one its nodes reach this machine."""

from __future__ import annotations

import socket

#: Time after which an address that does not answer counts as one where no head is, in seconds.
ADDRESS_S = 5.0


def trouble_at(address: str) -> str | None:
    """Why there is no head of a cluster at an address; None if there may be."""
    if address == "auto":
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        return f"address is {address!r}, but must be HOST:PORT"
    try:
        socket.create_connection((host, int(port)), timeout=ADDRESS_S).close()
    except OSError as problem:
        return f"nothing answers at {address} ({problem.strerror or problem}): is the cluster's head there?"
    return None


def own_address(node: str, address: str) -> str:
    """The address at which the nodes can reach this machine: the one from which it reaches one of them."""
    head = address.rpartition(":")[0]
    if head.startswith("127.") and node.startswith("127."):
        return head
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 9))
        return str(probe.getsockname()[0])
