"""What a training script uses: ``geminid.init()``, and the ``Run`` that it returns.

    import geminid

    run = geminid.init()
    model, optimizer, loader = run.prepare(model, optimizer, loader, max_batch_size=4096)
    for epoch in run.epochs(90):
        for x, y in loader:
            ...  # as it was

Under a plain ``python`` this trains in one process. Under a scheduler the same script becomes one of several workers,
whose number changes while it runs.
"""

from __future__ import annotations

import atexit
import dis
import inspect
import json
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from geminid.clock import Clock
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.learning_rate import RULES
from geminid.process.disk_full import keep_printing
from geminid.supervise import channel, protocol
from geminid.train.agent import Agent, Identity, NoSupervisor
from geminid.train.optim import check_helpers, check_model, fewest_samples, rule_for, warn_of_parameters_left_out
from geminid.train.peers import abandon_group
from geminid.train.session import Session, make_session
from geminid.train.settings import Settings, Unit
from geminid.train.shutdown import STOPPED_EXIT_CODE
from geminid.train.state_codec import check_saveable
from geminid.train.storage import AllDamaged, reason

#: The options that a supervisor may override, by their names in a job file.
OPTIONS = (
    *("initial_batch_size", "max_batch_size", "min_per_slot_batch", "max_per_slot_batch"),
    *("scaling_rule", "checkpoint_interval_s"),
)


#: Set for plain commands that the service runs: how many slots they have.
SLOT_COUNT = "GEMINID_SLOT_COUNT"


def init(
    *,
    seed: int = 0,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 60.0,
    keep_checkpoints: int = 3,
) -> Run:
    """Begin a run: call this first.

    Args:
        seed: Determines the order of the data, and what datasets draw at random.
        checkpoint_dir: Where a run without a scheduler keeps checkpoints; without it, there are none.
        checkpoint_every_s: Seconds between two checkpoints; a scheduler may order more. They are written in the
            background.
        keep_checkpoints: How many checkpoints to keep.
    """
    _number("checkpoint_every_s", checkpoint_every_s, "positive", lambda number: number > 0.0)
    _whole("keep_checkpoints", keep_checkpoints)
    _whole("seed", seed, least=None, most=None)
    environment = os.environ
    identity = Identity.from_environment(environment)
    if "RANK" in environment and environment.get("WORLD_SIZE", "1") not in ("", "1"):
        raise RuntimeError(
            f"WORLD_SIZE is {environment['WORLD_SIZE']}: a launcher such as torchrun has started this process, and "
            "each of its processes would train alone; use 'geminid submit -- python …', or a plain 'python'"
        )
    for own in (channel.CONTROL, channel.TOKEN, channel.LONE):  # not for the processes that this one starts
        environment.pop(own, None)
    if identity is not None:
        keep_printing()
    elif SLOT_COUNT in environment:
        print(
            "geminid: warning: this job was submitted as a plain command, so this script trains alone in one process "
            "and is not resized; submit it with --kind elastic, with the script as its command",
            file=sys.stderr,
            flush=True,
        )
    folder = environment.get(channel.CHECKPOINTS) or checkpoint_dir
    reports = environment.get(channel.REPORTS)
    options = _options(environment.get(channel.OPTIONS))
    every_s = min(checkpoint_every_s, float(options.get("checkpoint_interval_s", checkpoint_every_s)))
    clock = Clock()
    return Run(
        agent=Agent(identity, clock, abandon_group) if identity is not None else NoSupervisor(clock),
        clock=clock,
        settings=Settings(seed=seed, checkpoint_every_s=every_s, keep_checkpoints=keep_checkpoints),
        checkpoints=os.fspath(folder) if folder else None,
        reports=Path(reports) if reports else None,
        options=options,
    )


def _whole(name: str, value: Any, least: int | None = 1, most: int | None = protocol.LARGEST_COUNT) -> int:
    """The value, if it is a whole number within the bounds.

    Raises:
        ValueError: it is not.
    """
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if number is None or (least is not None and number < least):
        enough = f" of at least {least}" if least is not None else ""
        raise ValueError(f"{name} is {value!r}: it must be a whole number{enough}")
    if most is not None and number > most:
        raise ValueError(f"{name} is larger than {most:,}: it must be a whole number of at most that")
    return number


