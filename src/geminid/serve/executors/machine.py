"""What slots this machine has: its CUDA devices, or as many CPU slots as are wanted."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from geminid.cluster import Cluster
from geminid.nodes import NodeGroup
from geminid.train.launcher import python_command

#: The node that this machine is.
NODE = "local"

#: Scripts are read up to this size to see whether they use the training library.
MOST_SCRIPT_BYTES = 1 << 20


def machine(slots: int | None = None) -> Cluster:
    """The cluster that this machine is: a slot for each CUDA device, or so many CPU slots (default: one per core)."""
    devices = cuda_devices() if slots is None else []
    if devices:
        return Cluster.of_groups([NodeGroup(gpu_type=_type_name(devices[0]), count=1, slots=len(devices), name=NODE)])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cluster.of_groups([NodeGroup(gpu_type="cpu", count=1, slots=slots or cores, name=NODE)])


def cuda_devices() -> list[str]:
    """The names of the CUDA devices, asked of the driver's own tool: PyTorch would take seconds, and a context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()]


def _type_name(device: str) -> str:
    """``NVIDIA H200`` becomes ``h200``."""
    words = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return words.removeprefix("nvidia-").removeprefix("tesla-") or "gpu"


def slot_environment(gpu_type: str, slots: Sequence[int]) -> Mapping[str, str]:
    """What a process needs to see its slots and no others."""
    visible = "" if gpu_type == "cpu" else ",".join(map(str, slots))
    return {"CUDA_VISIBLE_DEVICES": visible, "GEMINID_SLOTS": ",".join(map(str, slots))}


def uses_library(command: Sequence[str], working_dir: str | None) -> bool:
    """Whether a command runs a Python script that imports geminid, as far as its own text tells."""
    if not python_command(command):
        return False
    script = Path(working_dir or ".", command[1])
    try:
        with script.open("rb") as file:
            tree = ast.parse(file.read(MOST_SCRIPT_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name == "geminid" or name.startswith("geminid.") for name in names):
            return True
    return False
