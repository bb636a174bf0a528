"""Run training scripts under a supervisor, with workers forked from one warm process for all tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType

from geminid.process.launch import Launcher
from geminid.supervise.events import JobEvent
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor

SCRIPTS = Path(__file__).parent / "scripts"

#: Quick to notice, slow to give up: the machine may be busy.
PATIENCE = Patience(heartbeat=0.2, hang=3.0, grace=20.0, orphan=20.0)

#: For tests in which no worker may seem to hang, however busy the machine is.
STEADY = Patience(heartbeat=0.2, hang=60.0, grace=20.0, orphan=60.0)


class Job(Supervisor):
    """A supervised script, with what happened to it."""

    def __init__(
        self, folder: Path, script: str, *args: object, launcher: Launcher, adopt: bool = False, **more
    ) -> None:
        self.events: list[JobEvent] = []
        self.out = folder / "out"
        path = SCRIPTS / script
        command = (sys.executable, str(path), *([str(self.out)] if SCRIPTS in path.parents else []), *map(str, args))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        more.setdefault("patience", PATIENCE)
        spec = WorkerSpec(command=command, folder=folder / "job", environment=environment, **more)
        super().__init__(spec, on_event=self.events.append, launcher=launcher, adopt=adopt)

    def resized(self, slots: str) -> None:
        """Resize to these slots (one letter each), and wait until it trains there."""
        self.resize(list(slots))
        self.wait(lambda status: status.settled and set(status.slots) == set(slots))

    def trained(self, samples: int) -> None:
        """Wait until it has consumed this many samples."""
        try:
            self.wait(lambda status: status.progress is not None and status.progress.samples >= samples)
        except TimeoutError as late:
            raise TimeoutError(f"{late}: {self.status}, {self.events[-12:]}") from late

    def of_kind(self, kind: type) -> list:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def ended(self) -> str:
        """How it ended."""
        return str(self.wait(lambda status: False).phase)

    @property
    def counts(self) -> tuple[float, float, float]:
        """What the counting script found: the least and the most that a sample counted, and all together."""
        low, high, total, *_ = map(float, self.out.read_text().split())
        return low, high, total

    @property
    def logs(self) -> str:
        """What the workers printed."""
        return "".join(path.read_text() for path in sorted((self.spec.folder / "logs").iterdir()))


def script_as_module(name: str) -> ModuleType:
    """A script as a module, so that a test can train with it in its own process, on one thread."""
    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exactly_once(job: Job, samples: int, epochs: int) -> bool:
    """Whether every sample took part in exactly one step of every epoch."""
    return job.counts == (-epochs, -epochs, -samples * epochs)


def samples_in_the_last_version(job: Job) -> dict[int, Counter[int]]:
    """Which samples of which epoch the final weights descend from, and how often each; of ``counting.py --lineage``.

    Steps whose result was lost (after it the job went on from an older state) are no ancestors, and do not count.
    """
    made_from: dict[int, set[tuple[int, int]]] = defaultdict(set)
    samples: dict[int, list[int]] = defaultdict(list)
    for path in job.out.parent.glob("lineage-*"):
        for line in path.read_text().splitlines():
            version, before, epoch, *indices = map(int, line.split())
            made_from[version].add((before, epoch))
            samples[version] += indices
    found: dict[int, Counter[int]] = defaultdict(Counter)
    version, steps = int(job.out.with_name("version").read_text()), 0
    while version != 0:
        ((before, epoch),) = made_from[version]  # all workers began the step with the same version
        found[epoch].update(samples[version])
        version, steps = before, steps + 1
    assert steps == int(job.out.read_text().split()[3])
    return dict(found)


def every_sample_once(samples: int, epochs: int) -> dict[int, Counter[int]]:
    """What it must be."""
    return {epoch: Counter(range(samples)) for epoch in range(epochs)}
