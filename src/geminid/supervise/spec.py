"""What a supervisor is told about its job: what to run and where, and how patient to be."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geminid.supervise.channel import Address

#: Jobs tell so often how far they are.
REPORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds.

    ``heartbeat`` is how often workers say that they live, ``hang`` how long they may be silent before they are ended.
    While its peers wait, a worker may take ``step`` (or twenty times as long as usual, if that is longer) for loading,
    forward, backward, or the optimiser's step. Where the script is free to do anything (between epochs, and on the
    leader in the rest of its loop) it may go without a sign of life, such as a call of the model or writing a file, for
    ``free``, and for longer once that has proved too short. It may take ``stall`` where nobody knows what is usual:
    before ``geminid.init()``, in its first passes, for the first batch, and while something is compiled. ``form`` is
    how long forming a group may take (after that, whoever has not joined is ended), ``grace`` how long a worker has to
    save and stop, ``orphan`` how long workers train on without a supervisor before they save and stop, and
    ``conclude`` how long a script may go on after training.
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
    """What a job runs. ``folder`` is the supervisor's: sockets, checkpoints and logs are kept there.

    ``working_folder`` is where the command runs (default: ``folder``). ``slot_environment`` is what a worker needs to
    use its slot (``CUDA_VISIBLE_DEVICES``). ``options`` override what the script passes to ``run.prepare``: any of
    ``initial_batch_size``, ``max_batch_size``, ``min_per_slot_batch``, ``max_per_slot_batch`` and ``scaling_rule``; and
    ``checkpoint_interval_s``, the longest time between two checkpoints.
    The leader reports every ``report_s`` seconds. A job fails for good when workers fail more than ``max_failures``
    times without any progress in between. ``checkpoints`` is a folder or an fsspec URL. Workers on other machines need
    an ``address`` at which the supervisor can be reached from there; without one it is a socket in ``folder``.
    With ``lone_slots`` it is not known yet whether the command calls ``geminid.init()``: it is one process on these
    slots, with the ``lone_environment``, and becomes the worker of the first of them when it does.
    ``topology`` says of a node in which zone and rack it is: ranks are given out by that. ``min_slots`` is what the
    job is not to begin with less than, if its slots turn out not to reach each other.
    """

    command: tuple[str, ...]
    folder: Path
    name: str = "job"
    working_folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    slot_environment: Callable[[str], Mapping[str, str]] = lambda slot: {}
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Path | str | None = None
    address: Address | None = None
    topology: Callable[[str], tuple[str, ...]] = lambda node: ()
    max_failures: int = 3
    min_slots: int = 1
    lone_slots: tuple[str, ...] = ()
    lone_environment: Callable[[], Mapping[str, str]] = dict
    report_s: float = REPORT_S
    patience: Patience = Patience()
