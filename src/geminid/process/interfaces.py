"""Which network interface has an address."""

from __future__ import annotations

import socket

import psutil


def interfaces_with(address: str) -> list[str]:
    """The names of the network interfaces that have an address; all of 127.0.0.0/8 is the loopback interface's."""
    if address.startswith("127."):
        return [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return [name for name, found in psutil.net_if_addrs().items() if any(one.address == address for one in found)]
