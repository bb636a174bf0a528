"""What a supervisor runs and where, and how long it waits for what."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geminid.supervise.channel import Address
from geminid.supervise.protocol import REPORT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds.

    ``heartbeat`` is the time between two heartbeats of a worker, ``hang`` how long a worker may send nothing before it
    is ended. While its peers wait, a worker may take ``step`` (or twenty times its usual duration, if that is longer)
    for loading, forward, backward, or the optimiser's step. Where the script may do anything (between epochs, and on
    the leader in the rest of its loop) it may show no sign of life, such as a call of the model or writing a file, for
    ``free``, and for longer once that has proved too short. It may take ``stall`` where the usual duration is unknown:
    before ``geminid.init()``, in its first passes, for the first batch, and while something is compiled. ``form`` is
    how long forming a group may take (after that, workers that have not joined are ended), ``grace`` how long a worker
    may take to save and stop, ``orphan`` how long workers train without a supervisor before they save and stop, and
    ``conclude`` how long a script may continue after training.
    """

    heartbeat: float = 0.5
    hang: float = 10.0
    step: float = 20.0
    free: float = 60.0
    stall: float = 900.0
    form: float = 60.0
    grace: float = 30.0
    orphan: float = 60.0
    conclude: float = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What the workers of a job run. ``folder`` is the supervisor's: it contains socket, checkpoints and logs.

    ``working_folder`` is where the command runs (default: ``folder``). ``slot_environment`` is what a worker needs to
    use its slot (``CUDA_VISIBLE_DEVICES``). ``options`` override what the script passes to ``run.prepare``: any of
    ``initial_batch_size``, ``max_batch_size``, ``min_per_slot_batch``, ``max_per_slot_batch`` and ``scaling_rule``; and
    ``checkpoint_interval_s``, the longest time between two checkpoints.

    The leader reports every ``report_s`` seconds. The job fails when workers have failed more than ``max_failures``
    times without progress in between. ``checkpoints`` is a folder or an fsspec URL. Workers on other machines need an
    ``address`` at which they can reach the supervisor; without one it is a socket in ``folder``. With ``lone_slots`` it
    is unknown whether the command calls ``geminid.init()``: it is a single process on these slots, with the
    ``lone_environment``, and becomes the worker of the first of them when it does. ``topology`` gives the zone and rack
    of a node, by which ranks are assigned. After a loss, the job does not train on fewer than ``min_slots`` slots.
    ``saved_samples`` are in the checkpoints that there must be: it does not begin without them.
    """

    command: tuple[str, ...]
    folder: Path
    name: str = "job"
    working_folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    slot_environment: Callable[[str], Mapping[str, str]] = lambda slot: {}
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Path | str | None = None
    saved_samples: int = 0
    address: Address | None = None
    topology: Callable[[str], tuple[str, ...]] = lambda node: ()
    max_failures: int = 3
    min_slots: int = 1
    lone_slots: tuple[str, ...] = ()
    lone_environment: Callable[[], Mapping[str, str]] = dict
    report_s: float = REPORT_S
    patience: Patience = Patience()
