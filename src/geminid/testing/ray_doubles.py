"""What a Ray executor talks to, without Ray: a bridge that grants every slot, agents that answer, a supervisor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

from geminid.node.messages import Identity
from geminid.serve.executors.agentevents import AgentConnected
from geminid.serve.executors.agents import AgentPool
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.bridge import Bridge


class GrantingBridge(Bridge):
    """A bridge that reports these nodes and grants every slot at once."""

    def __init__(self, nodes: list[b.SeenNode], on_answer: Callable[[b.Answer], None]) -> None:
        self._on_answer, self.trouble = on_answer, ""
        on_answer(b.Nodes(nodes=nodes, found={}))

    def send(self, request: b.Request) -> int:
        """Answer a request for slots."""
        if isinstance(request, b.Lease):
            seat = b.Seat(["0"], Identity(1, 1))
            self._on_answer(b.Leased(id=request.id, held=dict.fromkeys(request.slots, seat)))
        return 1

    def close(self) -> None:
        """Let go of it."""


class ConnectedAgents(AgentPool):
    """Agents that are connected as soon as their nodes are known, and run nothing."""

    def __init__(self, on_event: Callable[[AgentConnected], None], *others: object, **options: object) -> None:
        self._report = on_event
        self._known: set[str] = set()

    def know(self, node: str, host: str, port: int, token: str) -> bool:
        """Report that the node's agent is there."""
        if node not in self._known:
            self._known.add(node)
            self._report(AgentConnected(node))
        return False

    def hold(self, node: str) -> None:
        """Nothing to do."""

    def end(self, key: str, node: str) -> None:
        """Nothing runs."""

    def running(self) -> dict[str, str]:
        """Nothing runs."""
        return {}

    def end_strangers(self, node: str) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Let go of it."""


class PretendSupervisor:
    """A supervisor whose status shows the slots that it was given; it has no workers and reports nothing."""

    def __init__(self, *arguments: object, slots: tuple[str, ...] = (), **options: object) -> None:
        self.status = SimpleNamespace(ready=None, slots=slots, reason="", workers=())
        self.has_ended = False

    def __enter__(self) -> PretendSupervisor:
        """Nothing is started."""
        return self

    def resize(self, slots: Iterable[str]) -> None:
        """Have these slots from now on."""
        self.status.slots = tuple(slots)

    def set_min_slots(self, min_slots: int) -> None:
        """Nothing to do."""

    def stop(self, *, save: bool) -> None:
        """Nothing to do."""

    def detach(self) -> None:
        """Nothing to do."""


def seen_node(name: str, slots: int) -> b.SeenNode:
    """A node with A100s and an agent, as the bridge describes it."""
    return b.SeenNode(
        id=f"{name:0>56}",
        name=name,
        address="127.0.0.1",
        gpu_type="a100",
        slots=slots,
        unit="GPU",
        bundle={"GPU": 1.0, "CPU": 1.0},
        accelerator="A100",
        agent=b.AgentPlace("127.0.0.1", 1, f"{name:0>64}"),
    )
