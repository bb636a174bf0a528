"""Two training jobs under every named policy that can run live: suspended and resumed, nothing lost, with reasons."""

from __future__ import annotations

import pytest
from live import Live


def test_jobs_take_turns_on_one_slot_under_gandiva_and_lose_nothing() -> None:
    with Live(1, "gandiva:slice=2") as live:
        jobs = {name: live.patient(name, name=name, max_slots=1) for name in ("one", "other")}
        for job_id in jobs.values():  # the first loses its slot to the other, and gets it back
            live.until(job_id, lambda job: job["phase"] == "running" and job["samples"] > 0)
        live.until(jobs["one"], lambda job: job["phase"] == "running")
        for name, job_id in jobs.items():
            live.hurry(job_id, name)


#: Why the second of two jobs waits that both need all slots, by policy.
WAITS = {
    "dally": "slots on one node",
    "lucid": "no_sharing",
    "shockwave:interval=8": "held by 1 other job",
    "slaq:interval=2": "held by 1 other job",
}


@pytest.mark.parametrize(("policy", "reason"), WAITS.items(), ids=[policy.partition(":")[0] for policy in WAITS])
def test_two_jobs_that_need_all_slots_are_both_completed_and_the_second_is_told_why_it_waits(
    policy: str, reason: str
) -> None:
    with Live(2, policy) as live:
        jobs = {name: live.patient(name, name=name, slots=2, epochs=8) for name in ("one", "other")}
        live.until(jobs["one"], lambda job: job["target_slots"] == 2)
        told = live.run("explain", jobs["other"]).stdout
        assert f"{jobs['other']} waits: " in told
        assert reason in told
        for name, job_id in jobs.items():
            assert live.hurry(job_id, name, epochs=8)["slots"] == 0
