"""Do entities get what their weights say? Slot time of teams under the hierarchical policies, on a workload of our own.

All jobs of a built-in workload are there at once, dealt out to teams of different weight. Until the first team has too
few jobs left to use its part, slot time is divided as the weights are; what is measured is that time, of each team and
of each person in it, beside what the weights say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geminid.bench.objectives import CLUSTER
from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads.generate import built_in_workload

#: Weights of the teams, and of the two people in each of them.
TEAMS = {"red": 1.0, "green": 2.0, "blue": 3.0}
PEOPLE = {"ann": 1.0, "bob": 3.0}

POLICY = "hierarchical"

#: The largest difference, as a part of all slot time, between what somebody had and what the weights say.
GOAL = 0.03

#: Fractions hold for half an hour: rounds must be short beside that for small shares to be realised.
ROUND_S = 60.0


@dataclass(frozen=True, slots=True)
class EntityRow:
    """One team, or one person of a team: the part of all slot time that it should have, and has had."""

    entity: str
    weight: float
    expected: float
    part: float
    slot_hours: float
    until_s: float


def run(
    *,
    load: float = 4.0,
    round_s: float = ROUND_S,
    seeds: Sequence[int] = (0,),
    progress: Callable[[str], None] = lambda _: None,
) -> list[EntityRow]:
    """Simulate, and add up who had what (over all seeds) while everybody wanted more."""
    people = {f"{team}/{person}": weight for team in TEAMS for person, weight in PEOPLE.items()}
    entities = {**TEAMS, **people}
    weights = ";".join(f"{name}={weight:g}" for name, weight in entities.items())
    cluster = Cluster.parse(CLUSTER)
    had = dict.fromkeys(entities, 0.0)
    until_s = 0.0
    for seed in seeds:
        progress(f"{POLICY}, seed {seed}")
        workload = built_in_workload("small", seed=seed, load=load)
        owners = [name for name in entities if "/" in name]
        jobs = tuple(replace(job, submit_s=0.0, owner=owners[i % len(owners)]) for i, job in enumerate(workload.jobs))
        experiment = Experiment(
            workload=replace(workload, jobs=jobs),
            cluster=cluster,
            settings=Settings(rescale_s=1.0, seed=seed),
            seed=seed,
            stints=True,
        )
        result = simulate(f"{POLICY}:round={round_s:g},weights={weights}", experiment)
        owner_of = {job.name: job.owner for job in jobs}
        slots = {job.name: job.requested_slots for job in jobs}
        end_s = _contended_until(result["per_job"], owner_of, slots, cluster.total_slots)
        until_s += end_s / len(seeds)
        for job in result["per_job"]:
            time = sum(
                stint["slots"] * max(0.0, min(stint["end_s"], end_s) - stint["start_s"]) for stint in job["stints"]
            )
            person = owner_of[job["name"]]
            had[person] += time
            had[person.partition("/")[0]] += time
    total = sum(had[team] for team in TEAMS)
    return [
        EntityRow(name, weight, _expected(name), had[name] / total, had[name] / 3600, until_s)
        for name, weight in entities.items()
    ]


def _expected(name: str) -> float:
    team, _, person = name.partition("/")
    part = TEAMS[team] / sum(TEAMS.values())
    return part * PEOPLE[person] / sum(PEOPLE.values()) if person else part


def _contended_until(
    per_job: Sequence[Mapping[str, Any]], owner_of: Mapping[str, str], slots: Mapping[str, int], total: int
) -> float:
    """When the first person has too few jobs left to use all that it should have."""
    ends = sorted((job["completion_s"], job["name"]) for job in per_job)
    wanted = dict.fromkeys(owner_of.values(), 0)
    for name, owner in owner_of.items():
        wanted[owner] += slots[name]
    for end_s, name in ends:
        owner = owner_of[name]
        wanted[owner] -= slots[name]
        if wanted[owner] < _expected(owner) * total:
            return float(end_s)
    return float(ends[-1][0])
