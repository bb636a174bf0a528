"""One worker process: computes gradients on its slot, averages them with its peers, and takes the time.

The training loop is the ordinary data-parallel one, written out: forward, backward, all-reduce of the gradients, SGD
with momentum. Parameters and gradients are views of two flat vectors, so that averaging gradients is one all-reduce
and a gradient's norm one dot product. One worker computes on one CPU slot: PyTorch is held to a single thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from geminid.train.models import NoisyPatterns, small_convnet
from geminid.train.workers import Team, Visit, VisitReport, own_cores

LEARNING_RATE = 0.0005
MOMENTUM = 0.9


def serve(team: Team, rank: int, orders: Connection) -> None:
    """Join the team, say so (with the model's size), and carry out visits until told to stop or left alone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _stay_on_loopback()
    try:
        trainee = _Trainee(team, rank)
        orders.send(trainee.parameter_count)
        while (visit := orders.recv()) is not None:
            orders.send(trainee.carry_out(visit))
    except EOFError:
        pass  # whoever gave the orders is gone
    except BaseException as problem:
        with contextlib.suppress(OSError):
            orders.send(_sentence(problem))
    # There is nothing to save, and unwinding a process group whose peers may be gone can hang or abort.
    os._exit(0)


def _end_with_parent() -> None:
    """Wait until the process that gives the orders is gone, and go too, whatever this one is waiting for."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _stay_on_loopback() -> None:
    """Have gloo listen on the loopback interface only."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    os.environ["GLOO_SOCKET_IFNAME"] = names[0] if names else "lo"


def _take_a_core(rank: int, slots: int, cores: list[int]) -> None:
    """Where there is a core for every worker, stay on one's own; where there is not, the system shares them out.

    Without this, two workers that wake each other often end up on one core while another idles.
    """
    if cores:
        os.sched_setaffinity(0, {cores[rank]} if slots <= len(cores) else cores)


def _sentence(problem: BaseException) -> str:
    """The first line of an error, with its kind."""
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__


class _Trainee:
    """The state of training in one process: model, momentum, data, and a process group for every number of slots."""

    def __init__(self, team: Team, rank: int) -> None:
        self.rank = rank
        self.cores = own_cores()
        self.data = NoisyPatterns(team.seed, rank)
        self.model = small_convnet(team.seed)
        self.parameters, self.gradient = _flatten(self.model)
        self.parameter_count = self.parameters.numel()
        self.velocity = torch.zeros_like(self.parameters)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(team.store, team.slots),  # type: ignore[attr-defined]
            rank=rank,
            world_size=team.slots,
            timeout=timedelta(seconds=team.patience_s),
        )
        self.groups = {slots: dist.new_group(range(slots)) for slots in range(1, team.slots + 1)}

    def carry_out(self, visit: Visit) -> VisitReport:
        """Train as ordered, beginning from the state of the first worker, and report times and norms."""
        _take_a_core(self.rank, visit.slots, self.cores)
        group = self.groups[visit.slots]
        for state in (self.parameters, self.velocity):
            dist.broadcast(state, src=0, group=group)
        report = VisitReport()
        for _ in range(visit.warm_up):
            self._pass(visit.per_slot_batch)
        dist.barrier(group)
        for _ in range(visit.repeats):
            seconds, _ = self._pass(visit.per_slot_batch)
            report.accumulation_s.append(seconds)
        for turn in range(visit.warm_up + visit.repeats):
            self._step(visit, group, report, timed=turn >= visit.warm_up)
        return report

    def _pass(self, batch: int) -> tuple[float, float]:
        """Forward and backward over fresh samples; seconds (without making the samples) and loss."""
        images, labels = self.data.batch(batch)
        self.gradient.zero_()
        begin = perf_counter()
        loss = cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return perf_counter() - begin, float(loss.detach())

    def _step(self, visit: Visit, group: dist.ProcessGroup, report: VisitReport, *, timed: bool) -> None:
        """One optimiser step. The norms that the noise scale needs are taken off the clock.

        All-reduce leaves the sum of the workers' gradients; where it is used, it is divided by their number.
        """
        pass_s, loss = self._pass(visit.per_slot_batch)
        local = _squared_norm(self.gradient)
        begin = perf_counter()
        if visit.slots > 1:
            dist.all_reduce(self.gradient, group=group)
        self.velocity.mul_(MOMENTUM).add_(self.gradient, alpha=1.0 / visit.slots)
        self.parameters.sub_(self.velocity, alpha=LEARNING_RATE)
        if timed:
            report.step_s.append(pass_s + perf_counter() - begin)
        report.loss.append(loss)
        report.local_norm.append(local)
        report.total_norm.append(_squared_norm(self.gradient) / visit.slots**2)


def _flatten(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Make all parameters views of one vector and all gradients views of another; return the two."""
    owned = list(model.parameters())
    values = torch.cat([parameter.detach().reshape(-1) for parameter in owned])
    gradient = torch.zeros_like(values)
    begin = 0
    for parameter in owned:
        end = begin + parameter.numel()
        parameter.data = values[begin:end].view_as(parameter)
        parameter.grad = gradient[begin:end].view_as(parameter)
        begin = end
    return values, gradient


def _squared_norm(vector: Tensor) -> float:
    return float(vector.dot(vector))
