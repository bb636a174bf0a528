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

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from geminid.clock import Clock
from geminid.process.disk_full import keep_printing
from geminid.supervise import channel
from geminid.train.agent import Agent, Identity, NoSupervisor
from geminid.train.arguments import batch_limits, check_number, options_from, whole
from geminid.train.averaging import average_per_step, moving_average
from geminid.train.data import TrainingData, data_of
from geminid.train.indexed import GetBatch, IndexSource, draw
from geminid.train.loop import StepBatches
from geminid.train.peers import abandon_group
from geminid.train.script_end import ScriptEnd
from geminid.train.session import Session, make_session
from geminid.train.settings import Settings, Unit
from geminid.train.state_codec import check_saveable
from geminid.train.trained_parts import TrainedParts, gather_parts
from geminid.train.view import RunView

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
    check_number("checkpoint_every_s", checkpoint_every_s, "positive", lambda number: number > 0.0)
    whole("keep_checkpoints", keep_checkpoints)
    whole("seed", seed, least=None, most=None)
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
    options = options_from(environment.get(channel.OPTIONS))
    every_s = min(checkpoint_every_s, float(options.get("checkpoint_interval_s", checkpoint_every_s)))
    clock = Clock()
    return Run(
        agent=Agent(identity, clock, abandon_group) if identity is not None else NoSupervisor(clock),
        clock=clock,
        settings=Settings(seed, every_s, keep_checkpoints, saved_samples=channel.saved_samples(environment)),
        checkpoints=os.fspath(folder) if folder else None,
        reports=Path(reports) if reports else None,
        options=options,
    )


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


