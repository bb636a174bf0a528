"""Where samples come from: any position of an epoch's one global order, on any worker.

A *source* hands out the batches of given spans of positions. For map-style datasets the order is a permutation that
depends on the seed and the epoch only; what a dataset draws at random for a sample (augmentation) depends on the seed,
the epoch and the sample only. Streams (iterable datasets) have the order they come in: every worker reads all of it and
keeps its part.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from geminid.train import rng
from geminid.train.rng import mixed
from geminid.train.shares import Span

#: Codes of orders are summed up over workers as 32-bit floating-point numbers, exactly up to 2²⁴.
LARGEST_CODE = 4093

#: Spans of positions that one worker processes, one after the other: with the epoch's number, the source does the rest.
Spans = Iterable[Span]


class MapSource:
    """Samples that can be asked for by index."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._seed = seed
        self._sampler = loader.sampler
        self._epoch, self._order, self._code = -1, torch.empty(0, dtype=torch.int64), 0
        self._lists = _Lists()
        workers = loader.num_workers
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(loader.dataset, seed),
            batch_sampler=self._lists,
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # the user's generators are left alone, however often this one is asked
        )
        self._begun: Iterator[Any] | None = None
        length = len(loader.sampler)  # type: ignore[arg-type]
        self._length = length - length % loader.batch_size if loader.drop_last and loader.batch_size else length

    def length(self, epoch: int) -> int | None:
        """Samples in an epoch."""
        return self._length

    def begin(self, epoch: int, spans: Spans) -> None:
        """From now on, hand out the batches of these spans."""
        self._lists.turn_to(epoch, self._order_of(epoch), spans)
        self._begun = iter(self._loader)

    def batch(self, span: Span) -> Any:
        """The batch of the next span."""
        assert self._begun is not None
        return next(self._begun)

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples from a position on there are."""
        return max(0, min(count, self._length - begin))

    def _order_of(self, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            self._order, self._epoch = self._new_order(mixed(self._seed, epoch)), epoch
            self._code = zlib.crc32(self._order.numpy().tobytes()) % LARGEST_CODE
        return self._order

    def _new_order(self, seed: int) -> torch.Tensor:
        sampler = self._sampler
        if isinstance(sampler, SequentialSampler):
            return torch.arange(len(sampler))
        if isinstance(sampler, RandomSampler) and not sampler.replacement:
            whole = len(sampler.data_source)
            generator = torch.Generator().manual_seed(seed)
            rounds = -(-len(sampler) // whole)
            order = torch.cat([torch.randperm(whole, generator=generator) for _ in range(rounds)])
            return order[: len(sampler)]
        before = rng.states()
        try:
            rng.seed_data(seed)
            own = getattr(sampler, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(seed)
            return torch.as_tensor(list(sampler), dtype=torch.int64)
        finally:
            rng.restore(before)

    def order_code(self) -> int:
        """A small number that differs, most likely, where the epoch's order does."""
        return self._code


class StreamSource:
    """Samples that come in their own order, any number of them. Every worker must see the same stream."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset, self._workers = loader.dataset, loader.num_workers
        self._collate: Callable[[list[Any]], Any] = loader.collate_fn
        if loader.num_workers > 1:
            warnings.warn(
                f"an iterable dataset is read by one process, not {loader.num_workers}, to keep its order",
                stacklevel=4,
            )
        self._epoch, self._next = -1, 0
        self._stream: Iterator[Any] = iter(())
        self._buffer: list[Any] = []

    def length(self, epoch: int) -> int | None:
        """Nobody knows."""
        return None

    def begin(self, epoch: int, spans: Spans) -> None:
        """Be in this epoch."""
        if epoch != self._epoch:
            self._restart(epoch)

    def batch(self, span: Span) -> Any:
        """The batch of a span; the position never goes back by more than a step."""
        first = self._next - len(self._buffer)
        return self._collate(self._buffer[span[0] - first : span[1] - first])

    def order_code(self) -> int:
        """Nobody knows the order of a stream."""
        return 0

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples from a position on there are; they are read."""
        if epoch != self._epoch or begin < self._next - len(self._buffer):
            self._restart(epoch)
        while self._next < begin + count:
            try:
                self._buffer.append(next(self._stream))
            except StopIteration:
                break
            self._next += 1
            if self._next <= begin:
                self._buffer.clear()
        del self._buffer[: begin - (self._next - len(self._buffer))]
        return len(self._buffer)

    def _restart(self, epoch: int) -> None:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        one_by_one: DataLoader[Any] = DataLoader(
            self._dataset, batch_size=None, num_workers=min(self._workers, 1), generator=torch.Generator()
        )
        self._epoch, self._next, self._buffer, self._stream = epoch, 0, [], iter(one_by_one)


Source = MapSource | StreamSource


def source_of(loader: DataLoader[Any], seed: int) -> Source:
    """The source behind a user's loader.

    Raises:
        TypeError, ValueError: the loader does what only one process could do, or divides the data by itself.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"the loader must be a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        if loader.batch_size is None:
            raise ValueError("the loader has no batch_size: an iterable dataset must be batched by its loader")
        return StreamSource(loader)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ValueError("the loader has a batch_sampler of its own: pass batch_size= and a sampler instead")
    if isinstance(loader.sampler, DistributedSampler):
        raise ValueError("the loader has a DistributedSampler: leave it out, the data is divided by geminid")
    return MapSource(loader, seed)


class _Lists(Sampler[list[tuple[int, int]]]):
    """What the inner loader asks for: lists of (epoch, index), for whatever it was last turned to."""

    def __init__(self) -> None:
        self._epoch = 0
        self._order = torch.empty(0, dtype=torch.int64)
        self._spans: Spans = ()

    def turn_to(self, epoch: int, order: torch.Tensor, spans: Spans) -> None:
        self._epoch, self._order, self._spans = epoch, order, spans

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, order = self._epoch, self._order
        for begin, end in self._spans:
            yield [(epoch, index) for index in order[begin:end].tolist()]


class _Seeded(Dataset[Any]):
    """A dataset whose random draws for a sample depend on the seed, the epoch and the sample alone."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        inner = dataset
        while type(inner) is Subset:
            inner = inner.dataset
        self._draws_nothing = type(inner) is TensorDataset
        self._takes_lists = hasattr(dataset, "__getitems__") and type(dataset) is not Subset

    def __getitem__(self, key: tuple[int, int]) -> Any:
        """One sample."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> Any:
        dataset = self._dataset
        if self._draws_nothing:
            return [dataset[index] for _, index in keys]
        before = rng.states()
        try:
            if self._takes_lists:
                rng.seed_data(mixed(self._seed, *keys[0]))
                return dataset.__getitems__([index for _, index in keys])
            samples = []
            for epoch, index in keys:
                rng.seed_data(mixed(self._seed, epoch, index))
                samples.append(dataset[index])
            return samples
        finally:
            rng.restore(before)
