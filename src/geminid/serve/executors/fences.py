"""Jobs that may still run on nodes that are gone: none is started elsewhere before that is over."""

from __future__ import annotations

from collections.abc import Iterable

#: Stands for nodes that only the service before this one knew.
BEFORE = ""


class Fences:
    """The nodes on which something of a job may still run, out of reach of the service."""

    def __init__(self) -> None:
        self._nodes: dict[str, set[str]] = {}

    def put(self, job_id: str, nodes: Iterable[str]) -> None:
        """Something of a job may run on these nodes."""
        if nodes := set(nodes):
            self._nodes.setdefault(job_id, set()).update(nodes)

    def holds(self, job_id: str) -> bool:
        """Whether a job has to wait."""
        return job_id in self._nodes

    def around(self, job_id: str) -> list[str]:
        """The nodes, by name, for which a job waits."""
        return sorted(self._nodes.get(job_id, set()) - {BEFORE})

    @property
    def nodes(self) -> set[str]:
        """All nodes for which anybody waits."""
        return {node for nodes in self._nodes.values() for node in nodes}

    def lift(self, node: str) -> None:
        """Nothing of jobs that had lost this node runs there any more."""
        for job_id, nodes in list(self._nodes.items()):
            nodes.discard(node)
            if not nodes:
                del self._nodes[job_id]
