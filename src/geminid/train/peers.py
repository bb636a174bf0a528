"""A worker's peers: forming a process group with them, leaving it, and small collective operations in it.

Groups are formed inside the running processes, a new one for every generation, once all members have met
(``rendezvous``); that takes milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geminid.clock import Clock
from geminid.process.interfaces import interfaces_with
from geminid.supervise.channel import ADDRESS, NODE

#: Longest time for forming a group whose members have all arrived; after that one of them is presumed dead.
FORMING_S = 10.0

#: Longest time for a collective operation: the others may wait for many minutes while the leader evaluates. Finding
#: workers that are dead or hang is the supervisor's task, and takes seconds.
COLLECTIVE_S = 3600.0

#: Time between two looks whether the group is abandoned, while waiting in an operation.
LOOK_S = 0.5

#: How long after its group was abandoned an operation may take to end.
STUCK_S = 1.0

#: Sockets of the current group, by which threads that wait for a dead peer can be woken; protected by the lock.
_sockets: list[int] = []
_sockets_lock = threading.Lock()

#: Groups that could not be destroyed because an operation in them never ended. Keeping them leaks a few threads.
_stuck: list[Any] = []


class PeersLost(Exception):
    """Forming a group, or an operation in it, failed because a member is gone."""


class Stuck(Exception):
    """Forming a group does not end although a member is gone: only a new process can form another one."""


def form_group(
    store: Any, rank: int, size: int, device: torch.device, clock: Clock, *, broken: Callable[[], bool]
) -> None:
    """Form the default process group.

    Connecting to a member that died a moment ago cannot be interrupted, and takes far longer than its timeout. So it
    happens in a thread of its own, and is given up if the group turns out to be ``broken`` meanwhile.

    Raises:
        PeersLost: a member is gone.
        Stuck: a member is gone, and this process cannot form groups any more.
    """
    host = os.environ.get(ADDRESS)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface_of(host or "127.0.0.1"))
    before = _connections()
    try:
        backend = _backend(store, rank, size, device)
    except RuntimeError as problem:
        raise PeersLost(first_line(problem)) from None
    attempt = _Attempt(store, rank, size, backend)
    limit = _StuckLimit(clock, broken)
    while not attempt.over.wait(LOOK_S):
        if limit.exceeded():
            raise Stuck("a member died while the group was formed")
    if attempt.problem is not None:
        leave_group()
        raise PeersLost(first_line(attempt.problem))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=COLLECTIVE_S))
    with _sockets_lock:
        _sockets[:] = _connections() - before


def _backend(store: Any, rank: int, size: int, device: torch.device) -> str:
    """NCCL for tensors on GPUs, unless workers share a GPU, which it does not support; gloo for the rest."""
    if device.type != "cuda":
        return "gloo"
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    store.set(f"gpu {rank}", str(uuid) if uuid is not None else f"{this_host()} {device.index}")
    gpus = {store.get(f"gpu {other}") for other in range(size)}
    return "cpu:gloo,cuda:nccl" if len(gpus) == size else "gloo"


class _Attempt:
    """An attempt to form a group, in a thread; ``over`` is set when it has succeeded or failed."""

    def __init__(self, store: Any, rank: int, size: int, backend: str) -> None:
        self.over = threading.Event()
        self.problem: Exception | None = None
        arguments = (store, rank, size, backend)
        threading.Thread(target=self._try, args=arguments, name="geminid group", daemon=True).start()

    def _try(self, store: Any, rank: int, size: int, backend: str) -> None:
        try:
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("group", store),  # type: ignore[attr-defined]
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=FORMING_S),
            )
        except (RuntimeError, ValueError) as problem:
            self.problem = problem
        finally:
            self.over.set()


def leave_group() -> None:
    """Destroy the default process group, if there is one; peers may be gone already."""
    with _sockets_lock:
        _sockets.clear()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    # Groups are named by a counter, which a failed attempt has increased here but not at the others.
    dist.distributed_c10d._world.group_count = 0


def abandon_group() -> None:
    """Cut all connections of the group, from any thread: operations in it fail at once, here and at the peers."""
    with _sockets_lock:
        for descriptor in _sockets:
            with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
                connection.shutdown(socket.SHUT_RDWR)


class _StuckLimit:
    """How long to wait in a group that has been abandoned."""

    def __init__(self, clock: Clock, abandoned: Callable[[], bool]) -> None:
        self._clock, self._abandoned = clock, abandoned
        self._since_s: float | None = None

    def exceeded(self) -> bool:
        """Whether the group was abandoned too long ago."""
        if self._since_s is None and self._abandoned():
            self._since_s = self._clock.monotonic_s()
        return self._since_s is not None and self._clock.monotonic_s() - self._since_s > STUCK_S


def wait_for(work: Any, clock: Clock, *, abandoned: Callable[[], bool]) -> None:
    """Wait for a collective operation on the CPU, unless it continues although its group was abandoned.

    Raises:
        RuntimeError: it failed.
    """
    limit = _StuckLimit(clock, abandoned)
    while True:
        try:
            work.wait(timedelta(seconds=LOOK_S))
            return
        except RuntimeError as problem:
            if work.is_completed():
                raise
            if limit.exceeded():
                _stuck.append(dist.distributed_c10d._get_default_group())
                raise RuntimeError("an operation in an abandoned group did not end") from problem


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket that other code has opened.

    Raises:
        OSError: it is not a socket, or not open.
    """
    own = os.dup(descriptor)
    try:
        borrowed = socket.socket(fileno=own)
    except OSError:  # not a socket: no other object closes the duplicate
        os.close(own)
        raise
    with borrowed:
        yield borrowed


