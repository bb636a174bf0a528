"""Checkpoints: one file each, written whole or not at all, checked before anything is believed, never unpickled.

The format is that of *safetensors*: the length of a header, the header (JSON: where each tensor lies, and our own
metadata), the tensors' bytes. Any tool for that format can read them. The metadata holds the rest of the state as JSON
and a SHA-256 over everything, so a truncated or altered file is recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from geminid.train.tree import TENSORS, check_tensors, put_together, take_apart

#: Version of what the metadata holds.
FORMAT = "geminid-1"

#: A header that claims to be longer than this is damaged.
LONGEST_HEADER_BYTES = 1 << 28

_TYPES = {name: kind for kind, name in TENSORS.items()}


class BadCheckpoint(Exception):
    """A file that is not an intact checkpoint; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at one moment, copied out of the way of training: what is written may take its time."""

    document: Any
    tensors: Mapping[str, Tensor]
    step: int
    samples: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that is safely on disk."""

    snapshot: Snapshot
    path: Path | str
    size_bytes: int
    seconds: float


def take_snapshot(state: Any, *, step: int, samples: int) -> Snapshot:
    """Copy the state to main memory."""
    begin = monotonic()
    document, tensors = take_apart(state)
    check_tensors(tensors)
    copies = {name: _copy(tensor) for name, tensor in tensors.items()}
    return Snapshot(document, copies, step, samples, monotonic() - begin)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def write(snapshot: Snapshot, path: Path) -> int:
    """Write a file atomically: under another name, flushed to disk, then renamed. Its size in bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in snapshot.tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    metadata = {
        "format": FORMAT,
        "step": str(snapshot.step),
        "samples": str(snapshot.samples),
        "state": json.dumps(snapshot.document, allow_nan=False),
    }
    metadata["sha256"] = _digest(header, metadata, [_bytes(tensor) for tensor in snapshot.tensors.values()])
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for tensor in snapshot.tensors.values():
                file.write(_bytes(tensor))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return 8 + len(text) + offset


def read(path: Path) -> Any:
    """The state in a file.

    Raises:
        BadCheckpoint: the file is damaged, or not a checkpoint.
        OSError: it cannot be read.
    """
    raw = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", raw)
        if length > min(len(raw) - 8, LONGEST_HEADER_BYTES):
            raise BadCheckpoint("it is truncated")
        header = json.loads(raw[8 : 8 + length])
        metadata = header.pop("__metadata__")
        data = memoryview(raw)[8 + length :]
        spans = {name: entry["data_offsets"] for name, entry in header.items()}
        if any(not 0 <= begin <= end <= len(data) for begin, end in spans.values()):
            raise BadCheckpoint("it is truncated")
        claimed = metadata.pop("sha256")
        if claimed != _digest(header, metadata, [data[begin:end] for begin, end in spans.values()]):
            raise BadCheckpoint("its checksum is wrong")
        if metadata["format"] != FORMAT:
            raise BadCheckpoint(f"its format is {metadata['format']!r}, not {FORMAT!r}")
        tensors = {name: _tensor(data[slice(*spans[name])], entry) for name, entry in header.items()}
        return put_together(json.loads(metadata["state"]), tensors)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise BadCheckpoint(f"it is damaged ({type(problem).__name__})") from None


def _digest(header: Mapping[str, Any], metadata: Mapping[str, str], parts: list[Any]) -> str:
    digest = hashlib.sha256(json.dumps([header, metadata], sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    """The bytes of a tensor in main memory, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""


def _tensor(data: memoryview, entry: Mapping[str, Any]) -> Tensor:
    kind = _TYPES[entry["dtype"]]
    if not len(data):
        return torch.empty(entry["shape"], dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(entry["shape"])
