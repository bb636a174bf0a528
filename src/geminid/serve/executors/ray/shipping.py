"""Bringing jobs' code to the nodes of a Ray cluster, with the environments that they ask for, and removing it again.

Setting an environment up may take minutes. It holds up nobody but its own job: the slots that the job is planned for
are held without it, and whatever is not wanted any more is given up at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

import ray
from msgspec import convert
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.actors import GONE, NAMESPACE, could_not_begin, end_named, in_a_line
from geminid.serve.executors.ray.agent import own_path, python_path
from geminid.serve.executors.ray.code import CodeStore
from geminid.serve.executors.ray.private import upload_package

#: Longest time for bringing code to a node, with what has to be installed for it.
SHIP_S = 900.0

#: Longest time for removing code from nodes.
UNSHIP_S = 60.0

#: Number of times in a row that the process bringing code may end before that is given up.
MOST_IN_VAIN = 20

#: Number of jobs whose code is brought at the same time.
SHIPPERS = 512

#: By which an environment names the folder of its job; where it does not, Ray needs none.
NEEDS_FOLDER = "RAY_RUNTIME_ENV_CREATE_WORKING_DIR"

#: Longest time until it is noticed that code is not to be brought any more.
GIVEN_UP_S = 0.5


@dataclass(slots=True)
class _Shipment:
    """Code of a job that is to be brought to some nodes, unless it is ``given_up``.

    ``environment`` is whether it asks for one, and has processes of its own, which may end because of that. ``at`` is
    when it was asked for, among all that agents are asked to bring and to remove.
    """

    number: int
    at: int
    job: str
    code: Path
    nodes: list[str]
    given_up: bool = False
    environment: bool = False


class Shipping:
    """See the module. ``tell`` is called with the outcome; nodes are known by name, and have an id and an agent."""

    def __init__(
        self,
        service: str,
        tell: Callable[[b.Answer], None],
        node_id_of: Callable[[str], str],
        agent_of: Callable[[str], Any],
        agents: Callable[[], Iterable[Any]],
    ) -> None:
        self._service, self._tell = service, tell
        self._node_id_of, self._agent_of, self._agents = node_id_of, agent_of, agents
        self._bringing: list[tuple[_Shipment, Future[None]]] = []
        self._removing: dict[str, Future[None]] = {}
        self._vain: dict[str, int] = {}  # how often in a row somebody was gone before a job's code was there
        self._tries: dict[str, int] = {}  # how often the environment of a job could not be set up
        self._turns = count(time_ns())  # ascend, whichever bridge counts
        self._pool = ThreadPoolExecutor(SHIPPERS, thread_name_prefix="ship")

    def bring(self, number: int, job: str, code: Path, nodes: list[str]) -> None:
        """Have a job's code on some nodes; if its environments are being removed, after that."""
        shipment = _Shipment(number, next(self._turns), job, code, nodes)
        under_way = self._pool.submit(self._bring, shipment, self._removing.get(job))
        self._bringing = [(one, future) for one, future in self._bringing if not future.done()]
        self._bringing.append((shipment, under_way))

    def remove(self, number: int, job: str) -> None:
        """A job's code is not needed any more; what is still being brought is given up."""
        under_way = []
        for shipment, future in self._bringing:
            if shipment.job == job:
                shipment.given_up = True
                under_way.append(future)
        self._removing = {other: future for other, future in self._removing.items() if not future.done()}
        self._removing[job] = self._pool.submit(self._remove, number, next(self._turns), job, under_way)

    def forsake(self, node_id: str) -> None:
        """No job is to run on a node any more: nothing of ours is to keep it in use."""
        self._end_code("*", node_id)

    def _end_code(self, jobs: str, nodes: str) -> None:
        """End what keeps the environments of jobs on nodes, each a name or ``*`` for all."""
        ours = f"{self._service}/{jobs}/{nodes}"
        end_named(lambda name: name.count("/") == 2 and fnmatchcase(name, ours))

    def _bring(self, shipment: _Shipment, before: Future[None] | None) -> None:
        places: dict[str, b.CodePlace] = {}
        failure: b.Unshippable | b.Unfit | None = None
        waiting: dict[str, Any] = {}
        try:
            if before is not None:
                wait([before], 2 * UNSHIP_S)
            if not shipment.given_up:
                waiting = self._ask_for(shipment)
        except (FileNotFoundError, ValueError, TypeError) as problem:  # it will never do
            failure = _unshippable(shipment, problem, shipment.nodes, certain=True)
        except Exception as problem:  # a node that has just gone, for example
            print(f"geminid: code could not be brought: {in_a_line(problem)}", file=sys.stderr, flush=True)
            failure = b.Unfit(id=shipment.number, nodes=shipment.nodes, reason="")
        deadline_s = monotonic() + SHIP_S
        while waiting and failure is None and not shipment.given_up:
            ready, _ = ray.wait(list(waiting.values()), timeout=GIVEN_UP_S)
            for name in [name for name, place in waiting.items() if place in ready]:
                came = self._answered(shipment, name, waiting.pop(name))
                if not isinstance(came, b.CodePlace):
                    failure = came
                    break
                places[name] = came
            if failure is None and waiting and monotonic() > deadline_s:
                late = TimeoutError(f"it took longer than {SHIP_S:g} s")
                failure = _unshippable(shipment, late, sorted(waiting), certain=False)
        if failure is None:
            self._vain.pop(shipment.job, None)
        if isinstance(failure, b.Unshippable):
            self._tries[shipment.job] = self._tries.get(shipment.job, 0) + 1
        if not shipment.given_up:
            self._tell(failure or b.Shipped(id=shipment.number, places=places))

    def _answered(self, shipment: _Shipment, node: str, answer: Any) -> b.CodePlace | b.Unshippable | b.Unfit:
        """Where a node has a job's code, or why it has not."""
        try:
            return convert(ray.get(answer), b.CodePlace)
        except GONE as problem:
            # Otherwise its node is gone, or is about to go; if it does not, something else must be wrong.
            vain = self._vain[shipment.job] = self._vain.get(shipment.job, 0) + 1
            if (shipment.environment and could_not_begin(problem)) or vain > MOST_IN_VAIN:
                return _unshippable(shipment, problem, [node], certain=False)
            return b.Unfit(id=shipment.number, nodes=[node], reason="")
        except OSError as problem:  # it has no room, or its folder was removed: others may
            with suppress(Exception):  # another one is made the next time
                self._end_code(shipment.job, self._node_id_of(node))
            reason = f"no code could be brought to {node}: {in_a_line(problem)}"
            return b.Unfit(id=shipment.number, nodes=[node], reason=reason)
        except Exception as problem:  # what it asks for cannot be had there
            return _unshippable(shipment, problem, [node], certain=False)

    def _ask_for(self, shipment: _Shipment) -> dict[str, Any]:
        """Have a job's code on some nodes, with the environment that it asks for from Ray; what will be their answers.

        Code is unpacked by the agents, for each node and job by itself: where raylets share a machine Ray would unpack
        it again under its processes. That an environment could not be set up Ray believes for ten minutes: another
        try is of another environment to it.
        """
        job, code = shipment.job, shipment.code
        uri = upload_package(code)  # whose name stands for what is in it
        environment = CodeStore(code.parent).environment(code.stem)
        unpacked = {name: self._agent_of(name).unpack.remote(job, uri, shipment.at) for name in shipment.nodes}
        if not environment:
            return unpacked
        shipment.environment = True
        names = list(environment.get("env_vars", {}))
        if NEEDS_FOLDER in str(environment):
            environment["working_dir"] = uri
        if tries := self._tries.get(job, 0):
            environment["env_vars"] = {**environment.get("env_vars", {}), "GEMINID_SETUP_TRY": str(tries + 1)}
        asked = {}
        for name in shipment.nodes:
            node_id = self._node_id_of(name)
            options = {
                "name": f"{self._service}/{job}/{node_id}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
                "runtime_env": environment,
            }
            asked[name] = ray.remote(_Code).options(**options).remote().place.remote(names, unpacked[name])
        return asked

    def _remove(self, number: int, at: int, job: str, bringing: Sequence[Future[None]]) -> None:
        """Remove a job's code everywhere; when this returns, nothing is removed that is brought later.

        Agents know that by themselves. One that hangs delays only the report of this.
        """
        wait(bringing, UNSHIP_S)
        removed = [agent.discard.remote(job, at) for agent in self._agents()]
        self._end_code(job, "*")
        self._pool.submit(self._tell_removed, number, removed)

    def _tell_removed(self, number: int, removed: Sequence[Any]) -> None:
        if removed:
            ray.wait(removed, num_returns=len(removed), timeout=UNSHIP_S)
        self._tell(b.Unshipped(id=number))


class _Code:
    """Stays in a job's environment for as long as it is needed: Ray removes environments that nobody uses."""

    def place(self, names: list[str], unpacked: Mapping[str, Any]) -> dict[str, Any]:
        """Where its code was unpacked, and what makes it run; with these variables, which its environment sets."""
        found = {name: os.environ[name] for name in ("VIRTUAL_ENV", *names) if name in os.environ}
        environment = {"PATH": own_path(), **found, "PYTHONPATH": python_path(unpacked["folder"])}
        return {**unpacked, "environment": environment}


def _unshippable(shipment: _Shipment, problem: Exception, nodes: Sequence[str], *, certain: bool) -> b.Unshippable:
    """That a job's code, with what it asks for, cannot be had on some nodes; ``certain`` if it could nowhere."""
    reason = f"its code could not be brought to {', '.join(sorted(nodes))}: {in_a_line(problem)}"
    return b.Unshippable(id=shipment.number, nodes=sorted(nodes), reason=reason, certain=certain)
