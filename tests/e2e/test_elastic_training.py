"""Training on a changing number of workers: real processes, and every sample exactly once."""

import difflib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from time import sleep

import pytest
from elastic import PATIENCE, SCRIPTS, Job, every_sample_once, exactly_once, samples_in_the_last_version
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from geminid.clock import Clock
from geminid.process.launch import Launch
from geminid.process.zygote import Zygote
from geminid.supervise import channel
from geminid.supervise.events import CheckpointWritten, GroupFormed, WorkerEnded, WorkerStarted
from geminid.train.checkpoint import BadCheckpoint, read
from geminid.train.storage import CheckpointFolder
from waiting import until


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


def test_a_job_grows_shrinks_and_moves_without_losing_or_repeating_a_sample(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 403, "--epochs", 3, launcher=launcher) as job:
        for slots in ("a", "ab", "abcd", "bc", "d"):
            job.resized(slots)
        assert job.ended() == "finished"
    assert exactly_once(job, 403, 3)
    formed = job.of_kind(GroupFormed)
    assert [len(group.slots) for group in formed] == [1, 2, 4, 2, 3, 1]
    assert all(group.pause_s is not None for group in formed[1:])
    started = job.of_kind(WorkerStarted)
    assert [worker.slot for worker in started] == ["a", "b", "c", "d", "d"]  # whoever stayed kept its process
    assert all(ended.expected for ended in job.of_kind(WorkerEnded))


def test_newcomers_find_something_to_do_in_epochs_whose_last_step_is_short(tmp_path, launcher):
    """Nine samples in batches of eight: half of all boundaries come before a step with a single one."""
    until = tmp_path / "until"
    options = ("--samples", 9, "--epochs", 60, "--pause", 0.03, "--until", until, "--record")
    with Job(tmp_path, "counting.py", *options, launcher=launcher, max_failures=0) as job:
        for slots in ("a", "abc", "b", "abcd", "d", "bcd"):
            job.resized(slots)
        until.touch()
        assert job.ended() == "finished", job.status.reason
    assert exactly_once(job, 9, 60)
    lines = [line.split() for path in tmp_path.glob("record-*") for line in path.read_text().splitlines()]
    seen = sorted((int(epoch), int(sample)) for epoch, *samples in lines for sample in samples)
    assert seen == [(epoch, sample) for epoch in range(60) for sample in range(9)]


def test_more_workers_than_samples_all_have_something_to_do(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 2, "--epochs", 5, launcher=launcher, max_failures=0) as job:
        job.resized("abc")
        assert job.ended() == "finished", job.status.reason
    assert exactly_once(job, 2, 5)


def test_survivors_of_a_killed_worker_go_on_from_memory(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 4, launcher=launcher) as job:
        job.resized("abc")
        victim = next(worker for worker in job.status.workers if worker.slot == "a")  # the leader
        os.kill(victim.pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= 3 and status.settled)
        assert job.ended() == "finished"
    assert exactly_once(job, 300, 4)
    formed = job.of_kind(GroupFormed)
    assert [len(group.slots) for group in formed] == [3, 2, 3]
    assert not any(group.restored for group in formed[1:])


def test_a_worker_that_hangs_is_ended_and_the_others_go_on(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 200, "--epochs", 3, launcher=launcher) as job:
        job.resized("ab")
        os.kill(job.status.workers[1].pid, signal.SIGSTOP)
        assert job.ended() == "finished"
    assert exactly_once(job, 200, 3)
    assert any("silent for 3 s" in ended.reason for ended in job.of_kind(WorkerEnded))


def test_when_all_die_the_last_intact_checkpoint_is_used(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, "--every", 0.2, launcher=launcher) as job:
        job.resized("ab")
        job.wait(lambda status: len(job.of_kind(CheckpointWritten)) >= 3)
        for worker in job.status.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        newest = max((tmp_path / "job/checkpoints").glob("*.safetensors"))
        newest.write_bytes(newest.read_bytes()[:-10])
        for worker in job.status.workers:
            os.kill(worker.pid, signal.SIGKILL)
        assert job.ended() == "finished"
    assert exactly_once(job, 300, 3)
    assert job.of_kind(GroupFormed)[1].restored
    assert job.of_kind(GroupFormed)[1].step > 0
    assert "is not used" in job.logs


