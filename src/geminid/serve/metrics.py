"""What Prometheus is told of a service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from geminid.cluster import Cluster
from geminid.jobstate import JobPhase
from geminid.serve.documents import quota_documents
from geminid.serve.livejob import LiveJob
from geminid.serve.service import Published

#: Why jobs wait.
REASONS = ("capacity", "quota", "paused", "retry")


def metrics_text(published: Published, cluster: Cluster) -> str:
    """The state in Prometheus' text format."""
    state, now_s = published.state, published.now_s
    totals = state.totals(now_s)
    phases = Counter(job.phase.value for job in state.jobs.values())
    waiting: Counter[str] = Counter()
    room = {(row["of"], row["name"]): row["slots"] - row["used"] for row in quota_documents(state)}
    for job in state.jobs.values():
        if not job.phase.is_terminal and job.target is None:
            waiting[_why_waiting(job, room, now_s)] += 1
    drained = sum(node.slots for node in cluster.nodes if node.name in state.emptied)
    gauges = {
        "geminid_slots": (cluster.total_slots, "All slots, in service or not"),
        "geminid_slots_held": (
            sum(job.state.num_slots for job in state.jobs.values()),
            "Slots that processes of jobs are on",
        ),
        "geminid_slots_cordoned": (len(state.cordoned), "Slots that take no new work (geminid cordon)"),
        "geminid_slots_drained": (drained, "Slots of drained nodes (geminid drain, or Ray)"),
        "geminid_last_decision_seconds": (published.last_decision_ms / 1e3, "What the last decision took"),
        "geminid_trouble": (int(bool(published.trouble)), "1 while the log cannot be written"),
    }
    counters = {
        "geminid_decisions_total": (published.decisions, "Decisions since this service started"),
        "geminid_rejected_decisions_total": (published.rejected, "Decisions that would have broken a rule, not used"),
        "geminid_records_total": (state.seq, "Records in the log, also those that are dropped by now"),
        "geminid_jobs_submitted_total": (state.submitted, "Jobs submitted"),
        "geminid_rescales_total": (sum(one.rescales for one in totals.values()), "Changes of slots while training"),
        "geminid_failures_total": (sum(one.failures for one in totals.values()), "Failures of jobs"),
        "geminid_pause_seconds_total": (
            sum(one.paused_s for one in totals.values()),
            "Seconds for which training stood still for changes of slots",
        ),
    }
    by_phase = (f'geminid_jobs{{phase="{p.value}"}} {phases[p.value]}' for p in JobPhase)
    by_reason = (f'geminid_waiting_jobs{{reason="{w}"}} {waiting[w]}' for w in REASONS)
    by_owner = (
        f'geminid_gpu_seconds_total{{owner="{_label(owner)}"}} {one.gpu_s:.3f}' for owner, one in sorted(totals.items())
    )
    lines = [
        *_metric("geminid_jobs", "gauge", "Jobs that are known, by phase", by_phase),
        *_metric("geminid_waiting_jobs", "gauge", "Jobs without slots that are not over, by why they wait", by_reason),
    ]
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, (value, what) in values.items():
            lines += _metric(name, kind, what, [f"{name} {value}"])
    lines += _metric("geminid_gpu_seconds_total", "counter", "Slots × seconds that jobs have held, by owner", by_owner)
    for name, what, seen in (
        ("geminid_decision_seconds", "What decisions took since this service started", published.decision_times),
        ("geminid_wait_seconds", "How long jobs waited that started since this service did", published.waits),
    ):
        lines += _metric(name, "histogram", what, seen.lines(name))
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, what: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {what}."
    yield f"# TYPE {name} {kind}"
    yield from lines


def _why_waiting(job: LiveJob, room: Mapping[tuple[str, str], int], now_s: float) -> str:
    """Why a job has no slots, in a word."""
    if not job.wants_slots:
        return "paused"
    if job.held_until_s > now_s:
        return "retry"
    names = (("queue", job.spec.queue), ("owner", job.spec.owner or ""))
    return "quota" if any(room.get(name, job.spec.min_slots) < job.spec.min_slots for name in names) else "capacity"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
