"""The actor that sits in every slot that Geminid holds on a Ray cluster.

Ray counts the slot as used by it, and assigns it a GPU. The processes of jobs are not its own (they come from
a warm process of the node's agent), but they end when it does: a user who takes the slot back from Geminid, with any
tool of Ray's, takes it back from the job as well. Whose process has the slot it says when asked, in its log, and by its
name in lists of processes.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from geminid.node.processes import PROCESSES
from geminid.process.identity import identity_of
from geminid.serve.executors.ray.agent import agent_folder

#: Time between two looks at which process has the slot, in seconds.
LOOK_S = 1.0


class GeminidSlot:
    """The actor of a slot: ``index`` of the node ``node``, for the service ``service``."""

    def __init__(self, service: str, node: str, index: int) -> None:
        self._path, self._index = agent_folder(service, node) / PROCESSES, str(index)

    async def seat(self) -> dict[str, Any]:
        """The devices of this slot, none if it is a CPU slot; and the process that holds it."""
        import ray

        devices = [str(device) for device in ray.get_gpu_ids()]
        return {"devices": devices, "holder": identity_of(os.getpid())}

    async def user(self) -> dict[str, Any] | None:
        """The job, the worker and the process that has the slot; None if none does."""
        return self._user()

    async def stay(self) -> None:
        """Returns when the actor ends; meanwhile it shows whose slot it is."""
        from geminid.serve.executors.ray.private import set_process_title

        shown: dict[str, Any] | None = None
        while True:
            user = self._user()
            if user != shown:
                shown = user
                whose = "nobody" if user is None else f"{user['job']}/{user['worker']}"
                print(f"slot {self._index} of {self._path.parent.name}: {user or whose}", flush=True)
                set_process_title(f"ray::GeminidSlot {whose}")
            await asyncio.sleep(LOOK_S)

    def _user(self) -> dict[str, Any] | None:
        try:
            for one in json.loads(self._path.read_text(encoding="utf-8")):
                if self._index in one["slots"]:
                    job, _, worker = one["key"].partition("/")
                    return {"job": job, "worker": worker.partition(".")[0], "pid": one["pid"]}
        except (OSError, ValueError, KeyError):
            pass  # nothing has run here yet
        return None