def test_a_stopped_job_goes_on_elsewhere_on_another_number_of_workers(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 2, launcher=launcher) as job:
        job.resized("ab")
        sleep(0.3)
        job.stop()
        assert job.ended() == "stopped"
    stopped_at = job.of_kind(CheckpointWritten)[-1].checkpoint.step
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 2, launcher=launcher) as job:
        job.resized("xyz")
        assert job.ended() == "finished"
    assert job.of_kind(GroupFormed)[0].step == stopped_at > 0
    assert exactly_once(job, 300, 2)


def test_another_supervisor_takes_over_running_workers(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, launcher=launcher) as first:
        first.resized("abc")
        first.resized("ab")
        pids = {worker.pid for worker in first.wait(lambda status: len(status.workers) == 2).workers}
        first.detach()
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, launcher=launcher, adopt=True) as second:
        second.wait(lambda status: status.progress is not None)
        assert {worker.pid for worker in second.status.workers} == pids
        second.resized("abc")
        assert second.ended() == "finished"
    assert [event.worker for event in second.of_kind(WorkerStarted)] == ["w4"]  # and not the name of one that was
    assert exactly_once(second, 300, 3)


def test_a_script_that_always_fails_fails_the_job_with_its_reason(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--batch", 0, launcher=launcher, max_failures=1) as job:
        job.resize(["a"])
        assert job.ended() == "failed"
    assert "worker w2 on slot a failed: ValueError: batch_size" in job.status.reason
    assert job.status.reason.endswith("; 2 failures without progress in between")


def test_a_script_that_may_not_fail_fails_the_job_with_that_failure_alone(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--batch", 0, launcher=launcher, max_failures=0) as job:
        job.resize(["a"])
        assert job.ended() == "failed"
    assert job.status.reason.startswith("worker w1 on slot a failed: ValueError: batch_size")
    assert "without progress" not in job.status.reason


def test_more_slots_than_samples_in_a_batch_are_refused(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--batch", 3, "--epochs", 50, launcher=launcher) as job:
        job.resized("a")
        with pytest.raises(ValueError, match="4 slots are too many: each needs at least 1 samples of a batch"):
            job.resize(list("abcd"))
        with pytest.raises(ValueError, match="stop it instead"):
            job.resize([])


@pytest.fixture(scope="module")
def unresized(tmp_path_factory):
    """The result of the regression script under a plain python."""
    out = tmp_path_factory.mktemp("plain") / "out"
    subprocess.run([sys.executable, SCRIPTS / "regression.py", out], check=True)
    return json.loads(out.read_text())


def flat(weights):
    return [value for tensor in weights for row in tensor for value in (row if isinstance(row, list) else [row])]


@pytest.mark.parametrize("options", [("--per-slot", 3), ("--scaled", "--workers", 1)])
def test_a_resized_run_equals_an_unresized_one(tmp_path, launcher, unresized, options):
    """98 samples in batches of 16: the last step of an epoch has 2 samples, fewer than there are workers at times."""
    hurry = tmp_path / "hurry"
    with Job(tmp_path, "regression.py", "--pause", 0.15, "--hurry", hurry, *options, launcher=launcher) as job:
        for slots in ("ab", "abc", "bcde", "c", "cd"):
            job.resized(slots)
        hurry.touch()
        assert job.ended() == "finished"
    result = json.loads(job.out.read_text())
    assert result["step"] == unresized["step"] == 42
    assert result["lr"] == pytest.approx(unresized["lr"])
    assert flat(result["weights"]) == pytest.approx(flat(unresized["weights"]), abs=2e-5)
    other = json.loads((tmp_path / "out-1").read_text())
    assert other["weights"] == result["weights"]  # to the last bit: workers never drift apart


SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "terminate": signal.SIGTERM}
HAPPENINGS = [
    *("a", "ab", "bcd", "abcd", "d"),
    *("kill leader", "kill other", "kill all", "freeze leader", "freeze other", "terminate other"),
    *("truncate", "flip a bit"),
]


def is_intact(path):
    with suppress(BadCheckpoint, FileNotFoundError):
        read(path)
        return True
    return False


def damage(folder, dice, how):
    """Damage the newest checkpoint, if there is an intact one besides: without any, a job does not go on by itself."""
    paths = sorted(folder.glob("*.safetensors"))
    if not any(map(is_intact, paths[:-1])):
        return
    for path in paths[-1:]:
        raw = bytearray(path.read_bytes())
        if how == "truncate":
            del raw[dice.randrange(len(raw)) :]
        else:
            raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        path.write_bytes(raw)


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])
@given(
    happenings=st.lists(st.sampled_from(HAPPENINGS), min_size=3, max_size=6),
    options=st.sampled_from([(), ("--workers", 1), ("--stream",), ("--agree",)]),
    seed=st.integers(0, 10**6),
)
@example(happenings=["bcd", "freeze leader", "kill other", "truncate", "kill all", "a"], options=(), seed=1)
def test_whatever_happens_every_sample_counts_once_in_an_epoch(tmp_path_factory, launcher, happenings, options, seed):
    """Sizes, moves, deaths, hangs and damaged checkpoints in any order.

    The steps that the final weights descend from have every sample of every epoch once, by its number.
    """
    dice = random.Random(seed)
    folder = tmp_path_factory.mktemp("any")
    arguments = ("--samples", 211, "--epochs", 4, "--every", 0.1, "--max-batch", 32, "--max-per-slot", 8, "--lineage")
    more = {"launcher": launcher, "max_failures": 20, "patience": replace(PATIENCE, hang=1.5)}
    with Job(folder, "counting.py", *arguments, *options, **more) as job:
        job.resized("ab")
        for happening in happenings:
            sleep(dice.random() * 0.3)
            workers = job.status.workers
            what, _, who = happening.partition(" ")
            if what in SIGNALS:
                for worker in {"leader": workers[:1], "other": workers[-1:], "all": workers}[who]:
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid, SIGNALS[what])
            elif happening in ("truncate", "flip a bit"):
                damage(folder / "job/checkpoints", dice, happening)
            elif not job.status.phase.over:
                job.resize(list(happening))
        assert job.ended() == "finished", job.status.reason
    assert samples_in_the_last_version(job) == every_sample_once(211, 4)
    assert exactly_once(job, 211, 4)


