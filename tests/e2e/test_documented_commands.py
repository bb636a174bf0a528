"""What the documentation shows can be typed: every command and option exists, and every block runs, in its order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks, mentions, what_is_wrong

#: Blocks, by page and how their first command begins, that cannot run here, and why. Their commands are checked like
#: all others.
CANNOT_RUN = {
    ("docs/ray.md", "ray start --head"): "needs two machines with a Ray cluster",
    (
        "docs/workloads.md",
        "geminid simulate --workload max_min_fairness.trace",
    ): "needs traces that are not ours to publish",
    ("CONTRIBUTING.md", "make test"): "runs these tests",
}

#: What the text around a block takes for granted: commands that are run before it.
BEFORE = {
    ("docs/administer.md", "geminid nodes"): ["geminid up --slots 4 --detach"],
    ("docs/backup.md", "geminid backup"): ["geminid up --slots 1 --detach", "geminid down"],
    ("docs/what-if.md", "geminid simulate --from-live"): [
        "geminid up --slots 4 --detach",
        "geminid submit -- sleep 600",
    ],
    ("docs/arrays.md", "geminid submit --array"): [
        "geminid up --slots 8 --detach",
        "geminid submit --name prepare -- true",
        *["geminid submit -- true"] * 5,
    ],
    ("docs/arrays.md", "geminid show"): ["geminid submit --array 0-4 -- sleep 600"],
    ("docs/limits.md", "geminid submit --time"): ["geminid up --slots 1 --detach"],
    ("docs/notifications.md", "geminid submit"): ["geminid up --slots 1 --detach"],
    ("docs/submit.md", "geminid submit"): ["geminid up --slots 2 --detach", *["geminid submit -- true"] * 6],
    ("docs/submit.md", "geminid pause"): [
        "geminid submit -- python train.py --epochs 1000000",
        "until geminid show j10 --json | grep '\"elastic\": true'; do sleep 0.2; done",
    ],
}

#: Words of a block that stand for others here: a job that still runs, a record that is there, less time to wait.
LAST_DECISION = "$(geminid replay --json | python -c 'import json, sys; print(json.load(sys.stdin)[\"seq\"])')"
INSTEAD = {
    ("docs/administer.md", "geminid nodes"): {
        "geminid events -f": "timeout -s INT --preserve-status 4 geminid events -f"
    },
    ("docs/backup.md", "geminid backup"): {"geminid restore": "GEMINID_HOME=$GEMINID_HOME-new geminid restore"},
    ("docs/what-if.md", "geminid simulate --from-live"): {"1234": LAST_DECISION},
    ("docs/compare-policies.md", "geminid simulate"): {"--workload small": "--workload small --load 0.2"},
    ("docs/simulate.md", "geminid simulate"): {"--workload small": "--workload small --load 0.2"},
    ("docs/arrays.md", "geminid submit --array"): {"0-99%8": "0-4", "python train.py": "echo done"},
    ("docs/arrays.md", "geminid show"): {"cancel j7_3": "cancel j8_3"},
    ("docs/arrays.md", "geminid submit --after"): {"python report.py": "true"},
    ("docs/submit.md", "geminid pause"): {"j7": "j10"},
    ("docs/profile-a-script.md", "geminid profile"): {"geminid profile ": "geminid profile --seconds 2 --slots 1 "},
}

#: Commands that go on until they are interrupted end as interrupted ones do.
UNTIL_INTERRUPTED = "timeout -s INT"

#: The training script that pages talk about.
TRAIN = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
import geminid

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
epochs = parser.parse_args().epochs
torch.set_num_threads(1)
run = geminid.init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8), max_batch_size=32)
for _ in run.epochs(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
print("trained")
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_on_a_page_exists(page: str) -> None:
    assert {mention: wrong for mention in mentions(page) if (wrong := what_is_wrong(mention))} == {}


def test_a_command_or_option_that_does_not_exist_is_noticed() -> None:
    assert what_is_wrong("geminid bench nothing --quick") == "there is no command 'nothing'"
    assert what_is_wrong("geminid queue --tall") == "queue has no option --tall"
    assert what_is_wrong("geminid submit --slots 2 -- python train.py --no-option-of-ours") is None
    assert what_is_wrong("geminid bench objectives [--load L --seeds N]") is None
    assert sum(len(mentions(page)) for page in PAGES) > 100


def test_every_target_of_make_that_is_shown_exists() -> None:
    shown = {
        command.split()[1]
        for page in PAGES
        for block in blocks(page)
        for command in block.commands
        if command.startswith("make ")
    }
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= shown <= targets


def test_every_exception_is_about_a_block_that_is_there() -> None:
    every = [block for page in PAGES for block in blocks(page)]
    for place in {*CANNOT_RUN, *BEFORE, *INSTEAD}:
        assert len([block for block in every if is_at(block, place)]) == 1, place


class Terminal:
    """A shell in a scratch folder with a home of its own, and the repository's examples."""

    def __init__(self, folder: Path, page: str) -> None:
        self.home, self.folder = folder / "home", folder / "work"
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(ROOT / "examples")
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "job.yaml").write_text("name: hello\ncommand: [python, train.py]\n")
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, code in re.findall(r"Save this as `(\w+\.py)`:\s*```python\n(.*?)```", text, re.DOTALL):
            (self.folder / name).write_text(code)
        outside = ("GEMINID_URL", "GEMINID_TOKEN")
        self.env = {name: value for name, value in os.environ.items() if name not in outside}
        self.env |= {
            "GEMINID_HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "80",
        }

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def close(self) -> None:
        """Whatever runs ends."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = json.loads((self.home / "service.json").read_text())["pid"]
            jobs = json.loads(self.type("geminid queue --json").stdout)
            self.type(f"geminid cancel {' '.join(job['id'] for job in jobs)}")
            self.type("geminid down")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def terminal(request):
    folder = Path(tempfile.mkdtemp(prefix="gmd-", dir="/tmp"))  # sockets need short paths
    made = Terminal(folder, request.getfixturevalue("page"))
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def is_at(block: Block, place: tuple[str, str]) -> bool:
    """Whether this is the block of a page whose first command begins so."""
    page, beginning = place
    return block.page == page and block.commands[0].startswith(beginning)


def is_run(block: Block, command: str) -> bool:
    """Whether a command of a block is run here: benches are run by a test of their own, and ``make`` runs this."""
    exempt = any(is_at(block, place) for place in CANNOT_RUN)
    return not exempt and not command.startswith(("make ", "geminid bench "))


RUNNABLE = [
    page for page in PAGES if any(is_run(block, command) for block in blocks(page) for command in block.commands)
]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_blocks_of_a_page_run_in_their_order(page: str, terminal: Terminal) -> None:
    for block in blocks(page):
        before = [command for place, typed in BEFORE.items() if is_at(block, place) for command in typed]
        words = {
            word: other for place, given in INSTEAD.items() if is_at(block, place) for word, other in given.items()
        }
        for command in (*before, *(command for command in block.commands if is_run(block, command))):
            for word, other in words.items():
                command = command.replace(word, other)
            done = terminal.type(command)
            expected = (130, 0) if command.startswith(UNTIL_INTERRUPTED) else (0,)
            assert done.returncode in expected, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            assert done.stdout or done.stderr or ";" in command, f"{command} printed nothing"
