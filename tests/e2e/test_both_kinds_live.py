"""An elastic job beside a stream of plain commands, on a real service: it shrinks for them, and is not stopped."""

from __future__ import annotations

from live import Live


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
