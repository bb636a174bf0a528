"""Hugging Face Accelerate's ``Accelerator`` over a ``Run``: one script, one process per slot, resized while it trains.

To Accelerate every worker is a process of its own that is not distributed. Whatever concerns several workers is done
here instead: dividing the data, averaging gradients, gathering results, and saying which process is the main one.

The loader's batch size times ``gradient_accumulation_steps`` is the initial total batch M0; the loader's batch size is
the most that a slot gets at a time. In how many passes a step is made is the batch plan's business, so losses are not
divided, and ``sync_gradients`` is true where a step takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from accelerate import Accelerator as PlainAccelerator
from accelerate import PartialState
from accelerate.utils import find_batch_size, recursively_apply, send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from geminid.train import run as runs
from geminid.train.data import with_batch_size


class TrainingLoader:
    """The training data: this worker's batches, on its device. ``own`` is the script's loader."""

    def __init__(self, loader: Any, own: DataLoader[Any], device: torch.device) -> None:
        self._loader, self._own, self._device = loader, own, device
        self.dataset, self.batch_size = own.dataset, own.batch_size

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch, for this worker."""
        for batch in self._loader:
            yield send_to_device(batch, self._device)

    def __len__(self) -> int:
        """Batches of the script's own size, from which scripts compute steps: ``gradient_accumulation_steps`` each."""
        return len(self._own)


class EvaluationLoader:
    """Data that is not trained on: every batch is divided over the workers, in equal parts.

    Where a batch cannot be divided equally, the last parts repeat its last sample; ``gather_for_metrics`` removes the
    repetitions.
    """

    def __init__(self, loader: DataLoader[Any], accelerator: Accelerator) -> None:
        self._loader, self._accelerator = loader, accelerator
        self.dataset, self.batch_size = loader.dataset, loader.batch_size

    def __iter__(self) -> Iterator[Any]:
        """This worker's part of every batch."""
        accelerator = self._accelerator
        for batch in self._loader:
            whole = find_batch_size(batch)
            accelerator.evaluated = whole
            if whole is not None and accelerator.num_processes > 1:
                batch = recursively_apply(part_of(whole, accelerator.process_index, accelerator.num_processes), batch)
            yield send_to_device(batch, accelerator.device)
        accelerator.evaluated = None

    def __len__(self) -> int:
        """Batches, whatever the number of workers."""
        return len(self._loader)


def part_of(whole: int, rank: int, size: int) -> Callable[[Tensor], Tensor]:
    """Takes a worker's part out of a tensor with ``whole`` rows: all parts have as many rows."""
    rows = ceil(whole / size)
    index = torch.arange(rank * rows, (rank + 1) * rows).clamp(max=whole - 1)
    return lambda tensor: tensor[index.to(tensor.device)] if tensor.dim() and len(tensor) == whole else tensor


