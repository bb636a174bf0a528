"""One decision of the past, made again: the state as it was is rebuilt from the log, and a policy is asked.

Two things are not in the log: what a policy remembered of earlier decisions, and measurements of jobs that are
forgotten. So the same policy may decide differently; both decisions are shown.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.fields import InvalidInput, Problem
from geminid.nodes import NodeGroup
from geminid.serve import records as r
from geminid.serve.documents import factors_of, market_document
from geminid.serve.planner import Planner
from geminid.serve.state import ServiceState
from geminid.serve.store import DATABASE, Entry, StoreProblem, read_entries
from geminid.sim.run import named_policy


class _Then(Clock):
    """A clock that always shows the same time."""

    def __init__(self, at_s: float) -> None:
        super().__init__(at_s)
        self._at_s = at_s

    def now_s(self) -> float:
        return self._at_s


@dataclass(frozen=True, slots=True)
class Moment:
    """The state before a record, under which policy and with which nodes; and what the record decided, if it did."""

    seq: int
    at_s: float
    state: ServiceState
    policy: str
    cluster: Cluster
    planned: r.Planned | None


def moment(folder: Path, seq: int | None = None) -> Moment:
    """The moment of a record of a service's log: the last decision, where none is named.

    Raises:
        InvalidInput: there is no such record, or none that is kept.
        StoreProblem: the log cannot be read, or has no decision.
    """
    if not (folder / DATABASE).is_file():
        raise InvalidInput([Problem("GEMINID_HOME", str(folder), "must be the folder of a service; it has no log")])
    with contextlib.closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True)) as database:
        if seq is None:
            row = database.execute("SELECT MAX(seq) FROM events WHERE kind = 'Planned'").fetchone()
            if row[0] is None:
                raise StoreProblem(f"no decision is in the log of {folder} yet")
            seq = int(row[0])
        entry = _entry(database, seq)
        state = ServiceState()
        query = "SELECT body FROM snapshots WHERE seq < ? ORDER BY seq DESC LIMIT 1"
        for (body,) in database.execute(query, (seq,)).fetchall():
            state = ServiceState.from_dict(json.loads(body))
        began = database.execute(
            "SELECT body FROM events WHERE kind = 'ServiceStarted' AND seq < ? ORDER BY seq DESC LIMIT 1", (seq,)
        ).fetchone()
        first = database.execute("SELECT MIN(seq) FROM events").fetchone()[0]
        if began is None or first > state.seq + 1:
            raise InvalidInput([Problem("at", seq, "must be a record whose past is still in the log")])
        started = r.decode("ServiceStarted", began[0])
        assert isinstance(started, r.ServiceStarted)
        slots = dict(started.cluster["slots"])
        for past in read_entries(database, state.seq, seq - 1 - state.seq):
            state.apply(past.seq, past.at_s, past.record)
            if isinstance(past.record, r.NodeJoined):
                slots[past.record.node] = past.record.slots
    groups = [
        NodeGroup(gpu_type=gpu_type, slots=slots[node], name=node)
        for node, gpu_type in state.gpu_types.items()
        if node in slots
    ]
    planned = entry.record if isinstance(entry.record, r.Planned) else None
    return Moment(seq, entry.at_s, state, started.policy, Cluster.of_groups(groups), planned)


def _entry(database: sqlite3.Connection, seq: int) -> Entry:
    found = next(read_entries(database, seq - 1, 1), None)
    if found is None or found.seq != seq:
        raise InvalidInput([Problem("at", seq, "must be the number of a record of the log; see `geminid events`")])
    return found


def replay(then: Moment, policy_text: str | None = None) -> dict[str, Any]:
    """What a policy (by default the one in use then) decides at a moment, and what was decided."""
    text = policy_text or then.policy
    policy = named_policy(text)
    planner = Planner(then.cluster, policy, text, then.state, _Then(then.at_s))
    records = planner.decide()
    now = next((record for record in records if isinstance(record, r.Planned)), r.Planned(targets={}))
    rejected = [record.text for record in records if isinstance(record, r.Noted)]
    if rejected:
        raise StoreProblem(rejected[0])
    before = then.planned or r.Planned(targets={})
    jobs = []
    for job in then.state.jobs.values():
        if not job.wants_slots:
            continue
        has = job.target.num_slots if job.target else 0
        jobs.append(
            {
                "id": job.id,
                "name": job.spec.name,
                "slots": has,
                "decided_then": _slots(before, job.id, has),
                "decided_now": _slots(now, job.id, has),
                "reason": now.reasons.get(job.id) or planner.reasons.get(planner.shown_for(job.id), ""),
                "factors": factors_of(policy, job.id),
            }
        )
    return {
        "seq": then.seq,
        "at_s": then.at_s,
        "policy_then": then.policy,
        "policy": text,
        "slots": then.cluster.total_slots,
        **market_document(policy, then.cluster),
        "jobs": jobs,
    }


def _slots(plan: r.Planned, job_id: str, has: int) -> int:
    if job_id not in plan.targets:
        return has
    place = plan.targets[job_id]
    return 0 if place is None else place.num_slots
