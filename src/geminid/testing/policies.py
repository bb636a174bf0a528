"""A policy for tests of whatever carries out decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from geminid.configuration import Configuration
from geminid.policies.base import Allocation, ClusterView, Decision, Policy


@dataclass(slots=True)
class ScriptedPolicy(Policy):
    """Decides what the function ``answer`` returns for the current view of the cluster."""

    name = "scripted"
    paper = objective = "none"
    answer: Callable[[ClusterView], Decision] = lambda view: Decision({})
    interval_s: float | None = None
    needs_models: bool = False

    @classmethod
    def always(cls, assignments: Mapping[str, Configuration | Allocation]) -> ScriptedPolicy:
        """A policy that gives each job that is present its entry of ``assignments``."""
        return cls(lambda view: Decision({job.id: assignments[job.id] for job in view.jobs if job.id in assignments}))

    def decide(self, view: ClusterView) -> Decision:
        """Call the function."""
        return self.answer(view)
