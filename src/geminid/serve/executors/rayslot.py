"""The actor that sits in every slot that Geminid holds on a Ray cluster.

Ray counts the slot as used by it, and tells it which GPU that is. The processes of jobs are not its own (they come from
a warm process of the node's agent), but they end when it does: whoever takes the slot back from Geminid, with any tool
of Ray's, takes it back from the job as well.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from geminid.train.launcher import started_at


class GeminidSlot:
    """The actor."""

    async def seat(self) -> dict[str, Any]:
        """The devices of this slot, none if it is a CPU slot; and the process that holds it."""
        import ray

        pid = os.getpid()
        devices = [str(device) for device in ray.get_gpu_ids()]
        return {"devices": devices, "holder": {"pid": pid, "started_at": started_at(pid)}}

    async def stay(self) -> None:
        """For whoever wants to hear of its end."""
        await asyncio.Event().wait()