def _connections() -> set[int]:
    """The descriptors of this process's TCP connections; listening sockets, which have no peer, are left out."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _borrowed(int(name)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                found.add(int(name))
    return found


def _interface_of(host: str) -> str:
    """The network interface with this address, the only one that gloo should use.

    Raises:
        ValueError: this machine has no such address.
    """
    names = interfaces_with(socket.gethostbyname(host))
    if not names:
        raise ValueError(f"{ADDRESS} is {host!r}: no network interface of this machine has that address")
    return names[0]


def gather_numbers(numbers: Sequence[int], size: int) -> list[list[int]]:
    """The numbers of all members, by rank."""
    mine = torch.tensor(numbers, dtype=torch.int64)
    everyones = [torch.zeros_like(mine) for _ in range(size)]
    with losing_peers():
        dist.all_gather(everyones, mine)
    return [one.tolist() for one in everyones]


def broadcast_json(document: Any, rank: int) -> Any:
    """The first member's JSON document, on all members; the others' are ignored."""
    raw = json.dumps(document if rank == 0 else None).encode()
    length = torch.tensor([len(raw)], dtype=torch.int64)
    with losing_peers():
        dist.broadcast(length, src=0)
        data = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            if rank == 0
            else torch.empty(int(length), dtype=torch.uint8)
        )
        dist.broadcast(data, src=0)
    return json.loads(data.numpy().tobytes())


def gather_json(document: Any, size: int) -> list[Any]:
    """The JSON documents of all members, by rank."""
    raw = json.dumps(document).encode()
    lengths = [length for (length,) in gather_numbers([len(raw)], size)]
    mine = torch.zeros(max(lengths), dtype=torch.uint8)
    mine[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    everyones = [torch.zeros_like(mine) for _ in range(size)]
    with losing_peers():
        dist.all_gather(everyones, mine)
    return [json.loads(one[:length].numpy().tobytes()) for one, length in zip(everyones, lengths, strict=True)]


def wait_for_all() -> None:
    """A barrier, on the CPU wherever the gradients are."""
    with losing_peers():
        dist.all_reduce(torch.zeros(1))


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Have the first member's tensors on all members; those of one type are sent together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for some in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        with losing_peers():
            dist.broadcast(flat, src=0)
        begin = 0
        for tensor in some:
            tensor.copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
            begin += tensor.numel()


def this_host() -> int:
    """A number that processes share if they run on the same machine, and on the same node where nodes have names."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        node = os.environ.get(NODE, "")
        return zlib.crc32(f"{boot}{os.readlink('/proc/self/ns/pid')}{node}".encode())
    except OSError:
        return zlib.crc32(f"{socket.gethostname()}{os.getpid()}".encode())  # shared with no other process


@contextlib.contextmanager
def losing_peers() -> Iterator[None]:
    """A collective operation that fails within means that a member is gone.

    Raises:
        PeersLost: one failed.
    """
    try:
        yield
    except RuntimeError as problem:
        raise PeersLost(first_line(problem)) from None


def first_line(problem: Exception) -> str:
    """An error's message, in one short line."""
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__