def _number(name: str, value: Any, kind: str, fits: Callable[[float], bool]) -> None:
    """Check that a value is a number of some kind.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int | float) or not fits(value):
        raise ValueError(f"{name} is {value!r}: it must be a {kind} number")


def _options(text: str | None) -> dict[str, Any]:
    options = json.loads(text) if text else {}
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise ValueError(f"{channel.OPTIONS} has {min(unknown)!r}: known are {', '.join(OPTIONS)}")
    return {name: value for name, value in options.items() if value is not None}


class ElasticLoader:
    """Replaces the user's loader: hands out this worker's part of every step."""

    def __init__(self, loader: DataLoader[Any], session: Session, initial_batch: int) -> None:
        self._loader, self._session = loader, session
        self.dataset = loader.dataset
        self.batch_size = initial_batch

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch, for this worker."""
        return self._session.loop.batches()

    def __len__(self) -> int:
        """Steps of an epoch at the initial batch size: what schedules are made for."""
        return len(self._loader)

    @property
    def step_samples(self) -> int:
        """Samples that all workers together process in the step under way."""
        return self._session.step.samples


class Run:
    """One training run; created by ``geminid.init``."""

    def __init__(
        self,
        *,
        agent: NoSupervisor,
        clock: Clock,
        settings: Settings,
        checkpoints: Path | str | None,
        reports: Path | None,
        options: dict[str, Any],
    ) -> None:
        self._agent, self._clock, self._settings, self._options = agent, clock, settings, options
        self._checkpoints, self._reports = checkpoints, reports
        self._session: Session | None = None
        self._user_state: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._failed = self._left_early = self._looped = False
        self._loop_frame: FrameType | None = None
        if agent.supervised or checkpoints is not None:
            self._notice_failure()
            atexit.register(self._end)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        max_batch_size: int | None = None,
        min_per_slot_batch: int | None = None,
        max_per_slot_batch: int | None = None,
        scaler: Any = None,
        lr_scheduler: Any = None,
        scaling_rule: str = "auto",
        warmup_epochs: float = 0.0,
    ) -> tuple[nn.Module, Optimizer, ElasticLoader]:
        """Make a model, its optimiser and its loader elastic. Call it once, with the model on its device.

        The loader's batch size is the initial total batch size M0, which the learning rate was chosen for.

        Args:
            model: A plain module: not wrapped for distribution, not sharded.
            optimizer: Its optimiser. ``step(closure)`` is not supported.
            loader: The training data: map-style with any sampler but a batch sampler, or iterable.
            max_batch_size: Largest total batch; without it, the total batch stays as it is.
            min_per_slot_batch: Smallest batch for one slot; by default 1, and 2 where the model has BatchNorm.
            max_per_slot_batch: Largest batch that fits in a slot's memory; by default the loader's batch size.
            scaler: The ``GradScaler``, if there is one.
            lr_scheduler: The learning-rate schedule, if there is one. It advances by samples; call its ``step()``
                where you always did, every batch or every epoch.
            scaling_rule: How the learning rate follows the batch size: ``adascale``, ``adamscale``, ``linear``,
                ``square_root``, ``legw``, ``none``, or ``auto`` (by the optimiser).
            warmup_epochs: LEGW's warm-up at the initial batch size.

        Returns:
            The same model and optimiser, and the loader to use instead.
        """
        if self._session is not None:
            raise RuntimeError("run.prepare() has been called already: a run has one model, optimizer and loader")
        check_model(model)
        check_helpers(scaler, lr_scheduler)
        _number("warmup_epochs", warmup_epochs, "non-negative", lambda number: number >= 0.0)
        warn_of_parameters_left_out(model, optimizer)
        rule = self._options.get("scaling_rule", scaling_rule)
        rule = rule_for(optimizer) if rule == "auto" else rule
        if rule not in RULES:
            raise ValueError(f"scaling_rule is {rule!r}: it must be one of auto, {', '.join(RULES)}")
        limits = self._limits(loader, max_batch_size, min_per_slot_batch, max_per_slot_batch, fewest_samples(model))
        self._session = make_session(
            model,
            optimizer,
            loader,
            limits=limits,
            settings=replace(self._settings, scaling_rule=rule, warmup_epochs=warmup_epochs),
            agent=self._agent,
            checkpoints=self._checkpoints,
            reports=self._reports,
            clock=self._clock,
            scaler=scaler,
            lr_scheduler=lr_scheduler,
        )
        return model, optimizer, ElasticLoader(loader, self._session, limits.initial)

    def _limits(
        self,
        loader: DataLoader[Any],
        largest: int | None,
        smallest_per_slot: int | None,
        largest_per_slot: int | None,
        fewest: int,
    ) -> BatchLimits:
        own = self._options
        if not isinstance(loader, DataLoader):
            raise TypeError(f"the loader must be a torch.utils.data.DataLoader, not a {type(loader).__name__}")
        initial = own.get("initial_batch_size", loader.batch_size)
        if initial is None:
            raise ValueError("the loader has no batch_size: it must have one, which the learning rate was chosen for")
        largest = own.get("max_batch_size", largest)
        largest = initial if largest is None else _whole("max_batch_size", largest)
        if largest < initial:
            raise ValueError(f"max_batch_size is {largest}: it must be at least the loader's batch_size, {initial}")
        largest_per_slot = own.get("max_per_slot_batch", largest_per_slot)
        if largest_per_slot is not None:
            _whole("max_per_slot_batch", largest_per_slot)
        smallest_per_slot = own.get("min_per_slot_batch", smallest_per_slot)
        if smallest_per_slot is None:
            smallest_per_slot = min(fewest, initial, largest_per_slot or fewest)
        most = largest if largest_per_slot is None else min(largest, largest_per_slot)
        if _whole("min_per_slot_batch", smallest_per_slot) > most:
            raise ValueError(
                f"min_per_slot_batch is {smallest_per_slot}: it must be at most {most}, the largest batch for one slot"
            )
        return BatchLimits(
            initial=initial,
            largest=largest,
            smallest_per_slot=smallest_per_slot,
            largest_per_slot=max(initial, smallest_per_slot) if largest_per_slot is None else largest_per_slot,
        )

    def epochs(self, count: int, *, by: Unit = "samples") -> Iterator[int]:
        """The numbers of the epochs that are left: use it as ``for epoch in run.epochs(90)``.

        With ``by="samples"`` an epoch is one pass over the data, and there are ``count`` of them, whatever the batch
        size. With ``by="progress"`` training ends when it has made the progress of ``count`` passes at the initial
        batch size, which takes more samples where batches are larger; the last pass then ends early.

        A script may leave the loop early (``break``): do so on all workers. The state of that moment is saved when the
        script has ended successfully. If it is run again, it continues with the rest of that epoch.
        """
        session = self._prepared()
        if self._looped:
            raise RuntimeError("run.epochs() has been called already: a run has one loop over epochs, with all of them")
        _whole("the number of epochs", count, least=0)
        if by not in ("samples", "progress"):
            raise ValueError(f"by is {by!r}: it must be 'samples' or 'progress'")
        self._looped = True
        session.worker.state.user = self._user_state
        session.reporter.metrics.update(self._metrics)
        self._metrics = session.reporter.metrics
        session.begin(count, by)
        while not session.progress.work_is_done:
            epoch = session.position.epoch
            try:
                yield epoch
            except GeneratorExit:  # the loop was left early, by choice or by a failure
                self._left_early, self._loop_frame = session.leave(), _calling_frame(sys._getframe())
                raise
            session.loop.end_epoch(epoch)
        session.finish()

    def report(self, **metrics: Any) -> None:
        """Report metrics to the scheduler, or to the report file: numbers or scalar tensors, such as ``loss=``.

        Cheap: only the newest values are kept, and read about once a second.
        """
        if self._session is not None:
            self._session.worker.watch.show_life()
        self._metrics.update(
            {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in metrics.items()}
        )

    def state(self, name: str, value: Any) -> Any:
        """Preserve further state over rescales and restarts; returns it. Call it before the loop over epochs.

        ``value`` has ``state_dict`` and ``load_state_dict``, or is a dict or list of plain values, which is restored in
        place.
        """
        if not (hasattr(value, "load_state_dict") or isinstance(value, dict | list)):
            raise TypeError(f"the state {name!r} is a {type(value).__name__}: it needs a state_dict, or must be a dict")
        if name in self._user_state:
            raise ValueError(f"the state {name!r} was given before")
        if self._agent.supervised or self._checkpoints is not None:
            check_saveable(value.state_dict() if hasattr(value, "state_dict") else value, f"run.state({name!r})")
        self._user_state[name] = value
        return value

    def agree(self, value: Any) -> Any:
        """The leader's ``value`` on all workers: for decisions by what only the leader knows, such as to stop early.

        Call it on all workers, after the loop over batches. The value is anything that JSON has: a number, a string, a
        list or a dict. The other workers' values are ignored, unless the leader is lost meanwhile.
        """
        return self._prepared().collectives.agree(value)

    def gather(self, value: Any) -> list[Any]:
        """The ``value`` of every worker, by rank: to combine partial results, such as those of an evaluation.

        Call it on all workers, after the loop over batches. A value is anything that JSON has. If a worker is lost
        meanwhile, its value is missing.
        """
        return self._prepared().collectives.gather(value)

    @property
    def is_leader(self) -> bool:
        """Whether this is the first worker: the one to print, evaluate and save."""
        return self._session is None or self._session.group.rank == 0

    @property
    def rank(self) -> int:
        """This worker's number, from 0; it may change at a rescale."""
        return self._session.group.rank if self._session is not None else 0

    @property
    def size(self) -> int:
        """Number of workers; it may change at a rescale."""
        return self._session.group.size if self._session is not None else 1

    @property
    def device(self) -> torch.device:
        """Where to put the model and the batches."""
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    @property
    def step(self) -> int:
        """Optimiser steps taken so far."""
        return self._session.position.step if self._session is not None else 0

    @property
    def stepped(self) -> bool:
        """Whether ``optimizer.step()`` has taken effect with the batch under way.

        The body of the loop over batches runs once per pass. Where a step has several passes, this is true in the last
        of them, after ``optimizer.step()``: use it for work that is done once per step.
        """
        step = self._session.step if self._session is not None else None
        return step is not None and step.share is not None and step.stepped

    @property
    def progress(self) -> float:
        """Useful samples so far."""
        return self._session.position.progress if self._session is not None else 0.0

    @property
    def batch_plan(self) -> protocol.Plan:
        """The batch plan in use."""
        return self._prepared().step.current.plan

    @property
    def learning_rate_factors(self) -> list[float]:
        """What the learning rate of each parameter group is multiplied by at the batch size in use."""
        return list(self._prepared().step.current.choice.factors)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None while unknown."""
        worker = self._prepared().worker
        noise = worker.state.meter.estimate
        return noise.stats().noise_scale(worker.limits.initial) if noise.known else None

    @property
    def noise_interval(self) -> int:
        """Every how many steps the gradient noise is measured."""
        return self._prepared().worker.state.meter.interval

    def measure_noise(self, wanted: bool) -> None:
        """Whether to measure the gradient noise; do the same on all workers."""
        self._prepared().worker.state.meter.enabled = wanted

    def _prepared(self) -> Session:
        if self._session is None:
            raise RuntimeError("run.prepare() has not been called")
        return self._session

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Save and stop at the next boundary; at once if training has not begun."""
        self._agent.orders.terminated = True
        if self._session is None or not self._session.progress.training:
            raise SystemExit(STOPPED_EXIT_CODE)

    def _end(self) -> None:
        """The script has ended: save if its loop was left by choice, report the end of training, and disconnect."""
        failure = self._conclude() if self._session is not None and not self._failed else None
        if failure is not None:
            print(f"geminid: error: {failure}", file=sys.stderr, flush=True)
            self._agent.send(protocol.Failed(reason=failure))
        self._agent.close()
        if failure is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the only way to make a script fail that has ended

    def _conclude(self) -> str | None:
        """Save what is unsaved and report the end of training; the reason, if that failed."""
        session = self._prepared()
        saver = session.worker.saver
        problem = saver.save_kept() if saver is not None else None
        if problem is not None:
            return f"the last state was not saved in {self._checkpoints}: {reason(problem)}"
        try:
            if self._left_early:
                session.end_early(cut_short=_was_raised_through(self._loop_frame))
        except RuntimeError as different:
            return str(different)
        return None

    def _notice_failure(self) -> None:
        """Report an exception that ends the script to the supervisor, besides the usual traceback."""
        usual = sys.excepthook

        def hook(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            lines = str(problem).strip().splitlines()
            what = f"{kind.__name__}: {lines[0][:300]}" if lines else kind.__name__
            hold = isinstance(problem, AllDamaged)
            self._agent.send(protocol.Failed(reason=lines[0] if hold else what, hold=hold))
            usual(kind, problem, trace)

        sys.excepthook = hook


def _calling_frame(generator: FrameType) -> FrameType | None:
    """The frame of the loop over a generator; generators in between are skipped."""
    frame = generator.f_back
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    return frame


def _was_raised_through(frame: FrameType | None) -> bool:
    """Whether a frame that has ended was left by an exception (such as SystemExit)."""
    if frame is None:
        return False
    return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
