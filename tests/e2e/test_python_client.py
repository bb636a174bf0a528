"""The service from Python: submitting, waiting, reading and changing jobs, in the words of the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from live import SCRIPTS, Live

import geminid
from geminid.serve.client import ServiceError
from geminid.serve.connection import JobFailed, slots_drawing
from waiting import until


@pytest.fixture(scope="module")
def live():
    with Live(2) as running:
        yield running


@pytest.fixture
def cluster(live):
    return geminid.connect(live.home)


def test_a_script_is_submitted_waited_for_and_read(live, cluster):
    args = [live.home / "c", "--samples", 200, "--epochs", 4, "--max-batch", 16]
    job = cluster.submit(SCRIPTS / "counting.py", args=args, slots=(1, 2), name="first", working_dir=live.home)
    assert (job.name, job.is_over) == ("first", False)
    job.wait(120)
    assert (job.state, job.done, job.as_dict()["min_slots"], job.as_dict()["max_slots"]) == ("succeeded", 1.0, 1, 2)
    assert live.exactly_once("c", 200, 4)
    assert any("training on" in line["text"] for line in job.history())
    assert cluster.job("first").id == job.id == cluster.jobs(all=True)[0].id
    until(lambda: list(job.metrics()["samples"])[-1:] == [800])  # curves are recorded once a second
    found = job.metrics()
    assert "first" in job._repr_html_()
    assert "<svg" in job._repr_html_() or len(found["samples"]) < 2


def test_a_command_prints_fails_and_is_refused_in_one_sentence(live, cluster):
    job = cluster.submit(["sh", "-c", "echo größe; exit 3"], max_retries=0, working_dir=live.home)
    with pytest.raises(JobFailed, match="failed: it ended with exit code 3"):
        job.wait(60)
    assert job.wait(check=False).logs() == "größe\n"
    assert "".join(job.follow()) == "größe\n"
    assert job.name == "sh"
    with pytest.raises(ServiceError, match="slots is 99"):
        cluster.submit(["true"], slots=99)
    with pytest.raises(ServiceError, match="there is no job"):
        cluster.job("nobody")


def test_jobs_are_changed_and_explained(live, cluster):
    first = cluster.submit(["sleep", "1000"], slots=2, working_dir=live.home)
    second = cluster.submit(["sleep", "1000"], slots=2, name="second", working_dir=live.home, env={"A": "b"})
    assert "slots" in second.explain()
    assert second.set(priority=5).as_dict()["priority"] == 5
    second.pause()
    live.until(second.id, lambda job: job["phase"] == "paused")
    second.resume()
    with pytest.raises(TimeoutError, match="has not ended after"):
        second.wait(0.2)
    assert [job.id for job in cluster.jobs(owner="nobody")] == []
    for job in (first, second):
        job.cancel()
        assert job.wait(60, check=False).state == "cancelled"


def test_the_same_key_submits_once_and_coroutines_do_the_same(live, cluster):
    async def both():
        return await asyncio.gather(
            *(cluster.submit_async(["true"], key="only-once", working_dir=live.home) for _ in range(2))
        )

    first, second = asyncio.run(both())
    assert first.id == second.id
    assert asyncio.run(first.wait_async(60)).state == "succeeded"


def test_connecting_loads_no_framework(live):
    code = "import sys, geminid; geminid.connect; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_drawing_shows_every_size():
    assert slots_drawing([0.0], [1]) == ""
    drawn = slots_drawing([0.0, 10.0, 20.0], [1, 4, 2])
    assert "4 slots at most" in drawn
    assert drawn.count(",") >= 8