def test_sigterm_saves_within_the_grace_period(tmp_path):
    command = [sys.executable, SCRIPTS / "counting.py", tmp_path / "out", "--samples", "600", "--epochs", "4"]
    command += ["--until", tmp_path / "hurry"]
    environment = {**os.environ, "GEMINID_CHECKPOINTS": str(tmp_path / "checkpoints")}
    environment["GEMINID_REPORTS"] = str(tmp_path / "reports")
    first = subprocess.Popen(command, env=environment)
    until(lambda: (tmp_path / "reports").exists() or first.poll() is not None)
    first.terminate()
    assert first.wait(20) == 143
    assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 1
    (tmp_path / "hurry").touch()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "continuing from" in second.stderr
    low, high, total, *_ = map(float, (tmp_path / "out").read_text().split())
    assert (low, high, total) == (-4, -4, -2400)


def test_a_stranger_gets_nothing_but_a_refusal_from_a_supervisor(tmp_path, launcher, capsys):
    import socket

    refused = {
        b'{"kind":"hello","token":"guess","worker":"w1","pid":1}\n': b'{"kind":"refused","job":"job"}\n',
        b'{"kind":"hello","token":"","worker":"w9","pid":1}\n': b'{"kind":"refused","job":"job"}\n',
        b"\x80\x04K\x01.\n": b"",
    }

    with Job(tmp_path, "counting.py", "--epochs", 100, launcher=launcher) as job:
        job.resized("a")
        for greeting, answer in refused.items():
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(tmp_path / "job/control"))
                stranger.sendall(greeting)
                assert stranger.recv(100) == answer
        assert job.status.settled
    assert "the token is wrong" in capsys.readouterr().err


