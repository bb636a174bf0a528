"""What a simulation returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from geminid.cluster import Cluster
from geminid.sim.reasons import Reasons
from geminid.sim.simjob import SimJob


@dataclass(slots=True)
class Result:
    """What happened: the jobs with all their stints, the time that decisions took, and the reasons policies gave.

    ``rejected`` holds the time and the reason of every invalid decision. ``node_s`` is the time for which nodes were
    rented, ``returned_slot_s`` the time of the slots of returned nodes, both summed. ``decision_s`` and ``wall_s`` are
    real seconds; all other times are simulated.
    """

    policy: str
    cluster: Cluster
    jobs: list[SimJob]
    decision_s: list[float] = field(default_factory=list)
    rejected: list[tuple[float, str]] = field(default_factory=list)
    reasons: Reasons = field(default_factory=Reasons)
    failures: int = 0
    node_s: float = 0.0
    returned_slot_s: float = 0.0
    events: int = 0
    wall_s: float = 0.0


class NoProgress(RuntimeError):
    """The simulation would never end under this policy and workload."""