class Accelerator(PlainAccelerator):  # type: ignore[misc] # the library has no types
    """An ``accelerate.Accelerator`` whose number of processes changes while it trains.

    ``run`` is the run behind it. ``evaluated`` is how many samples the batch of an evaluation has, over all workers.
    """

    def __init__(
        self,
        *args: Any,
        gradient_accumulation_steps: int = 1,
        max_batch_size: int | None = None,
        max_per_slot_batch: int | None = None,
        **kwargs: Any,
    ) -> None:
        """As for ``accelerate.Accelerator``; ``max_batch_size`` and ``max_per_slot_batch`` as for ``run.prepare``."""
        super().__init__(*args, **kwargs)
        if self.mixed_precision == "fp16":
            raise ValueError("mixed_precision is 'fp16', which geminid.accelerate does not support: use 'bf16'")
        self._accumulation = gradient_accumulation_steps
        self._max_batch_size, self._max_per_slot_batch = max_batch_size, max_per_slot_batch
        self.run = runs.init()
        self.run.on_group(self._take_place)
        self.evaluated: int | None = None
        self._is_prepared = False
        self._tracking: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Make models, optimisers, the training loader, schedules and evaluation loaders elastic, in one call.

        The first loader is the one to train with.
        """
        if self._is_prepared:
            if any(isinstance(one, nn.Module | Optimizer) for one in args):
                raise RuntimeError(
                    "accelerator.prepare() has been called already: give it all models and optimizers at once"
                )
            others = tuple(self._prepared_later(one) for one in args)
            return others if len(others) != 1 else others[0]
        models = {str(i): self.prepare_model(one) for i, one in enumerate(args) if isinstance(one, nn.Module)}
        optimizers = {str(i): one for i, one in enumerate(args) if isinstance(one, Optimizer)}
        loaders = [one for one in args if isinstance(one, DataLoader)]
        schedules = {str(i): one for i, one in enumerate(args) if _is_schedule(one)}
        if not (models and optimizers and loaders):
            raise ValueError(
                "accelerator.prepare() needs the models, their optimizers and the training loader in one call"
            )
        per_slot = loaders[0].batch_size
        *_, elastic = self.run.prepare(
            **_one_or_several("model", models),
            **_one_or_several("optimizer", optimizers),
            loader=with_batch_size(loaders[0], (per_slot or 1) * self._accumulation),
            lr_scheduler=schedules or None,
            max_batch_size=self._max_batch_size,
            max_per_slot_batch=self._max_per_slot_batch or per_slot,
        )
        self._is_prepared, training = True, TrainingLoader(elastic, loaders[0], self.device)
        return tuple(
            training if one is loaders[0] else models.get(str(i)) or self._prepared_later(one)
            for i, one in enumerate(args)
        )

    def _prepared_later(self, one: Any) -> Any:
        """What replaces an argument of ``prepare`` that is not trained, or not trained with."""
        return EvaluationLoader(one, self) if isinstance(one, DataLoader) else one

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left: use it as ``for epoch in accelerator.epochs(3)``."""
        yield from self.run.epochs(count)

    # ------------------------------------------------------------------------------------------- steps and passes

    @property
    def sync_gradients(self) -> bool:
        """Whether ``optimizer.step()`` takes effect with the batch under way."""
        return self.run.in_effect

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Nothing to do: gradients are accumulated over the passes of a step anyway."""
        yield

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Keep these objects' state over rescales and restarts."""
        for one in objects:
            self.run.state(f"registered {len(self._custom_objects)}", one)
            self._custom_objects.append(one)

    # ------------------------------------------------------------------------------------------- several workers

    def gather(self, tensor: Any) -> Any:
        """The tensors of all workers, one after the other. Call it on all workers, after the loop over batches."""
        if self.run.size == 1:
            return tensor
        return recursively_apply(self._gathered, tensor, error_on_other_type=True)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """The results of all workers for a batch of an evaluation loader, each sample once."""
        if self.run.size == 1:
            return input_data
        whole = self.evaluated
        return recursively_apply(lambda tensor: self._gathered(tensor)[:whole], input_data, error_on_other_type=True)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The sum or mean over all workers. Call it on all workers, after the loop over batches."""

        def reduced(one: Tensor) -> Tensor:
            everyones = self._gathered(one.unsqueeze(0))
            return (everyones.mean(0) if reduction == "mean" else everyones.sum(0)) * scale

        return recursively_apply(reduced, tensor, error_on_other_type=True) if self.run.size > 1 else tensor

    def wait_for_everyone(self) -> None:
        """Wait until all workers are here, where they train together."""
        if self.run.training and not self.run.in_loop:
            self.run.gather(None)

    def _gathered(self, tensor: Tensor) -> Tensor:
        rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
        everyones = self.run.gather(rows.cpu().tolist())
        shape = (-1, *rows.shape[1:])
        return torch.cat([torch.tensor(one, dtype=rows.dtype).reshape(shape) for one in everyones]).to(rows.device)

    def _take_place(self) -> None:
        """The group has changed: Accelerate's own functions ask its state who the main process is."""
        for state in (PartialState(), self.state):
            state.process_index = state.local_process_index = self.run.rank
            state.num_processes = self.run.size
        self._begin_tracking()

    # ------------------------------------------------------------------------------------------- trackers

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Begin to track the experiment, on the main process alone: which that is, is known when training begins."""
        self._tracking = (args, kwargs)
        if self.run.training:
            self._begin_tracking()

    def _begin_tracking(self) -> None:
        if self._tracking is not None and self.run.is_leader and not self.trackers:
            args, kwargs = self._tracking
            super().init_trackers(*args, **kwargs)


def _is_schedule(one: Any) -> bool:
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    return isinstance(one, kinds)


def _one_or_several(name: str, named: dict[str, Any]) -> dict[str, Any]:
    return {name: next(iter(named.values()))} if len(named) == 1 else {f"{name}s": named}
