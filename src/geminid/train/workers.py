"""Worker processes on this machine: started together, given orders, and ended without exception.

The workers are forked from a server process that has imported PyTorch once; this process never imports it. Nothing
outlives the ``with`` block, whatever happens to a worker, and the workers end by themselves if this process dies.

    with Workers(2) as workers:
        reports = workers.visit(Visit(slots=2, per_slot_batch=16, repeats=10))
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

#: Starting means importing PyTorch, which on a cold and busy machine takes a while.
START_PATIENCE_S = 300.0


def own_cores() -> list[int]:
    """The processor cores that this process may run on; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class MeasuringFailed(Exception):
    """Measuring could not go on; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Team:
    """What every worker is told at the start; ``store`` is a file through which the workers find each other."""

    slots: int
    seed: int
    store: str
    patience_s: float


@dataclass(frozen=True, slots=True)
class Visit:
    """An order to the first ``slots`` workers: so many passes without synchronisation, then as many optimiser steps."""

    slots: int
    per_slot_batch: int
    repeats: int
    warm_up: int = 1


@dataclass(slots=True)
class VisitReport:
    """One worker's answer. Times are those of the repeats; loss and squared gradient norms are those of every step.

    ``local_norm`` belongs to the worker's own gradient, ``total_norm`` to the average over the workers.
    """

    accumulation_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    local_norm: list[float] = field(default_factory=list)
    total_norm: list[float] = field(default_factory=list)


def _work(team: Team, rank: int, orders: Connection) -> None:
    """Entry point of a worker process: PyTorch is imported here, not in the process that gives the orders."""
    from geminid.train.worker import serve

    serve(team, rank, orders)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started within are born deaf to Ctrl-C.

    It goes to every process of a terminal, but only the one that gives the orders should act on it.
    """
    resource_tracker.ensure_running()  # would let signals through again if it were started within
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Worker processes on this machine, one per slot, for as long as the ``with`` block lasts."""

    def __init__(self, slots: int, *, seed: int = 0, patience_s: float = 120.0) -> None:
        self.slots = slots
        self.parameter_count = 0
        self._seed = seed
        self._patience_s = patience_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        """Start the workers and wait until all have joined."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["geminid.train.worker"])
        self._folder = tempfile.TemporaryDirectory(prefix="geminid-", ignore_cleanup_errors=True)
        team = Team(self.slots, self._seed, str(Path(self._folder.name, "store")), self._patience_s)
        try:
            for rank in range(self.slots):
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                process = context.Process(target=_work, args=(team, rank, theirs), daemon=True)
                with _deaf_to_interrupts():
                    process.start()
                self._processes.append(process)
                theirs.close()
            sizes = self._answers(range(self.slots), "starting", START_PATIENCE_S)
        except BaseException:
            self._end(at_once=True)
            raise
        assert isinstance(sizes[0], int)
        self.parameter_count = sizes[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers: politely if all went well, at once otherwise."""
        self._end(at_once=kind is not None)

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid for process in self._processes if process.pid is not None]

    def visit(self, visit: Visit) -> list[VisitReport]:
        """Have the workers train; their reports by rank.

        Raises:
            MeasuringFailed: a worker failed, died, or did not answer in time.
        """
        doing = f"training with {visit.slots} slots and {visit.per_slot_batch} samples on each"
        for rank in range(visit.slots):
            with contextlib.suppress(OSError):  # a worker that is gone is noticed when it does not answer
                self._pipes[rank].send(visit)
        answers = self._answers(range(visit.slots), doing, self._patience_s)
        return [answer for answer in answers if isinstance(answer, VisitReport)]

    def _answers(self, ranks: Sequence[int], doing: str, patience_s: float) -> list[object]:
        """One answer from each worker. A text is a worker's last words."""
        answers: dict[int, object] = {}
        deadline = monotonic() + patience_s
        while missing := [rank for rank in ranks if rank not in answers]:
            ready = wait([self._pipes[rank] for rank in missing], max(0.0, deadline - monotonic()))
            if not ready:
                raise MeasuringFailed(f"worker {missing[0]} did not answer within {patience_s:g} s while {doing}")
            for rank in missing:
                if self._pipes[rank] not in ready:
                    continue
                try:
                    answer = self._pipes[rank].recv()
                except (EOFError, OSError):
                    answer = "it ended without a word"
                if isinstance(answer, str):
                    raise self._failure(rank, answer, doing)
                answers[rank] = answer
        return [answers[rank] for rank in ranks]

    def _failure(self, rank: int, last_words: str, doing: str) -> MeasuringFailed:
        """Name the worker that died, if one did: the others then fail too, and may be heard first."""
        for suspect, process in sorted(enumerate(self._processes), key=lambda item: item[0] != rank):
            process.join(0.5)
            if process.exitcode:
                code = process.exitcode
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return MeasuringFailed(f"worker {suspect} {how} while {doing}")
        return MeasuringFailed(f"worker {rank} failed while {doing}: {last_words}")

    def _end(self, *, at_once: bool) -> None:
        deadline = monotonic() + (0.0 if at_once else 5.0)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(max(0.0, deadline - monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
