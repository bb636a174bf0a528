"""Where samples come from: any position of an epoch's one global order, on any worker.

A *source* hands out the batches of given spans of positions. For map-style datasets the order is a permutation that
depends on the seed and the epoch only; what a dataset draws at random for a sample (augmentation) depends on the seed,
the epoch and the sample only, and what a collate function draws on the seed, the epoch and where the batch begins.
Streams (iterable datasets) have the order they come in: every worker reads all of it and keeps its part. What they draw
depends on the seed and the epoch only, so that all workers read the same.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory

from geminid.train import rng
from geminid.train.rng import mixed, mixed_with_each
from geminid.train.shares import Span

#: Hash codes are smaller than this: their sums over workers, 32-bit floating-point numbers, are exact up to 2²⁴.
LARGEST_CODE = 4093

#: Spans of positions that one worker processes, one after the other.
Spans = Iterable[Span]

#: Mixed into the seed of a collate function, so that it does not draw what a sample drew.
COLLATING = 1


class MapSource:
    """Samples of a map-style dataset, which are fetched by index."""

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
            collate_fn=_Collate(loader.collate_fn, seed),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(mixed(seed)),  # the user's generators are left alone
        )
        self._begun: Iterator[Any] | None = None
        length = len(loader.sampler)  # type: ignore[arg-type]
        self._length = length - length % loader.batch_size if loader.drop_last and loader.batch_size else length

    def length(self, epoch: int) -> int | None:
        """Samples in an epoch."""
        return self._length

    def begin(self, epoch: int, spans: Spans) -> None:
        """From now on, hand out the batches of these spans."""
        self._lists.use(epoch, self._order_of(epoch), spans)
        self._begun = iter(self._loader)

    def batch(self, span: Span) -> Any:
        """The batch of the next span."""
        assert self._begun is not None
        return next(self._begun)

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples there are from a position on."""
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
        with _own_draws():
            _seed_with_own(sampler, seed)
            return torch.as_tensor(list(sampler), dtype=torch.int64)

    def order_code(self) -> int:
        """A hash code of the epoch's order."""
        return self._code


