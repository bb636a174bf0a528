"""A Ray cluster whose nodes Ray's own autoscaler starts and ends: raylets on loopback addresses instead of machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_WORKER,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from geminid.testing.ray_cluster import LoopbackCluster

#: What Ray's autoscaler wants to see in its configuration, and what is not used here.
UNUSED = {
    "auth": {"ssh_user": "nobody"},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    **{f"{step}_commands": [] for step in ("initialization", "setup", "head_setup", "worker_setup")},
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
}


class LoopbackProvider(FakeMultiNodeProvider):
    """Ray's provider of pretended machines, each with an address of its own."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: Mapping[str, float], labels: Mapping[str, str]
    ) -> None:
        with self.lock:
            identity, kind = self._next_hex_node_id(), tags[TAG_RAY_USER_NODE_TYPE]
            address = f"{self.provider_config['network']}.{100 + self._next_node_id}"
            others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
            parameters = RayParams(
                node_ip_address=address,
                node_name=f"{kind}-{self._next_node_id}",
                min_worker_port=0,
                max_worker_port=0,
                dashboard_agent_listen_port=0,
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                object_store_memory=80 << 20,
                resources=others,
                labels=dict(labels),
                redis_address=self._gcs_address,
                gcs_address=self._gcs_address,
                env_vars={
                    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": identity,
                    "RAY_CLOUD_INSTANCE_ID": identity,
                    "RAY_NODE_TYPE_NAME": kind,
                    "RAY_OVERRIDE_RESOURCES": json.dumps(others),
                    "RAY_OVERRIDE_LABELS": json.dumps(dict(labels)),
                },
            )
            node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
            known = {
                TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
                TAG_RAY_USER_NODE_TYPE: kind,
                TAG_RAY_NODE_NAME: identity,
                TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
                **tags,
            }
            self._nodes[identity] = {"tags": known, "node": node, "address": address}

    def _get_ip(self, node_id: str) -> str:
        return str(self._nodes[node_id].get("address", f"{self.provider_config['network']}.1"))


class ScaledCluster(LoopbackCluster):
    """A head, and nodes of these types as Ray's autoscaler sees fit; idle ones go after so many seconds."""

    def __init__(self, types: Mapping[str, Mapping[str, Any]], *, version: int = 2, idle_s: float = 3.0) -> None:
        super().__init__(nodes=0, slots=0, durable=False)
        described = {name: {"node_config": {}, "min_workers": 0, **kind} for name, kind in types.items()}
        described["ray.head.default"] = {"node_config": {}, "resources": {"CPU": 0}, "max_workers": 0}
        provider = {
            "type": "external",
            "module": "scaled.LoopbackProvider",
            "network": self._network,
            "gcs_address": self.address,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        }
        configuration = {
            "cluster_name": "loopback",
            "max_workers": 8,
            "idle_timeout_minutes": idle_s / 60.0,
            "provider": provider,
            "head_node_type": "ray.head.default",
            "available_node_types": described,
            "upscaling_speed": 1.0,
            **UNUSED,
        }
        path = self._folder / "autoscaling.json"
        path.write_text(json.dumps(configuration))
        self._head_options = ("--autoscaling-config", str(path))
        known = self._environment.get("PYTHONPATH", "")
        self._environment |= {
            "PYTHONPATH": f"{Path(__file__).parent}:{known}",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": str(int(version == 2)),
            "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        }