EXAMPLES = SCRIPTS.parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "options", "better_than"),
    [
        ("images.py", ("--epochs", 2, "--samples", 1024), ("accuracy", 0.4)),
        ("language.py", ("--epochs", 2, "--samples", 512), ("unseen", 1.6)),
        ("recommender.py", ("--epochs", 6, "--samples", 8000), ("unseen", 4.5)),
        ("plain_after.py", (), ("loss", 0.15)),
    ],
)
def test_the_examples_learn_while_they_are_resized(tmp_path, launcher, script, options, better_than):
    with Job(tmp_path, EXAMPLES / script, *options, launcher=launcher) as job:
        job.resized("a")
        job.resize(["a", "b"])
        assert job.ended() == "finished"
    said = re.findall(rf"{better_than[0]} ([0-9.]+)", job.logs)
    final = float(said[-1])
    assert final > better_than[1] if better_than[0] == "accuracy" else final < better_than[1]


def test_the_plain_script_changes_in_five_lines_at_most_and_the_guide_shows_them():
    before, after = ((EXAMPLES / f"plain_{name}.py").read_text().splitlines()[1:] for name in ("before", "after"))
    changed = [line for line in difflib.unified_diff(before, after, n=0) if line[0] in "+-" and line[1:].strip("+- \n")]
    assert len([line for line in changed if line[0] == "+"]) == 4
    assert len([line for line in changed if line[0] == "-"]) == 1
    guide = (EXAMPLES.parent / "docs/make-elastic.md").read_text()
    shown = guide.split("```diff\n")[1].split("```")[0].splitlines()
    assert sorted(line for line in shown if line[0] in "+-") == sorted(changed)


def test_a_script_is_profiled_and_the_simulator_can_use_the_profile(tmp_path):
    from geminid.sim.profiles import load_applications

    command = [sys.executable, "-m", "geminid", "profile", "--slots", "2", "--seconds", "2", "--json"]
    command += ["--out", tmp_path / "profiles/regression", "--", "python", SCRIPTS / "regression.py", tmp_path / "out"]
    done = subprocess.run(
        [*command, "--epochs", "20000", "--max-batch", "64", "--per-slot", "16"],
        capture_output=True,
        text=True,
        check=True,
    )
    profile = json.loads(done.stdout)
    assert {point["slots"] for point in profile["points"]} == {1, 2}
    assert all(point["step_s"] > 0 for point in profile["points"])
    assert profile["noise"]["known"]
    assert [row["slots"] for row in profile["goodput"]] == [1, 2, 4]
    application = load_applications(tmp_path / "profiles")["regression"]
    assert application.initial_batch == 16
    accumulation_s, step_s = application.truth["cpu"].step_times((2,), 8)
    assert 0 < accumulation_s <= step_s
    command = [sys.executable, "-m", "geminid", "simulate", "--profiles", tmp_path / "profiles", "--policy", "geminid"]
    command += ["--workload", tmp_path / "profiles/regression/workload.yaml", "--cluster", "cpu:2x4"]
    subprocess.run([*command, "--json", tmp_path / "simulated.json"], check=True, capture_output=True)
    (simulated,) = json.loads((tmp_path / "simulated.json").read_text())
    assert simulated["jobs"] == 3


def test_a_script_without_geminid_cannot_be_profiled(tmp_path):
    (tmp_path / "other.py").write_text("print('no such thing')")
    command = [sys.executable, "-m", "geminid", "profile", "--", "python", tmp_path / "other.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: the script finished before it trained: it must")
    assert "no such thing" in done.stderr


