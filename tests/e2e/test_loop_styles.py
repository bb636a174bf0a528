"""Loops as people write them: the same results as without Geminid, on any number of slots and through resizes.

The examples too, whose results must be those of a run without resizes.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from elastic import SCRIPTS, STEADY, Job, script_as_module

from geminid.process.zygote import Zygote

STYLES = {
    "two models": ("gan",),
    "steps": ("steps",),
    "steps of several passes": ("steps", "--per-slot", 4),
    "tokens": ("tokens",),
    "tokens, several passes": ("tokens", "--per-slot", 3),
    "own parts": ("parts", "--per-slot", 5),
    "closures": ("closure", "--per-slot", 5),
    "8-bit optimizer, channels last": ("bytes", "--per-slot", 5),
}


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


@pytest.fixture(scope="module")
def script():
    return script_as_module("styles")


def trained_here(script, *options):
    """The weights that it ends with in this process."""
    _, model = script.train(script.parser.parse_args(["nowhere", *map(str, options)]))
    return {name: value.flatten().tolist() for name, value in model.named_parameters()}


def about(weights):
    return {name: pytest.approx(values, abs=1e-5) for name, values in weights.items()}


@pytest.mark.parametrize("options", STYLES.values(), ids=STYLES)
def test_a_loop_trains_the_same_on_one_two_and_three_slots(tmp_path, launcher, script, options):
    expected = about(trained_here(script, options[0], "--plain"))
    assert trained_here(script, *options) == expected
    for slots in ("ab", "abc"):
        folder = tmp_path / slots
        folder.mkdir()
        with Job(folder, "styles.py", *options, launcher=launcher, max_failures=0, patience=STEADY) as job:
            job.resize(list(slots))
            assert job.ended() == "finished", job.status.reason
        assert json.loads(job.out.read_text()) == expected


@pytest.mark.parametrize("style", ["gan", "steps", "bytes"])
def test_it_does_through_resizes_and_the_loss_of_workers(tmp_path, launcher, script, style):
    until = tmp_path / "until"
    with Job(tmp_path, "styles.py", style, "--until", until, launcher=launcher, patience=STEADY) as job:
        for slots in ("a", "ab", "bcd", "d"):
            job.resized(slots)
        if style == "steps":  # with two optimizers it may be lost between their steps
            job.resized("de")
            leader = next(worker for worker in job.status.workers if worker.slot == "d")  # others may still be leaving
            os.kill(leader.pid, signal.SIGKILL)
        until.touch()
        assert job.ended() == "finished", job.status.reason
    assert json.loads(job.out.read_text()) == about(trained_here(script, style, "--plain"))


def test_a_model_outside_of_prepare_that_collects_gradients_is_refused_on_several_slots(tmp_path, launcher):
    with Job(tmp_path, "styles.py", "outside", launcher=launcher, max_failures=0, patience=STEADY) as job:
        job.resize(["a"])
        assert job.ended() == "finished", job.status.reason
        assert "a Linear was not given to run.prepare(), but its parameters collect gradients" in job.logs
    (tmp_path / "two").mkdir()
    with Job(tmp_path / "two", "styles.py", "outside", launcher=launcher, max_failures=0, patience=STEADY) as job:
        job.resize(["a", "b"])
        assert job.ended() == "failed"
        assert "was not given to run.prepare(), but its parameters collect gradients" in job.status.reason


#: The examples at a small size, and how far the last number that they print may be off: sums are rounded differently.
EXAMPLES = {
    "nanogpt.py": (("--steps", 12), 0.01),
    "gan.py": (("--epochs", 1), 0.01),
    "lora.py": (("--epochs", 1), 0.01),
    "ddp_after.py": (("--epochs", 1), 0.01),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_ends_with_the_same_result_through_resizes(tmp_path, launcher, name):
    options, tolerance = EXAMPLES[name]
    until = tmp_path / "until"

    def result(logs):
        (line,) = [line for line in logs.splitlines() if line.startswith(("unseen", "distance", "loss", "accuracy"))]
        return float(line.split()[1])

    results = []
    for folder in (tmp_path / "alone", tmp_path / "resized"):
        folder.mkdir()
        with Job(
            folder, "example.py", until, name, *options, launcher=launcher, max_failures=0, patience=STEADY
        ) as job:
            if folder.name == "alone":
                until.touch()
                job.resize(["a"])
            else:
                until.unlink()
                for slots in ("a", "ab", "b"):
                    job.resized(slots)
                until.touch()
            assert job.ended() == "finished", job.status.reason
        results.append(result(job.logs))
        numbers = [number for path in folder.glob("out-*") for number in map(int, path.read_text().split())]
        assert sorted(numbers) == sorted(set(numbers)), "a sample was used twice"
        results.append(len(numbers))
    alone, samples, resized, as_many = results
    assert samples == as_many > 0
    assert resized == pytest.approx(alone, abs=tolerance)


def test_the_example_of_ddp_trains_under_torchrun():
    """What ``ddp_after.py`` is made from."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    example = SCRIPTS.parents[2] / "examples" / "ddp_before.py"
    done = subprocess.run([*command, example, "--epochs", "1"], check=True, capture_output=True, text=True)
    assert float(done.stdout.split()[-1]) > 0.5
