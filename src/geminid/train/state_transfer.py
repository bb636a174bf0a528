"""Sending training state to peers: its structure as JSON, and its tensors as raw bytes.

On one host tensors go through shared memory, once for all receivers; otherwise through the process group. No pickle is
used.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geminid.train.peers import losing_peers
from geminid.train.state_codec import decode, encode

#: Bytes per read or write: the system transfers at most 2 GiB at a time.
PIECE_BYTES = 1 << 30


def send_state(state: Any, receivers: Sequence[int], *, same_host: bool = False) -> None:
    """Send the state to some members: its structure as JSON, then its tensors.

    On the same host the tensors go through shared memory, if there is enough of it and the receivers may read it.
    """
    document, tensors = encode(state)
    staged = _by_main_memory()
    ordered = {name: (tensor.cpu() if staged else tensor).contiguous() for name, tensor in tensors.items()}
    header = {
        "document": document,
        "tensors": [
            [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensors[name].device.type]
            for name, tensor in ordered.items()
        ],
        "shared": None,
    }
    shared = _Shared.write(list(ordered.values())) if same_host else None
    header["shared"] = shared.path if shared is not None else None
    raw = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    try:
        with losing_peers():
            for receiver in receivers:
                dist.send(torch.tensor([len(raw)]), receiver)
                dist.send(raw, receiver)
                if shared is None:
                    _send_all(ordered.values(), receiver)
            for receiver in receivers if shared is not None else ():
                read = torch.zeros(1)
                dist.recv(read, receiver)
                if not read.item():
                    _send_all(ordered.values(), receiver)
    finally:
        if shared is not None:
            shared.remove()


def _by_main_memory() -> bool:
    """Whether tensors on GPUs have to be copied to main memory first: gloo sends no others."""
    return "nccl" not in dist.get_backend_config()


def _send_all(tensors: Iterable[Tensor], receiver: int) -> None:
    for tensor in tensors:
        if tensor.numel():
            dist.send(_flat(tensor), receiver)


def receive_state(sender: int, device: torch.device) -> tuple[Any, int]:
    """The state that a member sends, and how many bytes it has."""
    length = torch.zeros(1, dtype=torch.int64)
    with losing_peers():
        dist.recv(length, sender)
        raw = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(raw, sender)
        header = json.loads(raw.numpy().tobytes())
        devices = {name: device if where != "cpu" else torch.device("cpu") for name, _, _, where in header["tensors"]}
        staged = _by_main_memory()
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, kind), device="cpu" if staged else devices[name])
            for name, kind, shape, _ in header["tensors"]
        }
        received = int(length) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        read = False
        if header["shared"] is not None:
            with contextlib.suppress(OSError):  # the sender has died, or this process may not read its memory
                _Shared.read(header["shared"], list(tensors.values()))
                read = True
            dist.send(torch.tensor([float(read)]), sender)
        if not read:
            for tensor in tensors.values():
                if tensor.numel():
                    dist.recv(_flat(tensor), sender)
    placed = {name: tensor.to(devices[name]) for name, tensor in tensors.items()}
    return decode(header["document"], placed), received


class _Shared:
    """Tensors side by side in anonymous memory, which only this user may read and which ends with its process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def write(cls, tensors: Sequence[Tensor]) -> _Shared | None:
        """None if there is not enough memory, or the tensors are not in main memory."""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        try:
            descriptor = os.memfd_create("geminid")
        except (OSError, AttributeError):
            return None
        shared = cls(descriptor)
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                for tensor in tensors:
                    for piece in _pieces(tensor):
                        if file.write(piece) != len(piece):
                            raise OSError("the memory is full")
        except OSError:
            shared.remove()
            return None
        return shared

    @classmethod
    def read(cls, path: str, into: Sequence[Tensor]) -> None:
        """Fill these tensors from it."""
        with open(path, "rb", buffering=0) as file:
            for tensor in into:
                for piece in _pieces(tensor):
                    if file.readinto(piece) != len(piece):
                        raise OSError("the memory ended too soon")

    def remove(self) -> None:
        """Release the memory once no process reads from it."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The tensor's bytes, in pieces that the system reads and writes whole."""
    raw = memoryview(_flat(tensor).numpy().data) if tensor.numel() else memoryview(b"")
    for begin in range(0, len(raw), PIECE_BYTES):
        yield raw[begin : begin + PIECE_BYTES]


def _flat(tensor: Tensor) -> Tensor:
    """The tensor's bytes, which any backend can send."""
    return tensor.reshape(-1).view(torch.uint8)
