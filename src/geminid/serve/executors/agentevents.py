"""What the connections with agents report to the executor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentConnected:
    """There is a connection with a node's agent."""

    node: str


@dataclass(frozen=True, slots=True)
class AgentGone:
    """A node's agent is gone, and its processes with it."""

    node: str


@dataclass(frozen=True, slots=True)
class NothingRuns:
    """Nothing runs any more on a node that is gone: that is proven, or its lease ended long enough ago."""

    node: str


@dataclass(frozen=True, slots=True)
class AgentSilent:
    """A node's agent is there and does not answer."""

    node: str


@dataclass(frozen=True, slots=True)
class AgentRefused:
    """A node's agent does not serve this service, for this reason: it is of another version."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class CodeGone:
    """What was brought to a node for a job to run is not there any more: nothing could be started on these slots."""

    job_id: str
    node: str
    slots: frozenset[str]


AgentEvent = AgentConnected | AgentGone | NothingRuns | AgentSilent | AgentRefused | CodeGone
