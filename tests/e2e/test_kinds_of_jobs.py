"""What kind a job is, and that exit code 0 is success: as a user sees it, through the command line."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import pytest
from live import SCRIPTS, Live

#: Trains only if geminid is there, and here it does without.
GUARDED = """
try:
    import geminid
except ImportError:
    geminid = None
open("ran", "a").write("x")
"""

#: Has a flag to train through geminid, which is not given.
FLAGGED = """
import sys, geminid
if "--elastic" in sys.argv:
    geminid.init()
open("ran", "a").write("x")
"""

#: As people write it for torchrun, with nothing of geminid.
DDP = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert int(total) == int(os.environ["WORLD_SIZE"])
print("slots:", os.environ["GEMINID_SLOT_COUNT"], flush=True)
open("ran", "a").write("x")
dist.destroy_process_group()
"""

#: Ends with exit code 0 after its second epoch, on the ranks that its arguments name.
EARLY = """
import os, sys, torch, geminid
run = geminid.init()
data = torch.utils.data.TensorDataset(torch.ones(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = torch.nn.Linear(1, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in run.epochs(4):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    if run.rank == 0:
        open("ran", "a").write(str(epoch))
    if epoch == 1 and str(run.rank) in sys.argv[1:] and run.size == 2:
        if "break" in sys.argv:
            break
        (sys.exit if "politely" in sys.argv else os._exit)(0)
"""


@pytest.fixture(scope="module")
def live():
    with Live() as made:
        yield made


