"""The actor on every node of a Ray cluster: a :class:`~geminid.node.agent.NodeServer`.

It is detached and takes no resources; the slots that its processes use are held by placement groups. It outlives the
service, so that jobs train on without one. It does not outlive its raylet, nor do its processes: to Ray the node's
slots would be free.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from geminid import __version__
from geminid.node.agent import NodeServer
from geminid.node.code import UnpackedCode
from geminid.process.environment import clean_environment
from geminid.process.interfaces import interfaces_with
from geminid.supervise.channel import ADDRESS, NODE

#: Which network interfaces jobs are to use, if set when Ray was started on a node.
NETWORK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class NodeAgent:
    """The actor. ``service`` names the service that it is for, ``node`` its node."""

    def __init__(self, service: str, node: str, forsaken_s: float) -> None:
        import ray

        self._service, self._node = service, node
        host = ray.util.get_node_ip_address()
        folder = self._folder = agent_folder(service, node)
        make_private(folder.parent)
        token = secrets.token_hex(32)
        self._code = UnpackedCode(folder / "code", _unpack)
        self._gcs, self._node_id = None, ray.NodeID.from_hex(ray.get_runtime_context().get_node_id())
        self._server = NodeServer(
            host,
            folder,
            token,
            base_environment(node, host),
            forsaken_s=forsaken_s,
            vouched=self._counts,
            is_there=self._code.is_there,
        )
        self._in_use = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._in_use, fcntl.LOCK_SH)  # by which systemd-tmpfiles knows not to tidy it
        self._place = {"host": self._server.address[0], "port": self._server.address[1], "token": token}
        with suppress(KeyError, ValueError, OSError):
            self._server.watch(os.pidfd_open(int(os.environ["RAY_RAYLET_PID"])))
        threading.Thread(target=self._serve, name="geminid node", daemon=True).start()

    def place(self) -> dict[str, object]:
        """Where the server listens, and which version it is of."""
        return {**self._place, "version": __version__}

    def unpack(self, job: str, uri: str, at: int) -> dict[str, object]:
        """Have a job's folder here, which Ray keeps as a package; where it is, and what makes it run."""
        there = self._code.have(job, uri, at)
        environment = {"PYTHONPATH": python_path(str(there))}
        return {"folder": str(there), "environment": environment, "agent": self._place["token"]}

    def discard(self, job: str, at: int) -> None:
        """A job's code is not needed any more, as far as it was asked for before."""
        self._code.discard(job, at)

    def leave(self) -> None:
        """The service ends, and with it this agent: nothing of it stays."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._server.end()

    def _counts(self) -> bool:
        """Whether Ray says that this node is alive: one that is cut off is not, nor one that was given up."""
        from geminid.serve.executors.ray.private import control_store

        try:
            known = self._gcs = self._gcs or control_store()
            return bool(known.check_alive([self._node_id], timeout=1.0)[0])
        except Exception:  # whatever it is, nobody vouches
            return False

    def _serve(self) -> None:
        try:
            self._server.serve()
            if self._server.forsaken:
                give_back(self._service, self._node)
        finally:
            os._exit(0)


def _unpack(uri: str, folder: Path) -> Path:
    """Unpack a package that Ray keeps."""
    from geminid.serve.executors.ray.private import unpack_package

    return unpack_package(uri, folder)


def base_environment(node: str, host: str) -> dict[str, str]:
    """What processes on this node find in their environment, before what the job asks for.

    Of the environment in which Ray was started there, it has only where programs are and which network to use.
    """
    ours = clean_environment() | {name: os.environ[name] for name in NETWORK if name in os.environ}
    ours |= {NODE: node, ADDRESS: host, "PATH": own_path()}
    for interface in interfaces_with(host):
        ours.setdefault("GLOO_SOCKET_IFNAME", interface)
        if interface != "lo":
            ours.setdefault("NCCL_SOCKET_IFNAME", interface)
    return ours


def own_path() -> str:
    """Where programs are looked for: first where the interpreter of this process is."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def python_path(folder: str) -> str:
    """Where modules are looked for: first in a folder, then where this process looks for them."""
    return os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


def agent_folder(service: str, node: str) -> Path:
    """Where the agent of a node has what it needs."""
    return Path(tempfile.gettempdir(), f"geminid-{os.getuid()}", f"{service}-{node}")


def make_private(folder: Path) -> None:
    """Make a folder that nobody else can change: another user may have made one of its name before.

    Raises:
        PermissionError: somebody has.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} must be a folder of user {os.getuid()} that nobody else can write to")


def lease_name(service: str, node: str, index: int) -> str:
    """The name of the placement group that holds a slot."""
    return f"geminid/{service}/{node}/{index}"


def give_back(service: str, node: str) -> None:
    """Give a node's slots back to Ray, and withdraw what was requested: no service will come back."""
    import ray
    from ray.util.placement_group import placement_group_table

    from geminid.serve.executors.ray.autoscaler import withdraw_capacity

    for group in placement_group_table().values():
        if group["name"].startswith(f"geminid/{service}/{node}/") and group["state"] != "REMOVED":
            with suppress(ValueError):
                ray.util.remove_placement_group(ray.util.get_placement_group(group["name"]))
    withdraw_capacity(service)
