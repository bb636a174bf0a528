"""Gavel's ``fifo`` with the very draws of the published run, to tell what of the difference is due to them.

The next in line takes the place of a job that is done; for what is free besides, types are drawn by Python's generator.
Fractions of time 0 count as none there: they are computed again as soon as anything happens.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from geminid.policies.base import ClusterView
from geminid.policies.gavel.problem import AllocationProblem, TimeFractions
from geminid.policies.gavel.queues import FifoAgnostic
from geminid.policies.gavel.rounds import Account


@dataclass
class PublishedFifo(FifoAgnostic):
    """First in, first out, each job on a type that is drawn once."""

    _draw: random.Random = field(default_factory=lambda: random.Random(0), repr=False)
    _places: dict[str, str] = field(default_factory=dict, repr=False)

    def _up_to_date(self, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> Account:
        account = super()._up_to_date(view, speeds)
        if view.now_s < 2.0:
            self._solved_s = -np.inf
        return account

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Whole jobs, in the order of arrival, who is done first making room."""
        gangs = {job.id: job.gang for job in problem.jobs}
        able = {
            job.id: {t for t, speed in zip(problem.gpu_types, row, strict=True) if speed > 0}
            for job, row in zip(problem.jobs, problem.usable.tolist(), strict=True)
        }
        free = dict(zip(problem.gpu_types, problem.slots.astype(int).tolist(), strict=True))
        for job_id, gpu_type in self._places.items():
            free[gpu_type] -= gangs.get(job_id, 0)
        line = [job_id for job_id in gangs if job_id not in self._places]
        left = [gpu_type for job_id, gpu_type in self._places.items() if job_id not in gangs]
        self._places = {job_id: t for job_id, t in self._places.items() if job_id in gangs}

        def place(gpu_type: str) -> None:
            job_id = line.pop(0)
            if gpu_type in able[job_id]:
                self._places[job_id] = gpu_type
                free[gpu_type] -= gangs[job_id]

        for gpu_type in left:
            if line and gangs[line[0]] <= free[gpu_type] and gpu_type in able[line[0]]:
                place(gpu_type)
        while line:
            room = sorted(t for t, slots in free.items() if slots >= gangs[line[0]])
            if not room:
                break
            place(room[self._draw.randrange(len(room))])
        fractions = np.array([[t == mine for t in problem.gpu_types] for mine in self._places.values()], dtype=float)
        return TimeFractions(problem.gpu_types, tuple((job_id,) for job_id in self._places), fractions)