@pytest.mark.parametrize("options", [(), ("--stay",)])
def test_branches_frozen_parts_and_batch_norm_agree_on_all_workers(tmp_path, launcher, options):
    """Running statistics do so at the end of an epoch; the loop over epochs may be left before that."""
    with Job(tmp_path, "branches.py", *options, launcher=launcher) as job:
        job.resized("abc")
        assert job.ended() == "finished"
    first, *others = (json.loads((tmp_path / f"out-{rank}").read_text()) for rank in range(3))
    weights = {name: value for name, value in first["weights"].items() if options or "running" not in name}
    for other in others:
        assert {name: other["weights"][name] for name in weights} == weights
    assert first["changed"]["seldom.weight"]
    assert first["changed"]["always.0.weight"]
    assert not first["changed"]["never.weight"]  # nobody used it: not even weight decay touches it
    assert not first["changed"]["frozen.weight"]


def test_a_loop_that_does_not_do_the_same_on_all_workers_is_told_so(tmp_path, launcher):
    with Job(tmp_path, "branches.py", "--uneven", launcher=launcher, max_failures=0) as job:
        job.resize(["a", "b"])
        assert job.ended() == "failed"
    assert "optimizer.step() was called on 1 of 2 workers" in job.status.reason


def results(folder, size):
    """What every worker of the script ``together.py`` ended with."""
    return [json.loads((folder / f"out-{rank}").read_text()) for rank in range(size)]


@pytest.mark.parametrize("options", [(), ("--within",)])
def test_layers_that_are_unfrozen_later_are_trained_together_by_newcomers_too(tmp_path, launcher, options):
    options = ("--thaw", 1, "--epochs", 6, "--until-size", 3, *options)
    with Job(tmp_path, "together.py", *options, launcher=launcher) as job:
        job.resized("ab")
        job.trained(67 * 2 + 16)  # after the epoch in which the script unfreezes them
        job.resized("abc")
        assert job.ended() == "finished"
    first, *others = results(tmp_path, 3)
    assert first["thawed"]
    assert all(other["weights"] == first["weights"] for other in others)


def test_what_only_the_leader_keeps_stays_when_it_leaves(tmp_path, launcher):
    """Its running statistics as well: they are those of its own part of the batches."""
    with Job(tmp_path, "together.py", "--epochs", 10, "--until-size", 3, launcher=launcher) as job:
        for slots in ("ab", "bc", "bcd"):
            job.resized(slots)
        assert job.ended() == "finished"
    first, *others = results(tmp_path, 3)
    assert first["counted"] == {"steps": first["step"], "epochs": list(range(10))}
    assert all(other["counted"] == first["counted"] for other in others)
    assert all(other["statistics"] == first["statistics"] for other in others)
    assert all(other["noise"] == first["noise"] for other in others)


def test_workers_agree_on_what_the_leader_decides(tmp_path, launcher):
    with Job(tmp_path, "together.py", "--stop", 2, launcher=launcher) as job:
        job.resized("abc")
        assert job.ended() == "finished"
    assert [result["epoch"] for result in results(tmp_path, 3)] == [2, 2, 2]
    everybodys = [{"rank": rank, "text": "x" * rank} for rank in range(3)]
    assert all(result["together"] == everybodys for result in results(tmp_path, 3))


def test_what_workers_report_is_averaged_over_those_that_report_it(tmp_path, launcher):
    with Job(tmp_path, "together.py", "--epochs", 100, launcher=launcher, report_s=0.05) as job:
        job.resized("abcd")
        job.wait(lambda status: status.progress is not None and status.progress.metrics.get("rank") == 1.5)
        assert job.status.progress.metrics["led"] == 7.0
        job.resized("cd")
        job.wait(lambda status: status.progress.metrics["rank"] == 0.5)


