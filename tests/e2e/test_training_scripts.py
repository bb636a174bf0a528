"""Scripts that train by themselves, in processes of their own: what is saved however they end, and by one at a time."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import geminid
from geminid.train.checkpoint import read

LEAVING = """
import sys
import torch, geminid
from torch.utils.data import DataLoader, TensorDataset
run = geminid.init(checkpoint_dir="checkpoints")
if sys.argv[2:]:
    from geminid.train import saving, storage

    def full(*_):
        raise OSError(28, "No space left on device")

    (write, storage.write), saving.RETRY_DELAYS_S = (storage.write, full), (0.0,)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(40, 1)), batch_size=4)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if sys.argv[1] == "fail" and run.step == 14:
            raise ValueError("on purpose")
        if sys.argv[1] == "leave" and run.step == 14:
            break
    if run.step == 14:
        break
if sys.argv[2:] == ["for a while"]:
    storage.write = write
torch.nn.init.zeros_(model.weight)  # what happens afterwards is not part of the state
print("after", run.step, "steps")
"""


def test_leaving_the_loop_over_epochs_saves_and_failing_in_it_does_not(tmp_path):
    def script(how):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", LEAVING, how]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert "ValueError: on purpose" in script("fail").stderr
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))
    assert script("leave").stdout == "after 14 steps\n"
    (saved,) = (tmp_path / "checkpoints").glob("*.safetensors")
    state = read(saved)
    assert (state["position"]["step"], state["position"]["epoch"], state["position"]["samples"]) == (14, 1, 56)
    assert float(state["model"]["weight"]) != 0.0
    again = script("go on")
    assert "continuing from" in again.stderr
    assert again.stdout == "after 20 steps\n"


@pytest.mark.parametrize("how", ["leave", "go on"])
def test_a_last_state_that_cannot_be_saved_is_tried_again_at_the_end_and_then_a_failure(tmp_path, how):
    def script(until):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", LEAVING, how, until]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    steps = 14 if how == "leave" else 20
    ended = script("for good")
    assert ended.stdout == f"after {steps} steps\n"
    assert ended.returncode == 1
    error = ended.stderr.splitlines()[-1]
    assert error == "geminid: error: the last state was not saved in checkpoints: No space left on device"
    ended = script("for a while")
    assert (ended.stdout, ended.returncode) == (f"after {steps} steps\n", 0)
    (saved,) = (tmp_path / "checkpoints").glob("*.safetensors")
    assert read(saved)["position"]["step"] == steps
    assert float(read(saved)["model"]["weight"]) != 0.0


def one_step(folder):
    run, model = geminid.init(checkpoint_dir=folder), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.ones(50, 1)), batch_size=50)
    model, optimizer, loader = run.prepare(model, optimizer, data)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).mean().backward()
            optimizer.step()


def test_two_runs_do_not_share_their_checkpoints(tmp_path):
    code = f"""
import sys
from geminid.clock import Clock
from geminid.train.storage import checkpoints_at
checkpoints_at({str(tmp_path)!r}, Clock()).claim()
print("claimed", flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes) as other:
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(
            RuntimeError, match=rf"another run keeps its checkpoints in .* \(process {other.pid}\): wait"
        ):
            one_step(tmp_path)
        other.stdin.close()
        other.wait()
    one_step(tmp_path)  # a lock ends with its process
    one_step(tmp_path)  # and is no obstacle to one's own