class Run(RunView):
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
        self._parts: TrainedParts | None = None
        self._user_state: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._callbacks: list[Callable[[], Any]] = []
        self._group_callbacks: list[Callable[[], Any]] = []
        self._looped = False
        self._script_end = ScriptEnd(agent, checkpoints)
        if agent.supervised or checkpoints is not None:
            self._script_end.watch()

    def prepare(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        loader: DataLoader[Any] | None = None,
        *,
        models: Mapping[str, nn.Module] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        max_batch_size: int | None = None,
        min_per_slot_batch: int | None = None,
        max_per_slot_batch: int | None = None,
        scaler: Any = None,
        lr_scheduler: Any = None,
        scaling_rule: str = "auto",
        warmup_epochs: float = 0.0,
    ) -> tuple[Any, ...]:
        """Make models, their optimisers and their loader elastic. Call it once, with the models on their device.

        The loader's batch size is the initial total batch size M0, which the learning rate was chosen for. Leave the
        loader out for a loop over ``run.steps``.

        Args:
            model: A plain module: not wrapped for distribution, not sharded.
            optimizer: Its optimiser.
            loader: The training data: map-style with any sampler but a batch sampler, or iterable.
            models: Several models by name, instead of ``model``.
            optimizers: Several optimisers by name, instead of ``optimizer``.
            max_batch_size: Largest total batch; without it, the total batch stays as it is.
            min_per_slot_batch: Smallest batch for one slot; by default 1, and 2 where the model has BatchNorm.
            max_per_slot_batch: Largest batch that fits in a slot's memory; by default the loader's batch size.
            scaler: The ``GradScaler``, if there is one.
            lr_scheduler: The learning-rate schedule, if there is one, or several by name. It advances by samples; call
                its ``step()`` where you always did, every batch or every epoch.
            scaling_rule: How the learning rate follows the batch size: ``adascale``, ``adamscale``, ``linear``,
                ``square_root``, ``legw``, ``none``, or ``auto`` (by the optimiser).
            warmup_epochs: LEGW's warm-up at the initial batch size.

        Returns:
            The same models and optimisers, and the loader to use instead, if one was given.
        """
        if self._parts is not None:
            raise RuntimeError(
                "run.prepare() has been called already: give it all models and optimizers at once, as models={...} "
                "and optimizers={...}"
            )
        check_number("warmup_epochs", warmup_epochs, "non-negative", lambda number: number >= 0.0)
        parts = gather_parts(
            model if models is None else models,
            optimizer if optimizers is None else optimizers,
            doubled=(model is not None and models is not None) or (optimizer is not None and optimizers is not None),
            scaler=scaler,
            lr_scheduler=lr_scheduler,
            scaling_rule=self._options.get("scaling_rule", scaling_rule),
            limits={
                "max_batch_size": max_batch_size,
                "min_per_slot_batch": min_per_slot_batch,
                "max_per_slot_batch": max_per_slot_batch,
            },
        )
        self._settings = replace(self._settings, scaling_rules=parts.scaling_rules, warmup_epochs=warmup_epochs)
        if loader is None:
            self._parts = parts
            return parts.given
        if not isinstance(loader, DataLoader):
            raise TypeError(f"the loader must be a torch.utils.data.DataLoader, not a {type(loader).__name__}")
        limits = batch_limits(loader.batch_size, parts.limits, self._options, fewest=parts.fewest)
        session = self._begin_session(parts, data_of(loader, self._settings.seed), limits)
        return (*parts.given, ElasticLoader(loader, session, limits.initial))

    def _begin_session(self, parts: TrainedParts, data: TrainingData, limits: Any) -> Session:
        session = make_session(
            parts.model,
            parts.optimizer,
            data,
            limits=limits,
            settings=self._settings,
            agent=self._agent,
            checkpoints=self._checkpoints,
            reports=self._reports,
            clock=self._clock,
            scaler=parts.scaler,
            lr_scheduler=parts.lr_scheduler,
        )
        session.step.callbacks.functions = self._callbacks
        session.step.callbacks.for_groups = self._group_callbacks
        self._parts, self._session, self._script_end.session = parts, session, session
        return session

    # ------------------------------------------------------------------------------------------- loops

    def epochs(self, count: int, *, by: Unit = "samples") -> Iterator[int]:
        """The numbers of the epochs that are left: use it as ``for epoch in run.epochs(90)``.

        With ``by="samples"`` an epoch is one pass over the data, and there are ``count`` of them, whatever the batch
        size. With ``by="progress"`` training ends when it has made the progress of ``count`` passes at the initial
        batch size, which takes more samples where batches are larger; the last pass then ends early.

        A script may leave the loop early (``break``): do so on all workers. The state of that moment is saved when the
        script has ended successfully. If it is run again, it continues with the rest of that epoch.
        """
        if self._parts is not None and self._session is None:
            raise RuntimeError("run.prepare() was given no loader: give it one, or use run.steps(...)")
        session = self._prepared()
        if self._looped:
            raise RuntimeError("run.epochs() has been called already: a run has one loop over epochs, with all of them")
        whole("the number of epochs", count, least=0)
        self._looped = True
        yield from self._rounds(session, count, by)

    def steps(self, total: int, batch_size: int, get_batch: GetBatch, *, by: Unit = "samples") -> Iterator[StepBatches]:
        """The steps that are left, for scripts without a Dataset and epochs. Leave the loader out of ``prepare``.

            for step in run.steps(total=600_000, batch_size=480, get_batch=get_batch):
                for x, y in step:
                    loss = model(x, y)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        Samples have numbers from 0 to ``total * batch_size - 1``. Each is used in exactly one step; a step has more
        than ``batch_size`` of them where the total batch grows. Do not divide the loss by the number of batches of a
        step: it varies, and gradients are averaged.

        Args:
            total: Steps at the initial batch size.
            batch_size: Samples per step, over all workers: M0, which the learning rate was chosen for.
            get_batch: Makes the batch of the samples with these numbers, a ``range``. It must depend on them alone:
                ``run.draw`` gives random numbers that do.
            by: As for ``run.epochs``.
        """
        if self._parts is None:
            raise RuntimeError("run.prepare() has not been called")
        if self._session is not None:
            given = "run.steps() has been called already" if self._looped else "run.prepare() was given a loader"
            raise RuntimeError(f"{given}: a run has one loop over epochs or steps, and its data from one place")
        samples = whole("total", total) * whole("batch_size", batch_size)
        limits = batch_limits(
            batch_size, self._parts.limits, self._options, fewest=self._parts.fewest, whose="batch_size"
        )
        data = TrainingData(IndexSource(get_batch, whole("total × batch_size", samples)), batch_size)
        session = self._begin_session(self._parts, data, limits)
        self._looped = True
        return self._steps(session, by)

    def _steps(self, session: Session, by: Unit) -> Iterator[StepBatches]:
        for _ in self._rounds(session, 1, by):
            yield from session.loop.steps()

    def _rounds(self, session: Session, count: int, by: Unit) -> Iterator[int]:
        """Rounds over the data, from where training is to its end."""
        if by not in ("samples", "progress"):
            raise ValueError(f"by is {by!r}: it must be 'samples' or 'progress'")
        session.worker.state.user = self._user_state
        session.reporter.metrics.update(self._metrics)
        self._metrics = session.reporter.metrics
        session.begin(count, by)
        while not session.progress.work_is_done:
            epoch = session.position.epoch
            try:
                yield epoch
            except GeneratorExit:  # the loop was left early, by choice or by a failure
                self._script_end.leave_loop(session, sys._getframe())
                raise
            session.loop.end_epoch(epoch)
        session.finish()

    # ------------------------------------------------------------------------------------------- within the loop

    def on_step(self, function: Callable[[], Any]) -> None:
        """Call a function after every step that the optimiser has taken, once, however many passes the step has.

        It is called when the body of the loop is through with the step, on every worker that took part in it: for
        moving averages, logging and schedules of one's own. What it changes must be given to ``run.state``.
        """
        self._callbacks.append(function)

    def on_group(self, function: Callable[[], Any]) -> None:
        """Call a function whenever ``run.rank`` and ``run.size`` may have changed: when a group has been formed."""
        self._group_callbacks.append(function)

    def ema(self, model: nn.Module, decay: float = 0.999, *, name: str = "ema") -> AveragedModel:
        """An exponential moving average of a model's weights and buffers, updated after every step.

        Where the total batch is a multiple of the initial one, the decay is raised to that power: the average covers
        the same number of samples. It is part of the state, under ``name``; use ``average.module`` to evaluate. Call
        this before the loop.
        """
        check_number("decay", decay, "non-negative (below 1)", lambda number: 0.0 <= number < 1.0)
        averaged = moving_average(model, decay, lambda: self._session.batch_growth if self._session else 1.0)
        self._keep_state(name, averaged)
        self.on_step(lambda: averaged.update_parameters(model))
        return averaged

    def accumulate(self) -> AbstractContextManager[None]:
        """``with run.accumulate():`` makes all ``backward()`` calls within it one gradient, averaged at its end.

        For bodies that divide their batch into parts of their own, or sum up several losses: clip and step after it.
        """
        return self._session.step.gradients.hold() if self._session is not None else nullcontext()

    def weight(self, count: float | torch.Tensor) -> None:
        """Weigh the batch under way by ``count`` instead of by its samples; call it before ``backward()``.

        Where the loss is an average over the tokens that are not padding, ``count`` is their number: the gradient of a
        step is then the average over all tokens of the step, on any number of workers. Call it for every batch.
        """
        number = float(count)
        check_number("the weight", number, "finite, non-negative", lambda one: 0.0 <= one < float("inf"))
        if self._session is not None:
            self._session.step.weigh(number)

    def draw(self, indices: Sequence[int], below: int) -> torch.Tensor:
        """A random whole number below ``below`` for each of the samples, by the seed and the sample's number alone."""
        return draw(indices, whole("below", below), self._settings.seed)

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
        place. An ``AveragedModel`` is from then on updated once per step, however often the body updates it.
        """
        self._keep_state(name, value)
        if isinstance(value, AveragedModel):
            average_per_step(value, lambda: self.in_effect)
        return value

    def _keep_state(self, name: str, value: Any) -> None:
        if not (hasattr(value, "load_state_dict") or isinstance(value, dict | list)):
            raise TypeError(f"the state {name!r} is a {type(value).__name__}: it needs a state_dict, or must be a dict")
        if name in self._user_state:
            raise ValueError(f"the state {name!r} was given before")
        if self._agent.supervised or self._checkpoints is not None:
            check_saveable(value.state_dict() if hasattr(value, "state_dict") else value, f"run.state({name!r})")
        self._user_state[name] = value

    def agree(self, value: Any) -> Any:
        """The leader's ``value`` on all workers: for decisions by what only the leader knows, such as to stop early.

        Call it on all workers, after the loop over batches (with ``run.steps``: before it). The value is anything that
        JSON has: a number, a string, a list or a dict. The other workers' values are ignored, unless the leader is lost
        meanwhile.
        """
        return self._prepared().collectives.agree(value)

    def gather(self, value: Any) -> list[Any]:
        """The ``value`` of every worker, by rank: to combine partial results, such as those of an evaluation.

        Call it on all workers, where ``run.agree`` may be called. A value is anything that JSON has. If a worker is
        lost meanwhile, its value is missing.
        """
        return self._prepared().collectives.gather(value)