def submit(live: Live, folder: Path, script: str, *options: object, command: tuple[object, ...] = ("python",)) -> str:
    """Submit a script from a folder, as a user does; what the command said."""
    (folder / "train.py").write_text(script)
    words = [*command, "train.py"] if "train.py" not in command else command
    done = live.run("submit", "--working-dir", folder, *options, "--", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcome(live: Live, said: str) -> dict:
    """The job of what ``submit`` said, once it is over."""
    return live.over(said.split()[1])


@pytest.mark.parametrize("script", [GUARDED, FLAGGED], ids=["guarded import", "flag that skips it"])
def test_a_script_that_imports_geminid_and_never_calls_init_runs_once_and_succeeds(live, tmp_path, script):
    said = submit(live, tmp_path, script)
    assert "unknown: train.py imports geminid; it becomes elastic when it calls geminid.init()" in said
    job = outcome(live, said)
    assert (job["phase"], job["kind"], job["elastic"], job["failures"]) == ("succeeded", "unknown", False, 0)
    assert "finished without calling geminid.init(): it ran on 1 slot and could not be resized" in job["reason"]
    assert (tmp_path / "ran").read_text() == "x"


def test_a_script_submitted_as_elastic_that_never_calls_init_says_how_often_it_ran(live, tmp_path):
    job = outcome(live, submit(live, tmp_path, GUARDED, "--kind", "elastic", "--slots", 2))
    assert job["phase"] == "succeeded"
    assert "it ran 2 times, once on each slot, and could not be resized; submit it with --kind plain" in job["reason"]
    assert (tmp_path / "ran").read_text() == "xx"


def test_an_unchanged_script_for_torchrun_runs_once_on_the_fewest_slots_of_its_range(live, tmp_path):
    torchrun = (Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 2)
    said = submit(live, tmp_path, DDP, "--min-slots", 2, "--max-slots", 3, command=torchrun)
    assert "unknown: 2 to 3 slots were asked for" in said
    job = outcome(live, said)
    assert (job["phase"], job["failures"]) == ("succeeded", 0), job
    assert (tmp_path / "ran").read_text() == "xx"  # once on each of its ranks
    assert "slots: 2" in live.run("logs", job["id"]).stdout


def test_torchrun_has_a_slot_for_each_process_unless_told_otherwise(live, tmp_path):
    (tmp_path / "train.py").touch()
    for words, slots in (
        (("torchrun", "--nproc-per-node", "2"), 2),
        (("torchrun", "--nproc_per_node=2", "--standalone"), 2),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node=2"), 2),
        (("torchrun", "--nproc-per-node=gpu"), 1),
        (("torchrun", "train.py", "--nproc-per-node", "2"), 1),  # the script's own
    ):
        env = f"PATH={Path(sys.executable).parent}"
        command = words if "train.py" in words else (*words, "train.py")
        options = ("--working-dir", tmp_path, "--dry-run", "--env", env)
        told = live.json("submit", *options, "--json", "--", *command)
        assert told["spec"]["slots"] == slots, words
        done = live.run("submit", *options, "--", *command)
        assert ("from --nproc-per-node" in done.stdout) is (slots == 2), done.stdout
        assert ("so give the number with --slots" in done.stdout) is ("gpu" in str(words)), done.stdout
        given = live.json("submit", *options, "--slots", 1, "--json", "--", *command)
        assert given["spec"]["slots"] == 1


def test_init_makes_a_job_elastic_which_is_then_resized_while_it_runs(live):
    script, out = str(SCRIPTS / "counting.py"), str(live.home / "counted")
    slow = ("--samples", 200, "--epochs", 30, "--pause", 0.05, "--until", live.home / "hurry-counted")
    done = live.run("submit", "--max-slots", 2, "--", sys.executable, script, out, *slow)
    job_id = done.stdout.split()[1]
    began = live.until(job_id, lambda job: job["phase"] == "running")
    assert (began["kind"], began["slots"]) in (("unknown", 1), ("elastic", 1))
    elastic = live.until(job_id, lambda job: job["slots"] == 2 and job["phase"] == "running")
    assert (elastic["kind"], elastic["elastic"]) == ("elastic", True)
    assert "elastic: the script called geminid.init()" in live.run("show", job_id).stdout
    assert "elastic: the script called geminid.init()" in live.run("explain", job_id).stdout
    (live.home / "hurry-counted").touch()
    job = live.over(job_id)
    assert (job["phase"], job["failures"]) == ("succeeded", 0), job
    assert live.exactly_once("counted", 200, 30)


def test_init_behind_a_shell_and_in_a_helper_module_makes_a_job_elastic(live, tmp_path):
    (tmp_path / "helper.py").write_text(EARLY)
    (tmp_path / "run.sh").write_text(f"cd {tmp_path} && exec {sys.executable} -c 'import helper'\n")
    said = submit(live, tmp_path, "import helper\n", "--slots", 1)
    assert "unknown: helper.py, which train.py imports, imports geminid" in said
    behind = live.run("submit", "--working-dir", tmp_path, "--slots", 1, "--", "sh", "run.sh").stdout
    assert "unknown: run.sh may run Python (python" in behind
    for text in (said, behind):
        job = outcome(live, text)
        assert (job["phase"], job["kind"], job["failures"]) == ("succeeded", "elastic", 0), job


def test_sizes_that_are_set_before_init_take_effect_after_it(live, tmp_path):
    """Importing a framework takes seconds, in which nobody knows yet whether the job can be resized."""
    counting = str(SCRIPTS / "counting.py")
    slowly = ["counted-late", "--samples", "200", "--epochs", "30", "--pause", "0.05", "--until", "hurry"]
    script = f"""
        import os, runpy, sys, time
        import geminid
        open("began", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.05)
        sys.argv = [{counting!r}, *{slowly!r}]
        runpy.run_path({counting!r}, run_name="__main__")
    """
    job_id = submit(live, tmp_path, textwrap.dedent(script), "--max-slots", 1).split()[1]
    live.until(job_id, lambda job: job["phase"] == "running" and (tmp_path / "began").exists())
    assert live.run("set", job_id, "--min-slots", 2, "--max-slots", 2).returncode == 0
    waits = live.job(job_id)
    assert (waits["kind"], waits["slots"]) == ("unknown", 1)
    assert "its size changes when its script has called geminid.init()" in waits["story"][-1]["text"]
    (tmp_path / "go").touch()
    grown = live.until(job_id, lambda job: job["slots"] == 2 and job["samples"] > 0)
    assert (grown["kind"], grown["failures"]) == ("elastic", 0)
    (tmp_path / "hurry").touch()
    assert live.over(job_id)["phase"] == "succeeded"


def test_a_plain_job_whose_script_calls_init_says_that_it_is_not_resized(live, tmp_path):
    (tmp_path / "helper.py").write_text("import geminid\nrun = geminid.init()\n")
    said = submit(live, tmp_path, "import helper", "--kind", "plain")
    job_id = said.split()[1]
    assert live.over(job_id)["phase"] == "succeeded"
    assert "submitted as a plain command" in live.run("logs", job_id).stdout


def test_the_kind_that_is_given_counts(live, tmp_path):
    said = submit(live, tmp_path, FLAGGED, "--kind", "plain", "--slots", 2)
    assert "plain: --kind plain" in said
    job = outcome(live, said)
    assert (job["phase"], job["kind"], job["reason"]) == ("succeeded", "plain", "")
    (tmp_path / "ran").unlink()
    said = submit(live, tmp_path, FLAGGED, "--kind", "elastic", "--slots", 2)
    assert "elastic: --kind elastic" in said
    job = outcome(live, said)
    assert (job["phase"], job["kind"], job["failures"]) == ("succeeded", "elastic", 0)
    assert "finished without calling geminid.init()" in job["reason"]
    assert (tmp_path / "ran").read_text() == "xx"  # a worker on each slot, as was asked for, and none again
    for kind, why in (("restart", "not supported yet"), ("rigid", "one of elastic, plain")):
        refused = live.run("submit", "--kind", kind, "--", "true")
        assert refused.returncode == 2
        assert why in refused.stderr
    refused = live.run("submit", "--kind", "plain", "--min-slots", 1, "--max-slots", 2, "--", "true")
    assert refused.returncode == 2
    assert "max_slots" in refused.stderr


@pytest.mark.parametrize("words", ["0 1 politely", "0 1 break", "0 1", "0", "1"])
def test_a_worker_that_ends_with_exit_code_0_before_the_end(live, tmp_path, words):
    """The leader's end is that of the job. Without another worker the job trains on: it has lost one."""
    command = ("python", "train.py", *words.split())
    job = outcome(live, submit(live, tmp_path, EARLY, "--kind", "elastic", "--slots", 2, command=command))
    assert job["phase"] == "succeeded", job
    if "0" in words:
        early = "its script ended with exit code 0 before training was over"  # os._exit and sys.exit alike
        assert job["reason"] == ("" if "break" in words else early)
        assert (tmp_path / "ran").read_text() == "01"
    else:
        assert (tmp_path / "ran").read_text() == "0123"


@pytest.mark.parametrize(("code", "phase"), [(0, "succeeded"), (3, "failed")])
def test_a_job_that_ends_while_the_service_is_away_has_run_once(tmp_path, code, phase):
    script = (
        f"import time\nif False: import geminid\nopen('ran', 'a').write('x')\n"
        f"while True:\n  try: open('go'); break\n  except OSError: time.sleep(0.05)\nraise SystemExit({code})"
    )
    with Live() as live:
        job_id = submit(live, tmp_path, script, "--retries", 0).split()[1]
        live.until(job_id, lambda job: job["phase"] == "running" and (tmp_path / "ran").exists())
        live.kill()
        (tmp_path / "go").touch()
        time.sleep(1.0)
        live.up()
        job = live.over(job_id)
        assert job["phase"] == phase, job
        assert (tmp_path / "ran").read_text() == "x"


def test_a_job_of_unknown_kind_is_stopped_and_not_taken_for_a_success(live, tmp_path):
    """It ends with exit code 0 because it is told to."""
    script = (
        "import signal, sys, time\nif False: import geminid\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nopen('ran', 'a').write('x')\ntime.sleep(600)"
    )
    job_id = submit(live, tmp_path, script).split()[1]
    live.until(job_id, lambda job: (tmp_path / "ran").exists())
    live.run("pause", job_id)
    assert live.until(job_id, lambda job: job["phase"] == "paused")["finished_at_s"] is None
    live.run("resume", job_id)
    live.until(job_id, lambda job: (tmp_path / "ran").read_text() == "xx")
    live.run("cancel", job_id)
    assert live.over(job_id)["phase"] == "cancelled"