def test_workers_agree_after_the_leader_has_died(tmp_path, launcher):
    with Job(tmp_path, "together.py", "--stop", 0, "--die", launcher=launcher) as job:
        job.resize(["a", "b"])
        assert job.ended() == "finished"
    assert (tmp_path / "died").exists()
    first, second = results(tmp_path, 2)
    assert first == second  # who was left had not been the leader, and so had not wanted to stop
    assert first["epoch"] == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--plateau",), "learning rates differ between workers: call the schedule on all workers"),
        (("--leave", 0), "the loop over batches or over epochs was left on some workers only"),
        (("--agree-alone",), "or run.agree() or run.gather() called on some only"),
        (("--tamper", 0.5), "the weights of workers are different towards the end of an epoch"),
        (("--second",), "they are trained by an optimizer that was not given to run.prepare()"),
        (("--leave", 1), "the loop over batches or over epochs was left on some workers only"),
        (("--quit", 0), "the loop over batches or over epochs was left on some workers only"),
        (("--quit", 1), "the loop over batches or over epochs was left on some workers only"),
    ],
)
def test_workers_that_do_not_do_the_same_are_told_in_what(tmp_path, launcher, options, sentence):
    with Job(tmp_path, "together.py", *options, launcher=launcher, max_failures=0) as job:
        job.resize(["a", "b"])
        assert job.ended() == "failed"
    assert sentence in job.status.reason


def test_weights_that_rounding_has_driven_apart_become_the_leaders(tmp_path, launcher):
    with Job(tmp_path, "together.py", "--tamper", 1.000001, launcher=launcher) as job:
        job.resize(["a", "b"])
        assert job.ended() == "finished"
    assert "the weights of workers differed in their last digits" in job.logs
    first, second = results(tmp_path, 2)
    assert first["weights"] == second["weights"]


SPAWNING = """
import torch, geminid
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(index)])

if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = geminid.init()
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(1):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
    print("after", run.step, "steps")
"""


def test_a_script_named_relative_to_its_folder_may_spawn_loader_workers(tmp_path, launcher):
    """They import the script by its path, from wherever they are."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/spawning.py").write_text(SPAWNING)
    log = tmp_path / "log"
    process = launcher.start(
        Launch((sys.executable, "here/spawning.py"), {**os.environ, "OMP_NUM_THREADS": "1"}, tmp_path, log)
    )
    process.begin()
    assert select.select([process.fileno()], [], [], 60)[0]
    assert process.exit_code() == 0, log.read_text()
    assert log.read_text().endswith("after 2 steps\n")
    process.close()


def test_a_sampler_that_is_different_on_every_worker_is_refused(tmp_path, launcher):
    with Job(tmp_path, "branches.py", "--disorder", launcher=launcher, max_failures=0) as job:
        job.resize(["a", "b"])
        assert job.ended() == "failed"
    assert "the loader's sampler gives workers different orders" in job.status.reason


def test_workers_of_several_nodes_meet_over_tcp_and_get_over_the_loss_of_one(tmp_path, launcher):
    def environment(slot):
        return {channel.NODE: slot.partition("/")[0], channel.ADDRESS: "127.0.0.1"}

    with Job(
        *(tmp_path, "counting.py", "--samples", 300, "--epochs", 6),
        launcher=launcher,
        address=channel.Address(host="127.0.0.1"),
        slot_environment=environment,
    ) as job:
        for slots in (["n1/0"], ["n1/0", "n2/0", "n2/1"]):
            job.resize(slots)
            job.wait(lambda status, slots=slots: status.settled and set(status.slots) == set(slots))
        job.wait(lambda status: status.progress is not None and status.progress.size == 3 and status.progress.steps > 0)
        epoch = job.status.progress.epoch  # at whose end the leader tells what it has measured
        job.wait(lambda status: status.progress.epoch > epoch)
        job.lose(["n1/0"], "its node is gone")
        job.wait(lambda status: status.settled and set(status.slots) == {"n2/0", "n2/1"})
        assert job.status.failures == 0
        assert job.ended() == "finished"
    assert exactly_once(job, 300, 6)
    formed = job.of_kind(GroupFormed)
    assert [len(group.slots) for group in formed] == [1, 3, 2]
    assert not any(group.restored for group in formed[1:])
    seen = CheckpointFolder(tmp_path / "job/checkpoints", Clock()).load()[0]["tuner"]["observations"]
    assert (3, 2, 2) in {(one["slots"], one["nodes"], one["busiest_node_slots"]) for one in seen}
