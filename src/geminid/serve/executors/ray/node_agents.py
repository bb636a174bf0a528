"""The agents of a Ray cluster's nodes, as the bridge keeps them: one on every node that has slots."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import ray
from msgspec import convert
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from geminid import __version__
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.actors import NAMESPACE, in_a_line
from geminid.serve.executors.ray.agent import NodeAgent

#: Time between two looks at the cluster.
LOOK_S = 0.4

#: A node that has another version of Geminid is looked at again after this time.
OTHER_VERSION_S = 60.0

#: First delay before an agent that cannot be started is tried again; doubles up to AGENT_RETRY_MAX_S.
AGENT_RETRY_S = 1.0

#: Longest delay before an agent that cannot be started is tried again.
AGENT_RETRY_MAX_S = 60.0

#: How many calls an agent carries out at a time: it says where it is while it unpacks whatever is asked for.
MAX_CONCURRENCY = 34

#: How long to wait for the agent of a node that is about to be started.
WAIT_S = 5.0


class Answers:
    """Sends answers to the service, from any thread; ``lock`` keeps others from sending in between."""

    def __init__(self, connection: b.BridgeEnd) -> None:
        self._connection = connection
        self.lock = threading.RLock()

    def send(self, answer: b.Answer) -> None:
        """Send something, and wait until it is sent."""
        with self.lock:
            self._connection.send(answer)
            self._connection.drain(None)


@dataclass(slots=True)
class _Question:
    """Where an agent is: what will be its answer, and for how many looks it has been waited for."""

    answer: Any
    looks: int = 0


class NodeAgents:
    """The agents, by the id of their node; ``resting`` nodes are to have none for now."""

    def __init__(self, service: str, answers: Answers, forsaken_s: float, silent_s: float) -> None:
        self._service, self._answers, self._forsaken_s = service, answers, forsaken_s
        self._patient_looks = silent_s / LOOK_S  # not time: this process may have stood still itself
        self.resting: set[str] = set()
        self._agents: dict[str, Any] = {}
        self._asked: dict[str, _Question] = {}
        self._again_at_s: dict[str, float] = {}
        self._places: dict[str, b.AgentPlace] = {}
        self._failed: dict[str, int] = {}  # how often in a row the agent of a node could not be started

    @property
    def all(self) -> list[Any]:
        """All agents that there are."""
        return list(self._agents.values())

    def place(self, node_id: str, name: str) -> b.AgentPlace | None:
        """Where the agent of a node is; None if it is being started, or there is to be none."""
        if node_id in self.resting or monotonic() < self._again_at_s.get(node_id, 0.0):
            return None
        if node_id not in self._agents:
            options = {
                "name": f"{self._service}/{node_id}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,
                "max_restarts": 0,
                "max_concurrency": MAX_CONCURRENCY,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
            }
            actor = ray.remote(NodeAgent).options(**options).remote(self._service, name, self._forsaken_s)
            self._agents[node_id] = actor
        if node_id not in self._asked:
            self._asked[node_id] = _Question(self._agents[node_id].place.remote())
        asked = self._asked[node_id]
        asked.looks += 1
        done, _ = ray.wait([asked.answer], timeout=0)
        place = None
        try:
            place = convert(ray.get(asked.answer), b.AgentPlace) if done else None
        except ray.exceptions.ActorUnavailableError:  # that it did not answer is no answer
            asked.answer = self._agents[node_id].place.remote()
        except ray.exceptions.RayError as problem:  # it ended: another one is made at the next look, or later
            for known in (self._asked, self._places, self._agents):
                known.pop(node_id, None)
            self._put_off(node_id, name, in_a_line(problem))
            return None
        if place is None and asked.looks > self._patient_looks:
            self.end(node_id)
            self._answers.send(b.Hangs(node=name))
            return None
        if place is not None and place.version != __version__:
            self.end(node_id)
            self._again_at_s[node_id] = monotonic() + OTHER_VERSION_S
            self._answers.send(b.OtherVersion(node=name, version=place.version))
            return None
        if place is not None:
            del self._asked[node_id]
            self._failed.pop(node_id, None)
            self._places[node_id] = place
        return self._places.get(node_id)

    def _put_off(self, node_id: str, name: str, reason: str) -> None:
        """An agent has ended. If it never came to be, and the one before did not either, say so, and wait a while."""
        failed = self._failed[node_id] = self._failed.get(node_id, 0) + 1
        if failed > 1:
            self._again_at_s[node_id] = monotonic() + min(AGENT_RETRY_S * 2.0 ** (failed - 2), AGENT_RETRY_MAX_S)
            self._answers.send(b.NoAgent(node=name, reason=reason))

    def end(self, node_id: str) -> None:
        """End the agent of a node; unless it is to rest, another one is started at the next look."""
        for known in (self._asked, self._places):
            known.pop(node_id, None)
        agent = self._agents.pop(node_id, None)
        if agent is not None:
            ray.kill(agent)

    def wait_for(self, node_id: str, name: str) -> Any:
        """The agent of a node; one that was let go is about to be started again.

        Raises:
            TimeoutError: there is none, and none has come.
        """
        deadline_s = monotonic() + WAIT_S
        while (agent := self._agents.get(node_id)) is None:
            if monotonic() > deadline_s:
                raise TimeoutError(f"node {name} has no agent")
            sleep(0.1)
        return agent
