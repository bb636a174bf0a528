"""A worker's peers: finding them, forming a process group with them, and telling each other a little.

Groups are formed anew, inside the running processes, for every generation. The members first meet in a small store (a
file in a folder that only the job's owner can open, or a TCP server), where waiting can be interrupted by a newer
order; only when all have arrived is the group formed, which then takes milliseconds.
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
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geminid.process.interfaces import interfaces_with
from geminid.supervise.channel import ADDRESS, NODE
from geminid.supervise.protocol import Form

#: Once all have arrived, forming the group may take this long; after that somebody is presumed dead.
FORMING_S = 10.0

#: A collective operation may take this long: a leader may evaluate for many minutes while the others wait for it. That
#: somebody is dead or hangs is the supervisor's to find out, in seconds.
WAITING_S = 3600.0

#: While waiting in an operation, look around this often; one that does not end so long after its group was abandoned is
#: left to itself.
LOOK_S, STUCK_S = 0.5, 1.0

#: How often the store is looked at while waiting for the others.
POLL_S = 0.002


#: Sockets of the group that is formed, so that whatever waits for a dead peer can be woken; and who may touch them.
_sockets: list[int] = []
_sockets_lock = threading.Lock()

#: Groups that could not be taken down because something in them never ended. Holding them leaks a few threads.
_stuck: list[Any] = []


class PeersLost(Exception):
    """Forming a group, or an operation in it, failed because somebody is gone."""


class Stuck(Exception):
    """Forming a group does not end although somebody in it is gone: only a new process can form another one."""


class Superseded(Exception):
    """A newer order came while waiting for the others."""


class _Interruptible(dist.Store):  # type: ignore[name-defined,misc]
    """A store in which waiting for somebody who died in the meantime ends when a newer order comes."""

    def __init__(self, inner: Any, superseded: Callable[[], bool]) -> None:
        super().__init__()
        self._inner, self._superseded = inner, superseded

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._inner.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._inner.check(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        deadline_s = monotonic() + FORMING_S
        while not self._inner.check(keys):
            if self._superseded():
                raise RuntimeError("a newer order came")
            if monotonic() > deadline_s:
                raise RuntimeError(f"somebody did not come within {FORMING_S:g} s")
            sleep(POLL_S)


def meet(form: Form, me: str, *, superseded: Callable[[], bool]) -> Any:
    """Arrive at the meeting place of a generation and wait for the others; the store that was used.

    Raises:
        Superseded: a newer order came.
        PeersLost: the meeting place cannot be reached.
    """
    size, rank = len(form.members), form.members.index(me)
    try:
        store = _store(form.rendezvous, size, rank, superseded)
        store.add("arrived", 1)
        while int(store.add("arrived", 0)) < size:
            if superseded():
                raise Superseded
            sleep(POLL_S)
    except RuntimeError as problem:
        raise PeersLost(_first_line(problem)) from None
    return _Interruptible(store, superseded)


def _store(rendezvous: str, size: int, rank: int, superseded: Callable[[], bool]) -> Any:
    scheme, _, place = rendezvous.partition(":")
    if scheme == "file":
        return dist.FileStore(place, size)  # type: ignore[attr-defined]
    address, _, generation = place.partition("/")
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not port.isdigit():
        raise ValueError(f"the rendezvous is {rendezvous!r}: it must be file:/path or tcp:host:port, or .../generation")
    # A store that serves many generations is its owner's, and there already: see MeetingPlace.
    owns = rank == 0 and not generation
    if not owns:
        _await_listener(host, int(port), superseded)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), None, is_master=owns, timeout=timedelta(seconds=FORMING_S), wait_for_workers=False
    )
    return dist.PrefixStore(generation, store) if generation else store  # type: ignore[attr-defined]


def _await_listener(host: str, port: int, superseded: Callable[[], bool]) -> None:
    """Wait until somebody listens there: a store's own attempts to connect cannot be interrupted."""
    deadline_s = monotonic() + FORMING_S
    while True:
        try:
            socket.create_connection((host, port), timeout=LOOK_S).close()
            return
        except OSError as problem:
            if superseded():
                raise Superseded from None
            if monotonic() > deadline_s:
                raise PeersLost(f"nobody listens at {host}:{port}: {problem}") from None
            sleep(10 * POLL_S)


class MeetingPlace:
    """A store of this worker's own, in which generations can meet whose first member it is."""

    def __init__(self, host: str) -> None:
        listener = socket.create_server((host, 0), backlog=512)
        port = listener.getsockname()[1]
        self.address = f"tcp:{host}:{port}"
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            None,
            is_master=True,
            timeout=timedelta(seconds=FORMING_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def form_group(
    store: Any, rank: int, size: int, device: torch.device, *, broken: Callable[[], bool] = lambda: False
) -> None:
    """Form the default process group.

    Connecting to somebody who died a moment ago cannot be interrupted, and takes far longer than its time-out says. So
    it happens in a thread of its own, and is given up if the group turns out to be ``broken`` meanwhile.

    Raises:
        PeersLost: somebody is gone.
        Stuck: somebody is gone, and this process cannot form groups any more.
    """
    if size == 1:
        return
    host = os.environ.get(ADDRESS)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface_of(host or "127.0.0.1"))
    before = _connections()
    try:
        backend = _backend(store, rank, size, device)
    except RuntimeError as problem:
        raise PeersLost(_first_line(problem)) from None
    attempt = _Attempt(store, rank, size, backend)
    patience_s = None
    while not attempt.over.wait(LOOK_S):
        patience_s = patience_s or (monotonic() + STUCK_S if broken() else None)
        if patience_s is not None and monotonic() > patience_s:
            raise Stuck("somebody died while the group was formed")
    if attempt.problem is not None:
        leave_group()
        raise PeersLost(_first_line(attempt.problem))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=WAITING_S))
    with _sockets_lock:
        _sockets[:] = _connections() - before


