"""What Ray's autoscaler is asked for: one standing request for the whole cluster, until it is taken back.

Ray does not say who made it, so we keep that we did where the next bridge, or the agents that are left when no service
comes any more, will find it: a request that nobody takes back would have nodes be paid for, for ever.
"""

from __future__ import annotations

from typing import Any

from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental import internal_kv

from geminid.serve.executors.raynodes import ACCELERATOR, ACCELERATOR_LABEL, KV_NAMESPACE


def wish(service: str, wished: list[dict[str, Any]]) -> None:
    """Have Ray's autoscaler make room: GPU types are labels to its second version, and resources to the first."""
    internal_kv._internal_kv_put(_key(service), b"1", True, namespace=KV_NAMESPACE)
    bundles: list[dict[str, float]] = []
    selectors: list[dict[str, str]] = []
    by_label = is_autoscaler_v2()
    for kind in wished:
        bundle, selector = dict(kind["bundle"]), {}
        if kind["accelerator"] is not None and by_label:
            selector = {ACCELERATOR_LABEL: kind["accelerator"]}
        elif kind["accelerator"] is not None:
            bundle[ACCELERATOR + kind["accelerator"]] = 0.001
        bundles += [bundle] * kind["slots"]
        selectors += [selector] * kind["slots"]
    request_resources(bundles=bundles, bundle_label_selectors=selectors)


def wish_nothing(service: str) -> None:
    """Take back what a service has asked for, if it has."""
    if internal_kv._internal_kv_get(_key(service), namespace=KV_NAMESPACE):
        request_resources(bundles=[], bundle_label_selectors=[])
        internal_kv._internal_kv_del(_key(service), namespace=KV_NAMESPACE)


def _key(service: str) -> bytes:
    return f"geminid/{service}/wished".encode()
