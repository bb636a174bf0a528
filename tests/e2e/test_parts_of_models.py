"""A model of which every backward uses a part: the same weights on any number of slots, and as without Geminid."""

import json
import os
import signal

import pytest
from elastic import Job, script_as_module

from geminid.process.zygote import Zygote

#: The loop with these options does the same however a step is divided.
LOOPS = {
    "alternating": ("--loop", "alternating"),
    "alternating, accumulated": ("--loop", "alternating", "--per-slot", 3),
    "both in one batch": ("--loop", "both"),
    "both in one batch, accumulated": ("--loop", "both", "--apart", "--per-slot", 3),
    "added up, accumulated": ("--loop", "together", "--per-slot", 3),
}
OPTIMIZERS = {"momentum": (), "adam": ("--adam",)}
DETAILS = {
    "scaled, both": ("--adam", "--scaled", "--loop", "both"),
    "scaled, accumulated": ("--adam", "--scaled", "--loop", "both", "--apart", "--per-slot", 3),
    "zeros, alternating": ("--adam", "--zeros", "--per-slot", 3),
    "zeros, both": ("--adam", "--zeros", "--loop", "both"),
    "set by hand": ("--adam", "--manual", "--per-slot", 3),
}


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


@pytest.fixture(scope="module")
def script():
    return script_as_module("adversaries")


def flat(value):
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [value]


def trained_here(script, *options):
    """The weights that it ends with in this process."""
    _, model = script.train(script.parser.parse_args(["nowhere", *map(str, options)]))
    return {name: value.flatten().tolist() for name, value in model.named_parameters()}


def trained_on(slots, folder, launcher, options):
    """The weights that it ends with on these slots."""
    folder.mkdir()
    with Job(folder, "adversaries.py", *options, launcher=launcher, max_failures=0) as job:
        job.resize(list(slots))
        assert job.ended() == "finished", job.status.reason
    return {name: flat(value) for name, value in json.loads(job.out.read_text()).items()}


def about(weights):
    return {name: pytest.approx(values, abs=1e-5) for name, values in weights.items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_what_a_backward_does_not_use_stays_as_it_is_on_any_number_of_slots(
    tmp_path, launcher, script, loop, optimizer
):
    options = (*loop, *optimizer)
    expected = about(trained_here(script, "--plain", *options))
    assert trained_here(script, *options) == expected
    assert trained_on("ab", tmp_path / "two", launcher, options) == expected
    assert trained_on("abc", tmp_path / "three", launcher, options) == expected


@pytest.mark.parametrize("options", DETAILS.values(), ids=DETAILS)
def test_it_does_with_loss_scalers_zeroed_gradients_and_gradients_set_by_hand(tmp_path, launcher, script, options):
    expected = about(trained_here(script, "--plain", *options))
    assert trained_here(script, *options) == expected
    assert trained_on("abc", tmp_path / "three", launcher, options) == expected


@pytest.mark.parametrize("loop", ["alternating", "both"])
def test_it_does_through_resizes_and_the_loss_of_workers(tmp_path, launcher, script, loop):
    """Newcomers know which parameters the loop switches off and on."""
    until = tmp_path / "until"
    options = ("--loop", loop, "--adam", "--until", until)
    with Job(tmp_path, "adversaries.py", *options, launcher=launcher) as job:
        for slots in ("a", "ab", "bcd"):
            job.resized(slots)
        if loop == "alternating":  # otherwise it may be lost between the two steps of a batch
            os.kill(job.status.workers[0].pid, signal.SIGKILL)
        until.touch()
        assert job.ended() == "finished", job.status.reason
    result = {name: flat(value) for name, value in json.loads(job.out.read_text()).items()}
    assert result == about(trained_here(script, "--plain", "--loop", loop, "--adam"))
