"""What this machine has: its CUDA devices, or as many CPU slots as are wanted, and its addresses."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from geminid.cluster import Cluster
from geminid.fields import InvalidInput, Problem
from geminid.nodes import NodeGroup
from geminid.process.launch import MEMORY

#: The node that this machine is; with devices of several types, a node ``local-TYPE`` for each.
NODE = "local"

#: In the environment of a process: its slots of its node, with commas.
SLOTS = "GEMINID_SLOTS"

NO_DEVICES = "must be left out: nvidia-smi finds no CUDA devices on this machine"


@dataclass(frozen=True, slots=True)
class Device:
    """A CUDA device: its number in the order of the bus, its UUID, what it is called, and whether it is divided."""

    index: str
    uuid: str
    name: str
    divided: bool = False

    @property
    def gpu_type(self) -> str:
        """``NVIDIA H200`` becomes ``h200``."""
        words = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return words.removeprefix("nvidia-").removeprefix("tesla-") or "gpu"


def machine(slots: int | None = None, devices: Sequence[Device] = ()) -> Cluster:
    """The cluster that this machine is: a slot for each device, or ``slots`` CPU slots (default: one per core).

    Devices of several types make a node for each type, because a job trains on one type at a time.
    """
    types = list(dict.fromkeys(device.gpu_type for device in devices))
    if types:
        counts = Counter(device.gpu_type for device in devices)
        name = "{}" if len(types) == 1 else "{}-{}"
        return Cluster.of_groups(
            [NodeGroup(gpu_type=of, count=1, slots=counts[of], name=name.format(NODE, of)) for of in types]
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cluster.of_groups([NodeGroup(gpu_type="cpu", count=1, slots=slots or cores, name=NODE)])


def chosen_devices(wanted: str | None = None) -> list[Device]:
    """The devices to use, those of a type together: the ones wanted, or those in ``$CUDA_VISIBLE_DEVICES``, or all.

    They are named as there: numbers (in the order of the bus, which is that of nvidia-smi) or UUIDs, with commas.

    Raises:
        InvalidInput: there is no such device, or it is divided.
    """
    found = cuda_devices()
    field, text = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        field, text = "devices", wanted
    elif not found:
        return []
    chosen = found if text is None else _named(found, field, text)
    for device in chosen:
        if device.divided:
            expected = "must be left out with --devices, or MIG turned off: MIG instances of a device are no slots"
            raise InvalidInput([Problem("devices", device.index, expected)])
    order = list(dict.fromkeys(device.gpu_type for device in chosen))
    return sorted(chosen, key=lambda device: order.index(device.gpu_type))


def _named(found: Sequence[Device], field: str, text: str) -> list[Device]:
    """The devices that are named; none after ``-1``, as CUDA has it."""
    chosen: list[Device] = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name in ("-1", "NoDevFiles"):
            break
        if name.startswith("MIG-"):
            raise InvalidInput([Problem(field, name, "must be a whole device: MIG instances are no slots")])
        uuids = [device for device in found if name.startswith("GPU-") and device.uuid.startswith(name)]
        match = [device for device in found if device.index == name] or uuids
        if len(match) != 1:
            here = ", ".join(device.index for device in found)
            expected = f"must name a device that is here, by its number ({here}) or its UUID" if here else NO_DEVICES
            raise InvalidInput([Problem(field, name, expected)])
        if match[0] in chosen:
            raise InvalidInput([Problem(field, name, "must name a device once")])
        chosen += match
    return chosen


def cuda_devices() -> list[Device]:
    """The CUDA devices, asked of the driver's own tool: PyTorch would take seconds, and a context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    for fields in ("index,uuid,mig.mode.current,name", "index,uuid,index,name"):  # an old tool knows no MIG
        try:
            asked = subprocess.run(
                [tool, f"--query-gpu={fields}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=20.0,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        rows = [[word.strip() for word in line.split(",", 3)] for line in asked.stdout.splitlines()]
        return [Device(row[0], row[1], row[3], divided=row[2] == "Enabled") for row in rows if len(row) == 4]
    return []


def slot_environment(
    slots: Sequence[int], devices: Sequence[str] = (), slot_memory_bytes: int | None = None
) -> dict[str, str]:
    """What a process needs to see its slots and no others: of these devices, by slot, or none; and how much memory."""
    visible = ",".join(devices[slot] for slot in slots) if devices else ""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if devices else {}  # numbers mean what nvidia-smi says
    memory = {} if slot_memory_bytes is None else {MEMORY: str(slot_memory_bytes * len(slots))}
    return {"CUDA_VISIBLE_DEVICES": visible, SLOTS: ",".join(map(str, slots)), **order, **memory}


def is_of_this_machine(host: str) -> bool:
    """Whether an address is one of this machine's."""
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True
