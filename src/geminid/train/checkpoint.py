"""Checkpoints: one file each, written whole or not at all, checked before anything is believed, never unpickled.

The format is that of *safetensors*: the length of a header, the header (JSON: where each tensor lies, and our own
metadata), the tensors' bytes. Any tool for that format can read them. The metadata holds the rest of the state as JSON
and a SHA-256 over everything, so a truncated or altered file is recognised.

A folder keeps several generations. Whoever loads gets the newest one that is intact; one that is not is set aside
under another name, with a warning, and the one before is tried.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor

from geminid.train.tree import CannotSave, put_together, take_apart

#: Version of what the metadata holds.
FORMAT = "geminid-1"

#: A header that claims to be longer than this is damaged.
LONGEST_HEADER_BYTES = 1 << 28

#: How many checkpoints are kept.
KEEP = 3

SUFFIX = ".safetensors"

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_TYPES = {name: kind for kind, name in _NAMES.items()}


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
    copies = {name: _copy(tensor) for name, tensor in tensors.items()}
    return Snapshot(document, copies, step, samples, monotonic() - begin)


def check_saveable(state: Any) -> None:
    """Whether this state could be saved: better to know at the beginning than at the first checkpoint.

    Raises:
        CannotSave: it could not, and the sentence says which part of it.
    """
    _, tensors = take_apart(state)
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise CannotSave(f"{name} is a tensor of {tensor.dtype}, which cannot be saved")
        if tensor.layout is not torch.strided:
            raise CannotSave(f"{name} is a tensor of layout {tensor.layout}, which cannot be saved")


def _copy(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _NAMES:
        raise CannotSave(f"a tensor of {tensor.dtype} cannot be saved")
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def write(snapshot: Snapshot, path: Path) -> int:
    """Write a file atomically: under another name, flushed to disk, then renamed. Its size in bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in snapshot.tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
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


class Checkpoints(Protocol):
    """Where one job's checkpoints are kept."""

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state and where it was; None if there is none."""


def checkpoints_at(place: Path | str, keep: int = KEEP) -> Checkpoints:
    """The checkpoints in a folder, or below an fsspec URL such as ``s3://bucket/jobs/17``."""
    text = str(place)
    if isinstance(place, Path) or "://" not in text:
        return CheckpointFolder(Path(text), keep)
    if text.startswith("file://"):
        return CheckpointFolder(Path(text.removeprefix("file://")), keep)
    return RemoteCheckpoints(text, keep)


class CheckpointFolder:
    """The generations of one job's checkpoints; the newest has the largest number."""

    def __init__(self, folder: Path, keep: int = KEEP) -> None:
        self.folder = folder
        self.keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """All checkpoints, the newest first."""
        return sorted(self.folder.glob(f"checkpoint-*{SUFFIX}"), reverse=True)

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""
        begin = monotonic()
        known = self.paths()
        number = int(known[0].stem.removeprefix("checkpoint-")) + 1 if known else 1
        path = self.folder / f"checkpoint-{number:08d}{SUFFIX}"
        size = write(snapshot, path)
        self._tidy(known[0] if known else None)
        return Written(snapshot, path, size, monotonic() - begin)

    def _tidy(self, before: Path | None) -> None:
        """Remove checkpoints and damaged files that are too old, and what was not written to its end.

        There is one writer at a time: a file that nobody has touched since the last checkpoint but one is left over.
        """
        damaged = sorted(self.folder.glob("checkpoint-*.damaged"), reverse=True)
        for old in (*self.paths()[self.keep :], *damaged[self.keep :]):
            old.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            written_at = before.stat().st_mtime_ns if before is not None else 0
            for unfinished in self.folder.glob(f".checkpoint-*{SUFFIX}.*"):
                if unfinished.stat().st_mtime_ns < written_at:
                    unfinished.unlink(missing_ok=True)

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state; None if there is none. What is damaged is set aside, with a warning."""
        unusable = 0
        for path in self.paths():
            try:
                return read(path), path
            except FileNotFoundError:  # too old by now
                continue
            except OSError as problem:
                print(f"geminid: warning: {path} cannot be read: {problem.strerror}", file=sys.stderr, flush=True)
            except BadCheckpoint as problem:
                print(f"geminid: warning: {path} is not used: {problem}", file=sys.stderr, flush=True)
                with contextlib.suppress(OSError):
                    path.replace(path.with_suffix(".damaged"))
            unusable += 1
        _warn_of_beginning_anew(self.folder, unusable)
        return None


class RemoteCheckpoints:
    """The generations of one job's checkpoints on storage that fsspec knows.

    A file is put there in one go. On object stores that is whole or not at all; elsewhere half a file may be left,
    which its checksum betrays, and the generation before is used.
    """

    def __init__(self, url: str, keep: int = KEEP) -> None:
        from fsspec.core import url_to_fs

        self._storage, self._root = url_to_fs(url)
        self.url, self.keep = url.rstrip("/"), keep
        self._storage.makedirs(self._root, exist_ok=True)

    def names(self) -> list[str]:
        """All checkpoints, the newest first."""
        self._storage.invalidate_cache()
        listed = self._storage.ls(self._root, detail=False)
        names = (path.rstrip("/").rpartition("/")[2] for path in listed)
        return sorted(
            (name for name in names if name.startswith("checkpoint-") and name.endswith(SUFFIX)), reverse=True
        )

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""
        begin = monotonic()
        known = self.names()
        number = int(known[0].removesuffix(SUFFIX).removeprefix("checkpoint-")) + 1 if known else 1
        name = f"checkpoint-{number:08d}{SUFFIX}"
        with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
            size = write(snapshot, Path(folder, name))
            self._storage.put_file(str(Path(folder, name)), f"{self._root}/{name}")
        for old in self.names()[self.keep :]:
            with contextlib.suppress(FileNotFoundError):
                self._storage.rm_file(f"{self._root}/{old}")
        return Written(snapshot, f"{self.url}/{name}", size, monotonic() - begin)

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state; None if there is none. What is damaged is passed over, with a warning."""
        names = self.names()
        for name in names:
            with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
                copy = Path(folder, name)
                self._storage.get_file(f"{self._root}/{name}", str(copy))
                try:
                    return read(copy), f"{self.url}/{name}"
                except BadCheckpoint as problem:
                    print(f"geminid: warning: {self.url}/{name} is not used: {problem}", file=sys.stderr, flush=True)
        _warn_of_beginning_anew(self.url, len(names))
        return None


def _warn_of_beginning_anew(place: Path | str, unusable: int) -> None:
    if unusable:
        what = "the only checkpoint" if unusable == 1 else f"none of the {unusable} checkpoints"
        how = "cannot be used" if unusable == 1 else "can be used"
        print(f"geminid: warning: {what} in {place} {how}: training begins anew", file=sys.stderr, flush=True)


class BackgroundWriter:
    """Writes snapshots in a thread, one at a time, while training goes on."""

    def __init__(self, folder: Checkpoints, on_written: Callable[[Written], None]) -> None:
        self.folder = folder
        self._on_written = on_written
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Write this one next; waits for the one before."""
        self.finish()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="geminid checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait until nothing is being written; why the last one could not be, if so."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        return problem

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._on_written(self.folder.save(snapshot))
        except Exception as problem:  # remote storage has errors of its own, and training goes on
            self._problem = problem
            reason = getattr(problem, "strerror", None) or str(problem)
            print(f"geminid: warning: no checkpoint was written: {reason}", file=sys.stderr, flush=True)