def _backend(store: Any, rank: int, size: int, device: torch.device) -> str:
    """NCCL for what is on GPUs, unless workers share one, which it does not support; gloo for the rest."""
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
    """Take the default process group down, if there is one; peers may be gone already."""
    with _sockets_lock:
        _sockets.clear()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    # Groups are named by a counter, which a failed attempt has moved on here but not at the others.
    dist.distributed_c10d._world.group_count = 0


def abandon_group() -> None:
    """Cut all connections of the group, from any thread: whoever waits in it fails at once, here and at the peers."""
    with _sockets_lock:
        for descriptor in _sockets:
            with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def wait_for(work: Any, abandoned: Callable[[], bool]) -> None:
    """Wait for a collective operation on the CPU, and not for ever for one that even cut connections did not end.

    Raises:
        RuntimeError: it failed.
    """
    since_s = None
    while True:
        try:
            work.wait(timedelta(seconds=LOOK_S))
            return
        except RuntimeError as problem:
            if work.is_completed():
                raise
            now = monotonic()
            since_s = since_s or (now if abandoned() else None)
            if since_s is not None and now - since_s > STUCK_S:
                _stuck.append(dist.distributed_c10d._get_default_group())
                raise RuntimeError("an operation in an abandoned group did not end") from problem


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket that somebody else has opened.

    Raises:
        OSError: it is no socket, or not open.
    """
    own = os.dup(descriptor)
    try:
        borrowed = socket.socket(fileno=own)
    except OSError:  # not a socket, and so nobody closes it but we
        os.close(own)
        raise
    with borrowed:
        yield borrowed


def _connections() -> set[int]:
    """The descriptors of this process's TCP connections (listening sockets have no peer, and are none)."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _borrowed(int(name)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                found.add(int(name))
    return found


def _interface_of(host: str) -> str:
    """The network interface that has this address: gloo is to use no other.

    Raises:
        ValueError: this machine has no such address.
    """
    names = interfaces_with(socket.gethostbyname(host))
    if not names:
        raise ValueError(f"{ADDRESS} is {host!r}: no network interface of this machine has that address")
    return names[0]


def survey(numbers: Sequence[int], size: int) -> list[list[int]]:
    """Some numbers from every member, by rank."""
    mine = torch.tensor(numbers, dtype=torch.int64)
    all_of_them = [torch.zeros_like(mine) for _ in range(size)]
    with watchful():
        dist.all_gather(all_of_them, mine)
    return [one.tolist() for one in all_of_them]


def tell_all(document: Any, rank: int) -> Any:
    """A JSON document from the first member to all; what the others pass is ignored."""
    raw = json.dumps(document if rank == 0 else None).encode()
    length = torch.tensor([len(raw)], dtype=torch.int64)
    with watchful():
        dist.broadcast(length, src=0)
        data = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            if rank == 0
            else torch.empty(int(length), dtype=torch.uint8)
        )
        dist.broadcast(data, src=0)
    return json.loads(data.numpy().tobytes())


def hear_all(document: Any, size: int) -> list[Any]:
    """A JSON document from every member, by rank."""
    raw = json.dumps(document).encode()
    lengths = [length for (length,) in survey([len(raw)], size)]
    mine = torch.zeros(max(lengths), dtype=torch.uint8)
    mine[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    all_of_them = [torch.zeros_like(mine) for _ in range(size)]
    with watchful():
        dist.all_gather(all_of_them, mine)
    return [json.loads(one[:length].numpy().tobytes()) for one, length in zip(all_of_them, lengths, strict=True)]


def wait_for_all() -> None:
    """A barrier, on the CPU whatever the gradients are on."""
    with watchful():
        dist.all_reduce(torch.zeros(1))


def share_tensors(tensors: Iterable[Tensor]) -> None:
    """The first member's tensors become everybody's; those of a kind go together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for some in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        with watchful():
            dist.broadcast(flat, src=0)
        begin = 0
        for tensor in some:
            tensor.copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
            begin += tensor.numel()


def this_host() -> int:
    """A number that processes on the same running machine (and node, where they were told one) share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        node = os.environ.get(NODE, "")
        return zlib.crc32(f"{boot}{os.readlink('/proc/self/ns/pid')}{node}".encode())
    except OSError:
        return zlib.crc32(f"{socket.gethostname()}{os.getpid()}".encode())  # nobody's but one's own


@contextlib.contextmanager
def watchful() -> Any:
    """A failed operation within means that somebody is gone."""
    try:
        yield
    except RuntimeError as problem:
        raise PeersLost(_first_line(problem)) from None


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__
