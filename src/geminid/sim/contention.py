"""Simulated jobs that send over the same uplinks at the same time share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from geminid.network import Links
from geminid.sim.simjob import SimJob, Stint
from geminid.solve.uplinks import max_min_shares

#: Speeds that differ by less than this part are the same.
SAME_SPEED = 1e-9


def contentions(running: Iterable[SimJob], links: Links, now_s: float) -> Iterator[tuple[SimJob, float]]:
    """The jobs whose speed changes now, and how many times longer their steps take than with uplinks to themselves.

    A job needs what it would send on average if nobody else did. Shares are max-min fair: whoever gets all it needs
    keeps its speed, and the others take as much longer for every iteration. Jobs that pause send nothing.
    """
    crossing = [(job, job.stint) for job in running if job.stint is not None and job.stint.crossing.uplinks]
    demand = [_demand(job, stint, links) if stint.works_from_s <= now_s else 0.0 for job, stint in crossing]
    share = demand
    sent = np.zeros(len(links.capacity))
    for (_, stint), wanted in zip(crossing, demand, strict=True):
        for uplink in stint.crossing.uplinks:
            sent[uplink] += wanted
    if (sent > links.capacity).any():
        uses = np.zeros((len(crossing), len(links.capacity)), dtype=bool)
        for row, (_, stint) in enumerate(crossing):
            uses[row, list(stint.crossing.uplinks)] = True
        share = max_min_shares(np.array(demand), uses, links.capacity).tolist()
    for (job, stint), wanted, got in zip(crossing, demand, share, strict=True):
        contention = wanted / got if wanted > got * (1.0 + SAME_SPEED) else 1.0
        if abs(contention - stint.contention) > SAME_SPEED * contention:
            yield job, contention


def _demand(job: SimJob, stint: Stint, links: Links) -> float:
    """Bytes per second that a stint would send over its uplinks if it had them to itself."""
    if job.application is None or stint.batch is None:
        return 0.0
    if stint.demand_bytes_per_s is None:
        iteration_s = job.iteration_times(stint)[0] / stint.contention
        stint.demand_bytes_per_s = _sync_bytes(job, stint, links) / iteration_s
    return stint.demand_bytes_per_s * stint.speed * stint.cap / stint.slowdown


def _sync_bytes(job: SimJob, stint: Stint, links: Links) -> float:
    """What each rack sends in one iteration: by the gradient's size, else by the time that was profiled."""
    assert job.application is not None
    assert stint.batch is not None
    app, slots = job.application.value, sum(stint.placement)
    if app.gradient_bytes is not None:
        return 2.0 * (slots - 1) / slots * app.gradient_bytes
    accumulation_s, step_s = app.truth[stint.gpu_type].step_times(stint.placement, stint.batch.per_slot)
    return (step_s - accumulation_s) * links.profiled[links.node_type[stint.allocation[0][0]]]
