"""Everything that Geminid uses of Ray's undocumented interface; no other module imports it.

A release of Ray may change any of this. ``VERSIONS_TRIED`` names those with which all tests pass; a test fails with
another one, so that an engineer who updates Ray runs the tests of ``tests/e2e/test_ray*.py`` and adds it.

| from | what | why |
|---|---|---|
| ``ray._private.state`` | free resources and draining nodes | the documented calls name neither by node |
| ``ray._private.runtime_env.packaging`` | packages | a job's folder is packed, kept and unpacked as Ray does |
| ``ray._private.ray_constants`` | what Ray leaves out of packages | so do we |
| ``ray._raylet.GcsClient`` | the control store | nodes are asked for before there is a driver, and without one |
| ``ray._raylet.setproctitle`` | the name in lists of processes | an actor says whose slot it holds |
| ``ray.core.generated.gcs_pb2`` | states of nodes | the control store answers with them |
| ``ray.autoscaler.v2.utils`` | the version of the autoscaler | GPU types are requested in different ways |
| ``ray.experimental.internal_kv`` | a few short records | they have to outlive every process of ours |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import state as ray_state
from ray._private.runtime_env import packaging
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.experimental import internal_kv

#: The versions of Ray (major and minor) with which the tests have passed.
VERSIONS_TRIED = ("2.60",)

#: Ray takes no package that is larger.
MAX_PACKAGE_BYTES: int = packaging.GCS_STORAGE_MAX_SIZE

#: The namespace of our records in Ray's key-value store.
KV_NAMESPACE = b"geminid"

#: Drops what Ray logs about each file while it packs a folder.
_NO_LOG = logging.Logger("geminid.serve.quiet", logging.CRITICAL)


def set_process_title(title: str) -> None:
    """Set the name of this process in lists of processes."""
    ray._raylet.setproctitle(title)


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """What is free on each node, by the node's id."""
    return dict(ray_state.available_resources_per_node())


def draining_nodes() -> Collection[str]:
    """The ids of nodes that are about to leave."""
    return set(ray_state.state.get_draining_nodes())


def control_store(address: str | None = None) -> Any:
    """A client of a cluster's control store (GCS); that of the cluster which this process belongs to, by default."""
    return ray._raylet.GcsClient(address=address or ray.get_runtime_context().gcs_address)


def node_addresses(address: str, timeout_s: float) -> list[str]:
    """The addresses of a cluster's nodes that are alive, the head's first; no driver is needed."""
    known = control_store(address).get_all_node_info(timeout=timeout_s).values()
    alive = [node for node in known if node.state == GcsNodeInfo.ALIVE]
    alive.sort(key=lambda node: (not node.is_head_node, node.node_manager_address))
    return [node.node_manager_address for node in alive]


def has_autoscaler_v2() -> bool:
    """Whether the cluster's autoscaler is of the second version, which knows labels."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2())


def visit_package(folder: Path, excludes: list[str], visit: Callable[[Path], None]) -> None:
    """Call a function with every path that a package of this folder would contain."""
    leave_out = [packaging._get_excludes(folder, _all_excludes(excludes))]
    packaging._dir_travel(folder, leave_out, visit, include_gitignore=True, logger=_NO_LOG)


def create_package(folder: Path, excludes: list[str], target: Path) -> None:
    """Pack a folder as Ray does, without what these patterns, its ignore files and Ray itself leave out."""
    leave_out = _all_excludes(excludes)
    packaging.create_package(str(folder), target, include_gitignore=True, excludes=leave_out, logger=_NO_LOG)


def upload_package(package: Path) -> str:
    """Have the cluster keep a package under its file name, if it does not yet; its URI."""
    uri = f"gcs://{packaging.RAY_PKG_PREFIX}{package.name}"
    packaging.pin_runtime_env_uri(uri)
    if not packaging.package_exists(uri):
        packaging.upload_package_to_gcs(uri, package.read_bytes())
    return uri


def unpack_package(uri: str, folder: Path) -> Path:
    """Unpack a package that the cluster keeps; where it is now."""
    return Path(asyncio.run(packaging.download_and_unpack_package(uri, str(folder), control_store())))


def _all_excludes(excludes: list[str]) -> list[str]:
    return [*ray_constants.get_runtime_env_default_excludes(), *excludes]


def kv_get(key: str) -> bytes | None:
    """A record that was kept in the cluster; None if there is none."""
    kept: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=KV_NAMESPACE)
    return kept


def kv_put(key: str, value: bytes) -> None:
    """Keep a record in the cluster, instead of an earlier one of this name."""
    internal_kv._internal_kv_put(key.encode(), value, True, namespace=KV_NAMESPACE)


def kv_delete(key: str) -> None:
    """Remove a record from the cluster."""
    internal_kv._internal_kv_del(key.encode(), namespace=KV_NAMESPACE)