class StreamSource:
    """Samples of a stream, in the order in which they come. Every worker must see the same stream."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._loader, self._seed = loader, seed
        self._collate = _Collate(loader.collate_fn, seed)
        self._whole = loader.batch_size if loader.drop_last and loader.batch_size else 1
        self._pins = loader.pin_memory and torch.accelerator.is_available()
        if loader.num_workers > 1:
            warnings.warn(
                f"an iterable dataset is read by one process, not {loader.num_workers}, to keep its order",
                stacklevel=4,
            )
        self._epoch, self._next = -1, 0
        self._stream: Iterator[Any] = iter(())
        self._buffer: list[Any] = []
        self._draws: dict[str, Any] | None = None

    def length(self, epoch: int) -> int | None:
        """Unknown for a stream."""
        return None

    def begin(self, epoch: int, spans: Spans) -> None:
        """Move to this epoch."""
        if epoch != self._epoch:
            self._restart(epoch)

    def batch(self, span: Span) -> Any:
        """The batch of a span, which begins at most one step before the last one."""
        first = self._next - len(self._buffer)
        samples = self._buffer[span[0] - first : span[1] - first]
        batch = self._collate(_Fetched(self._epoch, span[0], samples))
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    def order_code(self) -> int:
        """The order of a stream is not known."""
        return 0

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples there are from a position on; this reads them."""
        if epoch != self._epoch or begin < self._next - len(self._buffer):
            self._restart(epoch)
        whole = self._whole  # with drop_last, only whole batches count: read to the end of the last one
        self._read(-(-(begin + count) // whole) * whole, begin)
        end = min(begin + count, self._next - self._next % whole)
        return max(0, end - begin)

    def _read(self, end: int, begin: int) -> None:
        """Read the samples between two positions into the buffer, as far as the stream goes."""
        with _own_draws():
            if self._draws is not None:
                rng.restore(self._draws)
            while self._next < end:
                try:
                    self._buffer.append(next(self._stream))
                except StopIteration:
                    break
                self._next += 1
                if self._next <= begin:
                    self._buffer.clear()
            self._draws = rng.states()
        del self._buffer[: max(0, begin - (self._next - len(self._buffer)))]

    def _restart(self, epoch: int) -> None:
        """Start the stream again; what it draws from now on depends on the seed and the epoch."""
        user, seed = self._loader, mixed(self._seed, epoch)
        workers = min(user.num_workers, 1)
        if hasattr(user.dataset, "set_epoch"):
            user.dataset.set_epoch(epoch)
        with _own_draws():
            _seed_with_own(user.dataset, seed)
            one_by_one: DataLoader[Any] = DataLoader(
                user.dataset,
                batch_size=None,
                num_workers=workers,
                collate_fn=_unchanged,
                timeout=user.timeout,
                worker_init_fn=user.worker_init_fn,
                multiprocessing_context=user.multiprocessing_context,
                prefetch_factor=(user.prefetch_factor or 2) * (user.batch_size or 1) if workers else None,
                generator=torch.Generator().manual_seed(seed),
            )
            self._epoch, self._next, self._buffer, self._stream = epoch, 0, [], iter(one_by_one)
            self._draws = rng.states()


class Source(Protocol):
    """Hands out the batches of given spans of positions."""

    def length(self, epoch: int) -> int | None:
        """Samples in an epoch, if known."""

    def begin(self, epoch: int, spans: Spans) -> None:
        """From now on, hand out the batches of these spans."""

    def batch(self, span: Span) -> Any:
        """The batch of the next span."""

    def available(self, epoch: int, begin: int, count: int) -> int:
        """How many of ``count`` samples there are from a position on."""

    def order_code(self) -> int:
        """A hash code of the epoch's order."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A source, the batch size that schedules are made for, and how many such batches an epoch has, if known."""

    source: Source
    batch_size: int
    batches: int | None = None


def with_batch_size(loader: DataLoader[Any], batch_size: int) -> DataLoader[Any]:
    """The same data in batches of another size; a loader that has no batch size of its own as it is."""
    if loader.batch_size in (None, batch_size) or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=batch_size,
        sampler=None if isinstance(loader.dataset, IterableDataset) else loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )


def data_of(loader: DataLoader[Any], seed: int) -> TrainingData:
    """The data behind a user's loader; raises what ``source_of`` does."""
    source = source_of(loader, seed)
    try:
        batches = len(loader)
    except TypeError:
        batches = None
    return TrainingData(source, loader.batch_size or 1, batches)


def source_of(loader: DataLoader[Any], seed: int) -> MapSource | StreamSource:
    """The source behind a user's loader.

    Raises:
        TypeError, ValueError: the loader cannot be spread over workers, or divides the data by itself.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"the loader must be a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        if loader.batch_size is None:
            raise ValueError("the loader has no batch_size: an iterable dataset must be batched by its loader")
        return StreamSource(loader, seed)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ValueError("the loader has a batch_sampler of its own: pass batch_size= and a sampler instead")
    if isinstance(loader.sampler, DistributedSampler):
        raise ValueError("the loader has a DistributedSampler: leave it out, the data is divided by geminid")
    return MapSource(loader, seed)


class _Wanted(NamedTuple):
    """The samples of a span: where it begins in an epoch's order, and the samples' indices."""

    epoch: int
    begin: int
    indices: list[int]


class _Fetched(NamedTuple):
    """The samples of a span, as the dataset returns them."""

    epoch: int
    begin: int
    samples: Any


class _Lists(Sampler[Any]):
    """Gives the inner loader the indices of one span after the other."""

    def __init__(self) -> None:
        self._epoch = 0
        self._order = torch.empty(0, dtype=torch.int64)
        self._spans: Spans = ()

    def use(self, epoch: int, order: torch.Tensor, spans: Spans) -> None:
        self._epoch, self._order, self._spans = epoch, order, spans

    def __iter__(self) -> Iterator[_Wanted]:
        epoch, order = self._epoch, self._order
        for begin, end in self._spans:
            yield _Wanted(epoch, begin, order[begin:end].tolist())


class _Seeded(Dataset[Any]):
    """A dataset whose random draws for a sample depend on the seed, the epoch and the sample alone.

    Where it fetches lists of samples by itself: on the seed, the epoch and where the list begins.

    Seeding takes longer than many datasets take for a sample, so only those generators are seeded that the dataset has
    drawn from. When it draws from another one, the samples are fetched again with that one seeded as well.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        inner = dataset
        while type(inner) is Subset:
            inner = inner.dataset
        self._draws_nothing = type(inner) is TensorDataset
        self._takes_lists = hasattr(dataset, "__getitems__") and type(dataset) is not Subset
        self._drawn_from: frozenset[str] = frozenset()

    def __getitems__(self, wanted: _Wanted) -> _Fetched:
        epoch, begin, indices = wanted
        return _Fetched(epoch, begin, self._samples(epoch, begin, indices))

    def _samples(self, epoch: int, begin: int, indices: list[int]) -> Any:
        if self._draws_nothing:
            return [self._dataset[index] for index in indices]
        while True:
            before = rng.CpuStates()
            try:
                samples = self._fetch(epoch, begin, indices)
            finally:
                changed = before.restore_changed()
            if changed <= self._drawn_from:
                return samples
            self._drawn_from |= changed

    def _fetch(self, epoch: int, begin: int, indices: list[int]) -> Any:
        dataset, drawn_from = self._dataset, self._drawn_from
        if self._takes_lists:
            rng.seed_data(mixed(self._seed, epoch, begin), drawn_from)
            return dataset.__getitems__(indices)
        if not drawn_from:
            return [dataset[index] for index in indices]
        samples = []
        for index, seed in zip(indices, mixed_with_each((self._seed, epoch), indices), strict=True):
            rng.seed_data(seed, drawn_from)
            samples.append(dataset[index])
        return samples


class _Collate:
    """A collate function whose random draws depend on the seed, the epoch and where the batch begins alone."""

    def __init__(self, collate: Callable[[Any], Any], seed: int) -> None:
        self._collate, self._seed = collate, seed

    def __call__(self, fetched: Any) -> Any:
        """The batch of what was fetched, a ``_Fetched``."""
        if self._collate is default_collate:  # draws nothing
            return default_collate(fetched.samples)
        before = rng.CpuStates()
        try:
            rng.seed_data(mixed(self._seed, fetched.epoch, fetched.begin, COLLATING))
            return self._collate(fetched.samples)
        finally:
            before.restore()


@contextmanager
def _own_draws() -> Iterator[None]:
    """Restore the script's generators afterwards, whatever is drawn or seeded meanwhile."""
    before = rng.states()
    try:
        yield
    finally:
        rng.restore(before)


def _seed_with_own(drawer: object, seed: int) -> None:
    """Seed the global generators, and the one that a sampler or dataset has in its attribute ``generator``."""
    rng.seed_data(seed)
    own = getattr(drawer, "generator", None)
    if isinstance(own, torch.Generator):
        own.manual_seed(seed)


def _unchanged(sample: Any) -> Any:
    return sample
