"""Turn the jobs of a workload into simulated jobs, and say what a scheduler knows of them when they arrive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.job import Adaptivity
from geminid.policies.base import JobFacts, JobView
from geminid.policies.goodputs import spread_evenly
from geminid.sim.application import Application
from geminid.sim.profiles.gavel import ThroughputTable
from geminid.sim.profiles.planspeeds import RESTART_S, PlanProfiles
from geminid.sim.rates import ByIdentity
from geminid.sim.settings import Settings
from geminid.sim.simjob import SimJob
from geminid.sim.workload import TraceJob

#: Number of mistakes in a workload that one error message lists.
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class JobMaker:
    """Makes the simulated jobs of one run.

    ``throughputs`` has the speeds of jobs that make steps; ``standing`` are jobs that exist when the simulation begins.
    """

    cluster: Cluster
    applications: Mapping[str, Application]
    settings: Settings
    throughputs: ThroughputTable | None
    standing: Mapping[str, JobView]
    plan_profiles: PlanProfiles | None = None
    chooses_plans: bool = False

    def jobs(self, traces: Sequence[TraceJob]) -> dict[str, SimJob]:
        """The simulated jobs by name.

        Raises:
            InvalidInput: some jobs can never run on this cluster, with one sentence for each.
        """
        keys = {name: ByIdentity(app) for name, app in self.applications.items()}
        estimates = np.random.default_rng([self.settings.seed, 1])
        problems = self._unknown_speeds(traces)
        jobs: dict[str, SimJob] = {}
        for trace in () if problems else traces:
            is_opaque = trace.duration_s is not None or trace.steps is not None
            key = None if is_opaque else keys.get(trace.application or "")
            if key is None and not is_opaque:
                names = ", ".join(sorted(keys)) or "none are loaded"
                where = f"application of job {trace.name}"
                problems.append(Problem(where, trace.application, f"must be one of: {names}"))
                continue
            standing = self.standing.get(trace.name)
            facts = self._facts(trace, key) if standing is None else standing.facts
            most = self._most_slots(facts, is_opaque=is_opaque)
            if facts.requested_slots > most:
                where = f"requested slots of job {trace.name}"
                expected = f"must be at most {most}, the most that one GPU type of the cluster and its batch size allow"
                problems.append(Problem(where, facts.requested_slots, expected))
                continue
            total = key.value.total_steps if key is not None else trace.duration_s or trace.steps
            assert total is not None
            checkpoint_s = self.settings.checkpoint_s if self.settings.node_mtbf_s is not None else math.inf
            job = SimJob(trace, facts, key, total, checkpoint_s=checkpoint_s)
            if standing is None:
                job.facts = replace(facts, work=self._declared_work(job, estimates))
            else:
                job.done_before = standing.progress
                if facts.work is not None:
                    job.facts = replace(facts, work=standing.progress + job.work)
            jobs[trace.name] = job
        if problems:
            raise InvalidInput(problems[:MOST_PROBLEMS])
        return jobs

    def _most_slots(self, facts: JobFacts, *, is_opaque: bool) -> int:
        """The most slots that a job can have on one GPU type of the cluster."""
        per_type = self.cluster.slots_per_type
        most = max((n for t, n in per_type.items() if facts.gpu_types is None or t in facts.gpu_types), default=0)
        if is_opaque:
            return most
        return min(most, max(x.largest // x.smallest_per_slot for x in facts.limits.values()))

    def _declared_work(self, job: SimJob, estimates: np.random.Generator) -> float | None:
        """The work that a job declares when it arrives; only oracles know how long opaque jobs take."""
        error = self.settings.estimate_error
        if error is None or (job.trace.duration_s is not None and not self.settings.oracle):
            return None
        return job.work * math.exp(error * float(estimates.standard_normal()))

    # --- Jobs that make steps at a speed from a table ---

    def _unknown_speeds(self, traces: Sequence[TraceJob]) -> list[Problem]:
        """Jobs that make steps at a speed that no table has: one sentence for each kind."""
        unknown = Counter(
            (trace.application or "", trace.requested_slots)
            for trace in traces
            if trace.steps is not None and not self._throughputs_of(trace)
        )
        if unknown and self.throughputs is None and self.plan_profiles is None:
            jobs = f"{unknown.total()} of its jobs make steps at speeds that depend on the GPU type"
            expected = f"{jobs}: pass --profiles with a file of throughputs by GPU type, like Gavel's"
            return [Problem("workload", NOT_SHOWN, expected)]
        types = ", ".join(self.cluster.type_index)
        return [
            Problem(f"{model} on {slots} slots ({jobs} jobs)", NOT_SHOWN, f"has no throughput on any of {types}")
            for (model, slots), jobs in unknown.items()
        ]

    def _throughputs_of(self, trace: TraceJob) -> dict[str, float]:
        if trace.plan is not None:
            return self._planned_throughputs(trace)
        if self.throughputs is None or trace.steps is None:
            return {}
        job_type = (trace.application or "", trace.requested_slots)
        speeds = {gpu_type: self.throughputs.alone(job_type, gpu_type) for gpu_type in self.cluster.type_index}
        return {gpu_type: speed for gpu_type, speed in speeds.items() if speed > 0}

    def _planned_throughputs(self, trace: TraceJob) -> dict[str, float]:
        """Speed under the plan and on the slots that the user chose, packed: the same on every GPU type."""
        speeds = None if self.plan_profiles is None else self.plan_profiles.speeds(trace.application or "", trace.plan)
        per_node = int(self.cluster.node_slots.max())
        placement = spread_evenly(trace.requested_slots, -(-trace.requested_slots // per_node))
        speed = 0.0 if speeds is None else speeds.steps_per_s(placement)
        return dict.fromkeys(self.cluster.type_index, speed) if speed > 0 else {}

    def _spread_throughputs_of(self, trace: TraceJob, throughputs: Mapping[str, float]) -> dict[str, float]:
        """Speeds on more nodes than needed, where they differ."""
        if self.throughputs is None or trace.requested_slots == 1:
            return {}
        job_type = (trace.application or "", trace.requested_slots)
        speeds = {gpu_type: self.throughputs.spread(job_type, gpu_type) for gpu_type in throughputs}
        return {gpu_type: speed for gpu_type, speed in speeds.items() if speed != throughputs[gpu_type]}

    # --- Facts ---

    def _facts(self, trace: TraceJob, key: ByIdentity | None) -> JobFacts:
        """What the scheduler knows of a job when it arrives, but for its work."""
        rescale_s = self.settings.rescale_s
        if rescale_s is None:
            rescale_s = (0.0 if trace.plan is None else RESTART_S) if key is None else key.value.rescale_s
        return JobFacts(
            id=trace.name,
            submitted_s=trace.submit_s,
            requested_slots=trace.requested_slots,
            rescale_s=rescale_s,
            weight=trace.weight,
            owner=trace.owner,
            queue=trace.queue,
            opportunistic=trace.opportunistic,
            kind=trace.application or "" if key is None else key.value.name,
            **{
                **(self._opaque_facts(trace) if key is None else self._profiled_facts(trace, key.value)),
                **({} if trace.plan is None else self._planned_facts(trace)),
            },
        )

    def _planned_facts(self, trace: TraceJob) -> dict[str, Any]:
        """Facts of a job with execution plans: what it may run on, under its user's plan or any."""
        assert self.plan_profiles is not None
        speeds = self.plan_profiles.speeds(trace.application or "", None if self.chooses_plans else trace.plan)
        assert speeds is not None
        return {
            "min_slots": min(speeds.sizes),
            "max_slots": max(speeds.sizes),
            "adaptivity": trace.adaptivity,
            "plan_speeds": speeds,
        }

    def _opaque_facts(self, trace: TraceJob) -> dict[str, Any]:
        """Facts of a job without an application: it runs on the slots that it requests, no more and no fewer."""
        throughputs = self._throughputs_of(trace)
        deadline_s = trace.slo_s
        if trace.slo_factor is not None and trace.steps is not None:
            deadline_s = trace.slo_factor * trace.steps / max(throughputs.values())
        return {
            "min_slots": trace.requested_slots,
            "max_slots": trace.requested_slots,
            "adaptivity": Adaptivity.RIGID,
            "gpu_types": frozenset(throughputs) if throughputs else None,
            "throughputs": MappingProxyType(dict(throughputs)),
            "spread_throughputs": MappingProxyType(self._spread_throughputs_of(trace, throughputs)),
            "steps": trace.steps,
            "deadline_s": None if deadline_s is None else trace.submit_s + deadline_s,
        }

    def _profiled_facts(self, trace: TraceJob, app: Application) -> dict[str, Any]:
        """Facts of a job of an application: the batch sizes and slots that it can use."""
        adaptivity, requested_batch = trace.adaptivity, trace.requested_batch
        if app.pinned_batch is not None:
            adaptivity, requested_batch = Adaptivity.FIXED_BATCH, app.pinned_batch
        limits = {t: app.limits[t] for t in self.cluster.type_index if t in app.limits}
        if adaptivity is not Adaptivity.ADAPTIVE and requested_batch is not None:
            limits = {t: replace(x, initial=requested_batch, largest=requested_batch) for t, x in limits.items()}
        if not limits:
            types = ", ".join(self.cluster.type_index)
            where = f"profile of {app.name}"
            raise InvalidInput([Problem(where, NOT_SHOWN, f"covers none of the cluster's GPU types ({types})")])
        most = max(limit.largest // limit.smallest_per_slot for limit in limits.values())
        most = min(most, app.pinned_slots or most)
        rigid = adaptivity is Adaptivity.RIGID
        return {
            "min_slots": trace.requested_slots if rigid else 1,
            "max_slots": trace.requested_slots if rigid else max(most, trace.requested_slots),
            "requested_batch": requested_batch,
            "adaptivity": adaptivity,
            "gpu_types": frozenset(limits),
            "limits": MappingProxyType(limits),
            "deadline_s": None if trace.slo_s is None else trace.submit_s + trace.slo_s,
        }
