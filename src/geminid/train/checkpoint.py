"""Checkpoints: one safetensors file each, written whole or not at all, verified before use, never unpickled.

The safetensors library writes and reads the files, so other tools can open them. Their metadata holds the rest of the
state as JSON and a SHA-256 of everything, so a truncated or altered file is recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from geminid.clock import Clock
from geminid.train.state_codec import check_tensors, decode, dtype_code, encode

#: Version of what the metadata holds: the checksum takes the tensors in the order of their names.
FORMAT = "geminid-2"

#: The previous version, which can still be read: the checksum takes the tensors in the order in which they are stored.
FORMAT_1 = "geminid-1"


class BadCheckpoint(Exception):
    """A file that is not an intact checkpoint; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the state at one moment, which can be written while training goes on; the copy took ``pause_s``."""

    document: Any
    tensors: Mapping[str, Tensor]
    step: int
    samples: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that was written, and how long that took."""

    snapshot: Snapshot
    path: Path | str
    size_bytes: int
    seconds: float


def take_snapshot(state: Any, clock: Clock, *, step: int, samples: int) -> Snapshot:
    """Copy the state to main memory.

    Raises:
        CannotSave: a part of it cannot be saved.
    """
    begin_s = clock.monotonic_s()
    document, tensors = encode(state)
    check_tensors(tensors)
    copies = {name: _copy(tensor) for name, tensor in tensors.items()}
    return Snapshot(document, copies, step, samples, clock.monotonic_s() - begin_s)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def write(snapshot: Snapshot, path: Path) -> int:
    """Write a file atomically: under another name, flushed to disk, then renamed; returns its size in bytes.

    The library writes to a temporary file of its own beside the target, which only its owner may read. So it is given a
    new folder to write in, and the file gets the default permissions of that folder.

    Raises:
        OSError: it cannot be written.
        SafetensorError: the state has more metadata than the format allows (100 MB).
    """
    metadata = {
        "format": FORMAT,
        "step": str(snapshot.step),
        "samples": str(snapshot.samples),
        "state": json.dumps(snapshot.document, allow_nan=False),
    }
    metadata["sha256"] = _digest(snapshot.tensors, sorted(snapshot.tensors), metadata)
    folder = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished = folder / path.name
    try:
        folder.mkdir(exist_ok=True)
        _save(snapshot.tensors, unfinished, metadata)
        unfinished.chmod(folder.stat().st_mode & 0o666)
        size_bytes = unfinished.stat().st_size
        _flush(unfinished)
        unfinished.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _flush(path.parent)
    return size_bytes


def _save(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Have the library write a file; its errors that come from the system are raised as an OSError."""
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as problem:
        code = re.search(r"\(os error (\d+)\)", str(problem))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> Any:
    """The state in a file.

    The library maps the file into memory. Tensors are copied out of it before they are verified: the file may be
    removed or overwritten while training goes on with them.

    Raises:
        BadCheckpoint: the file is damaged, or not a checkpoint.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb"), safe_open(path, "pt") as file:
            metadata = dict(file.metadata())
            claimed, stored = metadata.pop("sha256"), file.offset_keys()
            tensors = {name: file.get_tensor(name).clone() for name in stored}
        if claimed != _digest(tensors, stored if metadata["format"] == FORMAT_1 else sorted(stored), metadata):
            raise BadCheckpoint("its checksum is wrong")
        if metadata["format"] not in (FORMAT, FORMAT_1):
            raise BadCheckpoint(f"its format is {metadata['format']!r}, not {FORMAT!r}")
        return decode(json.loads(metadata["state"]), tensors)
    except SafetensorError as problem:
        raise BadCheckpoint(f"it is truncated or damaged ({problem})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise BadCheckpoint(f"it is damaged ({type(problem).__name__})") from None


def _digest(tensors: Mapping[str, Tensor], order: list[str], metadata: Mapping[str, str]) -> str:
    """The checksum of metadata and of tensors side by side in this order: their names, types, shapes and bytes."""
    header, end = {}, 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        code, shape = dtype_code(tensors[name].dtype), list(tensors[name].shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    digest = hashlib.sha256(json.dumps([header, metadata], sort_keys=True).encode())
    for name in order:
        if tensors[name].numel():
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
