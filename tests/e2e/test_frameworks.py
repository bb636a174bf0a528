"""Scripts of training frameworks: the same results as with the plain framework, through resizes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from elastic import SCRIPTS, STEADY, Job

from geminid.process.zygote import Zygote


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


@pytest.mark.parametrize("framework", ["accelerated.py"])
def test_a_frameworks_script_ends_with_the_plain_frameworks_result_through_resizes(tmp_path, launcher, framework):
    plain = tmp_path / "plain"
    subprocess.run([sys.executable, SCRIPTS / framework, plain, "--plain"], check=True)
    expected = json.loads(plain.read_text())
    until = tmp_path / "until"
    logged = tmp_path / "logged"
    with Job(tmp_path, framework, "--until", until, launcher=launcher, patience=STEADY) as job:
        for slots in ("a", "ab", "bcd", "d"):
            job.resized(slots)
        steps = list(map(int, logged.read_text().split()))
        assert steps == sorted(set(steps)), "a step was logged twice"
        (only,) = [worker for worker in job.status.workers if worker.slot == "d"]
        os.kill(only.pid, signal.SIGKILL)  # training resumes from a checkpoint, or begins again
        job.resized("de")
        until.touch()
        assert job.ended() == "finished", job.status.reason
        assert job.logs.count("epoch 2 is over") == 1
    assert set(map(int, logged.read_text().split())) == set(range(1, 13))
    result = json.loads(job.out.read_text())
    assert result["error"] == pytest.approx(expected["error"], abs=1e-5)
    for own, plains in zip(result["weights"], expected["weights"], strict=True):
        assert own == pytest.approx(plains, abs=1e-5)
