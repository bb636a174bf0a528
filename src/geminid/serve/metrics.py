"""The metrics that Prometheus reads from a service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from geminid.cluster import Cluster
from geminid.jobstate import JobPhase
from geminid.serve.documents import count_phases, quota_documents
from geminid.serve.livejob import LiveJob
from geminid.serve.service import Published
from geminid.serve.state import ServiceState

#: Why jobs wait.
REASONS = ("capacity", "quota", "paused", "retry", "dependency")


def metrics_text(published: Published, cluster: Cluster) -> str:
    """The metrics of a published state in Prometheus' text format."""
    return generate_latest(PublishedMetrics(published, cluster)).decode()


@dataclass(frozen=True, slots=True)
class PublishedMetrics(Collector):
    """Collects the metrics of one published state."""

    published: Published
    cluster: Cluster

    def collect(self) -> Iterator[Metric]:
        """All metrics, in the order in which they are shown."""
        published, state, cluster = self.published, self.published.state, self.cluster
        jobs = state.jobs.values()
        phases = count_phases(jobs)
        by_phase = {phase.value: phases[phase.value] for phase in JobPhase}
        yield _labelled(GaugeMetricFamily, "jobs", "Jobs that are known, by phase.", "phase", by_phase)
        waiting = _waiting_jobs(state, published.now_s)
        what = "Jobs without slots that are not over, by why they wait."
        yield _labelled(GaugeMetricFamily, "waiting_jobs", what, "reason", waiting)
        drained = sum(node.slots for node in cluster.nodes if node.name in state.emptied)
        held = sum(job.state.num_slots for job in jobs)
        for name, value, what in (
            ("slots", cluster.total_slots, "All slots, in service or not."),
            ("slots_held", held, "Slots that processes of jobs are on."),
            ("slots_cordoned", len(state.cordoned), "Slots that take no new work (geminid cordon)."),
            ("slots_drained", drained, "Slots of drained nodes (geminid drain, or Ray)."),
            ("last_decision_seconds", published.last_decision_ms / 1e3, "What the last decision took."),
            ("trouble", bool(published.trouble), "1 while the log cannot be written."),
        ):
            yield GaugeMetricFamily(f"geminid_{name}", what, value)
        yield from self._counters()
        for name, histogram, what in (
            ("decision", published.counts.times, "What decisions took since this service started."),
            ("wait", published.waits, "How long jobs waited that started since this service did."),
        ):
            yield HistogramMetricFamily(f"geminid_{name}_seconds", what, histogram.buckets(), histogram.total)

    def _counters(self) -> Iterator[Metric]:
        published, state = self.published, self.published.state
        totals = state.totals(published.now_s)
        paused_s = sum(one.paused_s for one in totals.values())
        for name, value, what in (
            ("decisions", published.counts.made, "Decisions since this service started."),
            ("rejected_decisions", published.counts.rejected, "Decisions that would have broken a rule, not used."),
            ("records", state.seq, "Records in the log, also those that are dropped by now."),
            ("jobs_submitted", state.submitted, "Jobs submitted."),
            ("rescales", sum(one.rescales for one in totals.values()), "Changes of slots while training."),
            ("failures", sum(one.failures for one in totals.values()), "Failures of jobs."),
            ("pause_seconds", paused_s, "Seconds for which training stood still for changes of slots."),
        ):
            yield CounterMetricFamily(f"geminid_{name}", what, value)
        gpu_s = {owner: one.gpu_s for owner, one in sorted(totals.items())}
        what = "Slots × seconds that jobs have held, by owner."
        yield _labelled(CounterMetricFamily, "gpu_seconds", what, "owner", gpu_s)


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, what: str, label: str, values: Mapping[str, float]
) -> Metric:
    """A metric with one value for each value of a label."""
    family = kind(f"geminid_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _waiting_jobs(state: ServiceState, now_s: float) -> dict[str, int]:
    """How many jobs wait, by reason."""
    room = {(row["of"], row["name"]): row["slots"] - row["used"] for row in quota_documents(state)}
    waiting = Counter(
        _why_waiting(job, room, now_s)
        for job in state.jobs.values()
        if not job.phase.is_terminal and job.target is None and job.array is None
    )
    return {reason: waiting[reason] for reason in REASONS}


def _why_waiting(job: LiveJob, room: Mapping[tuple[str, str], int], now_s: float) -> str:
    """Why a job has no slots, in a word."""
    if not job.wants_slots:
        return "dependency" if job.blocked and job.wish == "run" else "paused"
    if job.held_until_s > now_s:
        return "retry"
    names = (("queue", job.spec.queue), ("owner", job.spec.owner or ""))
    return "quota" if any(room.get(name, job.spec.min_slots) < job.spec.min_slots for name in names) else "capacity"
