"""A worker's peers: finding them, forming a process group with them, and handing state over.

Groups are formed anew, inside the running processes, for every generation. The members first meet in a small store (a
file in a folder that only the job's owner can open, or a TCP server), where waiting can be interrupted by a newer
order; only when all have arrived is the group formed, which then takes milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geminid.train.messages import Form
from geminid.train.tree import put_together, take_apart

#: Once all have arrived, forming the group may take this long; after that somebody is presumed dead.
FORMING_S = 20.0

#: A collective operation may take this long: a leader may evaluate for many minutes while the others wait for it. That
#: somebody is dead or hangs is the supervisor's to find out, in seconds.
WAITING_S = 3600.0

#: How often the store is looked at while waiting for the others.
POLL_S = 0.002


class PeersLost(Exception):
    """Forming a group, or handing state over, failed because somebody is gone."""


class Superseded(Exception):
    """A newer order came while waiting for the others."""


def meet(form: Form, me: str, *, superseded: Callable[[], bool]) -> Any:
    """Arrive at the meeting place of a generation and wait for the others; the store that was used.

    Raises:
        Superseded: a newer order came.
        PeersLost: the meeting place cannot be reached.
    """
    size, rank = len(form.members), form.members.index(me)
    try:
        store = _store(form.rendezvous, size, rank)
        store.add("arrived", 1)
        while int(store.add("arrived", 0)) < size:
            if superseded():
                raise Superseded
            sleep(POLL_S)
    except RuntimeError as problem:
        raise PeersLost(_first_line(problem)) from None
    return store


def _store(rendezvous: str, size: int, rank: int) -> Any:
    scheme, _, place = rendezvous.partition(":")
    if scheme == "file":
        return dist.FileStore(place, size)  # type: ignore[attr-defined]
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not port.isdigit():
        raise ValueError(f"the rendezvous is {rendezvous!r}: it must be file:/path or tcp:host:port")
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), size, is_master=rank == 0, timeout=timedelta(seconds=FORMING_S), wait_for_workers=False
    )


def form_group(store: Any, rank: int, size: int, device: torch.device) -> None:
    """Form the default process group."""
    if size == 1:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=FORMING_S),
        )
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=WAITING_S))
    except (RuntimeError, ValueError) as problem:
        leave_group()
        raise PeersLost(_first_line(problem)) from None


def leave_group() -> None:
    """Take the default process group down, if there is one; peers may be gone already."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return names[0] if names else "lo"


def survey(number: int, size: int) -> list[int]:
    """One number from every member, by rank."""
    mine = torch.tensor([number], dtype=torch.int64)
    all_of_them = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    with _watchful():
        dist.all_gather(all_of_them, mine)
    return [int(one) for one in all_of_them]


def tell_all(document: Any, rank: int) -> Any:
    """A JSON document from the first member to all; what the others pass is ignored."""
    raw = json.dumps(document if rank == 0 else None).encode()
    length = torch.tensor([len(raw)], dtype=torch.int64)
    with _watchful():
        dist.broadcast(length, src=0)
        data = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            if rank == 0
            else torch.empty(int(length), dtype=torch.uint8)
        )
        dist.broadcast(data, src=0)
    return json.loads(data.numpy().tobytes())


def wait_for_all() -> None:
    """A barrier."""
    with _watchful():
        dist.barrier()


def broadcast(tensor: Tensor) -> None:
    """The first member's tensor becomes everybody's."""
    with _watchful():
        dist.broadcast(tensor, src=0)


def send_state(state: Any, receivers: Sequence[int]) -> None:
    """Hand the state to some members: its structure as JSON, then its tensors."""
    document, tensors = take_apart(state)
    ordered = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {
        "document": document,
        "tensors": [
            [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type]
            for name, tensor in ordered.items()
        ],
    }
    raw = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    with _watchful():
        for receiver in receivers:
            dist.send(torch.tensor([len(raw)]), receiver)
            dist.send(raw, receiver)
            for tensor in ordered.values():
                if tensor.numel():
                    dist.send(_flat(tensor), receiver)


def receive_state(sender: int, device: torch.device) -> tuple[Any, int]:
    """The state that a member hands over, and how many bytes it took."""
    length = torch.zeros(1, dtype=torch.int64)
    with _watchful():
        dist.recv(length, sender)
        raw = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(raw, sender)
        header = json.loads(raw.numpy().tobytes())
        received, tensors = int(length), {}
        for name, kind, shape, where in header["tensors"]:
            tensor = torch.empty(shape, dtype=getattr(torch, kind), device=device if where != "cpu" else "cpu")
            if tensor.numel():
                dist.recv(_flat(tensor), sender)
            received += tensor.numel() * tensor.element_size()
            tensors[name] = tensor
    return put_together(header["document"], tensors), received


def _flat(tensor: Tensor) -> Tensor:
    """The tensor's own bytes, which any backend can send."""
    return tensor.reshape(-1).view(torch.uint8)


@contextlib.contextmanager
def _watchful() -> Any:
    """A failed operation within means that somebody is gone."""
    try:
        yield
    except RuntimeError as problem:
        raise PeersLost(_first_line(problem)) from None


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__
