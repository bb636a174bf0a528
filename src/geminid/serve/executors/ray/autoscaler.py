"""What Ray's autoscaler is asked for: one standing request for the whole cluster, until it is taken back.

Ray does not say who made it, so we keep that we did where the next bridge, or the agents that are left when no service
comes any more, will find it: a request that nobody withdraws would keep nodes running, and paid for.
"""

from __future__ import annotations

from ray.autoscaler.sdk import request_resources

from geminid.serve.executors.ray.messages import Bundle
from geminid.serve.executors.ray.nodes import ACCELERATOR, ACCELERATOR_LABEL
from geminid.serve.executors.ray.private import has_autoscaler_v2, kv_delete, kv_get, kv_put


def request_capacity(service: str, bundles_of: list[Bundle]) -> None:
    """Have Ray's autoscaler make room: GPU types are labels to its second version, and resources to the first."""
    kv_put(_key(service), b"1")
    bundles: list[dict[str, float]] = []
    selectors: list[dict[str, str]] = []
    by_label = has_autoscaler_v2()
    for kind in bundles_of:
        bundle, selector = dict(kind.bundle), {}
        if kind.accelerator is not None and by_label:
            selector = {ACCELERATOR_LABEL: kind.accelerator}
        elif kind.accelerator is not None:
            bundle[ACCELERATOR + kind.accelerator] = 0.001
        bundles += [bundle] * kind.slots
        selectors += [selector] * kind.slots
    request_resources(bundles=bundles, bundle_label_selectors=selectors)


def withdraw_capacity(service: str) -> None:
    """Withdraw what a service has requested, if it has."""
    if kv_get(_key(service)):
        request_resources(bundles=[], bundle_label_selectors=[])
        kv_delete(_key(service))


def _key(service: str) -> str:
    return f"geminid/{service}/wished"
