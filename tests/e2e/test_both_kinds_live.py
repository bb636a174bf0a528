"""An elastic job beside a stream of plain commands, on a real service: it shrinks for them, and is not stopped."""

from __future__ import annotations

from pathlib import Path

from live import Live

from geminid.serve.minimumrun import MIN_RUN_S
from waiting import until


def test_an_elastic_job_shrinks_for_plain_commands_and_is_not_stopped_for_a_stream_of_them():
    with Live(2, "geminid:gap=1,refresh=5,fill=true,half_life=86400") as live:
        elastic = live.patient("out", min_slots=1, max_slots=2)
        live.until(elastic, lambda job: job["slots"] == 2 and job["phase"] == "running")
        # Each takes a slot for a while, and there is always another one that would take the second.
        plain = [live.submit("sleep", "1", slots=1) for _ in range(5)]
        for job_id in plain:
            assert live.over(job_id)["phase"] == "succeeded"
        job = live.job(elastic)
        story = [line["text"] for line in job["story"]]
        assert any("2 → 1 slots" in text for text in story), story
        assert not [text for text in story if text.startswith(("stopping", "pending"))], story
        live.hurry(elastic, "out")


NEWEST_FIRST = """
from geminid.configuration import Configuration
from geminid.policies.base import Decision, Policy

class NewestFirst(Policy):
    name = "newest"
    def decide(self, view):
        newest = max(view.jobs, key=lambda job: job.facts.submitted_s)
        return Decision({newest.id: Configuration(gpu_type="cpu", nodes=1, slots=1)})
"""


def test_a_newcomer_does_not_stop_an_elastic_job_that_has_just_started(tmp_path: Path):
    """Under a policy that would."""
    (tmp_path / "newest.py").write_text(NEWEST_FIRST)
    with Live(1, f"{tmp_path / 'newest.py'}:NewestFirst") as live:
        elastic = live.patient("out", slots=1)
        live.until(elastic, lambda job: job["phase"] == "running")
        plain = live.submit("sleep", "600", slots=1)

        def stopped() -> list[dict]:
            return [line for line in live.job(elastic)["story"] if line["text"].startswith("stopping")]

        until(lambda: stopped() or "has just started" in str(live.client.get(f"jobs/{plain}/explain")))
        started_s = next(line["at_s"] for line in live.job(elastic)["story"] if line["text"].startswith("starting"))
        # On a slow machine its time may have passed; its story begins a little later than its time does.
        assert all(line["at_s"] - started_s >= 0.9 * MIN_RUN_S for line in stopped()), live.job(elastic)["story"]
        live.client.post(f"jobs/{plain}/cancel")
        live.hurry(elastic, "out")
