"""Our own profiles: ten well-known models on seven GPU types, from a few constants each.

The constants are in ``models.yaml`` beside this file, with where each comes from. A step's computing time was measured
on H200 and is carried over to the other types: launching kernels by how fast their hosts are, computing by the ratios
of memory bandwidth and of peak throughput, weighted by how far the model is bound by memory. Synchronising follows from
the size of the gradients and the bandwidth of the links. All of it makes the parameters of our own throughput model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from geminid.documents import load_yaml
from geminid.fields import Reader
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.throughput import MODELS, Shape
from geminid.gputypes import CATALOGUE
from geminid.network import Path
from geminid.sim.application import Application, GradientTruth, LossCurve, StepTimeTruth
from geminid.sim.profiles.bytype import ByType

#: The type that computing times were measured on.
REFERENCE = "h200"

#: The formulas go on for ever; beyond this many slots they have never been compared with anything.
MOST_SLOTS = 256

#: Gradients are summed in 32 bits.
GRADIENT_BYTES = 4

#: How much of a slot's memory training may plan with: allocators fragment, and frameworks need some for themselves.
USABLE_MEMORY = 0.9

#: Stragglers within a node: share of the gradient transfer time that each doubling of the slots adds.
NODE_GROWTH = 0.1

#: … and a constant that it adds, in seconds.
NODE_GROWTH_S = 1e-4

#: Stragglers within a rack: share of the gradient transfer time that each doubling of the slots adds.
RACK_GROWTH = 0.25

#: … and a constant that it adds, in seconds.
RACK_GROWTH_S = 5e-4

#: How fast waiting for the shared host levels off.
HOST_SATURATION = 0.1

#: Share of waiting for the host that also shows in passes that do not synchronise.
HOST_UNSYNCED = 0.5

#: Number of nodes from which the formulas of all models stay the same.
SEVERAL_NODES = 3


class FittedTruth(StepTimeTruth):
    """Step times by the formulas of a throughput model with given parameters, taken as the truth."""

    def __init__(
        self, parameters: Mapping[str, float], *, model: str = "geminid", most_slots: int = MOST_SLOTS
    ) -> None:
        """Take every parameter of the model by its name."""
        self._model = MODELS[model]
        self._parameters = np.array([parameters[p.name] for p in self._model.parameters])
        self._most_slots = most_slots
        self._known: dict[tuple[tuple[int, ...], int, float], tuple[float, float]] = {}

    @property
    def most_slots(self) -> int:
        """The largest number of slots for which the formulas are trusted."""
        return self._most_slots

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of an accumulation step and of a synchronising step; the second time, from memory."""
        return self._step_times(placement, per_slot_batch, 1.0)

    def step_times_over(self, placement: Sequence[int], per_slot_batch: int, path: Path) -> tuple[float, float]:
        """The same over another path than within a rack: the formulas know links, overlap included."""
        return self._step_times(placement, per_slot_batch, path.slowdown)

    def _step_times(self, placement: Sequence[int], per_slot_batch: int, slowdown: float) -> tuple[float, float]:
        key = (tuple(placement), per_slot_batch, slowdown)
        times = self._known.get(key)
        if times is None:
            shape = Shape.of(len(placement), sum(placement), per_slot_batch, max(placement), slowdown)
            predicted = self._model.step_times(self._parameters, shape)
            accumulation_s = float(predicted.accumulation_s)
            times = self._known[key] = (accumulation_s, max(accumulation_s, float(predicted.step_s)))
        return times

    def all_step_times(
        self, node_slots: Sequence[int], slots: int, batches: Sequence[int], path: Path
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Step times of every placement: one, two and more nodes, with every possible size of the busiest part."""
        sizes = np.sort(np.array(node_slots))[::-1]
        shapes = {
            (min(nodes, SEVERAL_NODES), busiest)
            for nodes in range(1, min(len(sizes), slots) + 1)
            for busiest in range(-(-slots // nodes), min(int(sizes[0]), slots - nodes + 1) + 1)
            if np.minimum(sizes[:nodes], busiest).sum() >= slots
        }
        for nodes, busiest in sorted(shapes):
            shape = Shape.of(nodes, slots, np.asarray(batches, dtype=float), busiest, path.slowdown)
            predicted = self._model.step_times(self._parameters, shape)
            yield predicted.accumulation_s, np.maximum(predicted.accumulation_s, predicted.step_s)


class NoiseCurve(GradientTruth):
    """A gradient-noise scale that grows while a model trains: φ(x) = start·(end/start)^(x^shape), x from 0 to 1.

    ``shape`` 1 is exponential growth; below 1 most of it comes early. It does not depend on the batch size in use.
    """

    def __init__(self, *, start: float, end: float, shape: float, epochs: int, initial_batch: int) -> None:
        """Take the noise scale in samples at both ends of training."""
        middles = (np.arange(epochs) + 0.5) / epochs
        noise_scales = start * (end / start) ** (middles**shape)
        self._epochs = [GradientStats(1.0, float(noise_scale) / initial_batch) for noise_scale in noise_scales]

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """The statistics in the middle of an epoch, with g² = 1; after the last epoch, those of the last."""
        return self._epochs[min(epoch, len(self._epochs) - 1)]


def built_in_applications() -> dict[str, Application]:
    """The built-in profiles by name."""
    return dict(_applications())


@cache
def _applications() -> Mapping[str, Application]:
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    reader = Reader(load_yaml(text))
    gpus = {name: _Gpu.read(name, entry) for name, entry in reader.nested_by_name("gpu_types").items()}
    models = {name: _Model.read(entry) for name, entry in reader.nested_by_name("models").items()}
    reader.raise_problems()
    return {name: _application(name, model, gpus) for name, model in models.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """What decides how fast a type trains: all but the links' nominal bandwidth, which the catalogue knows."""

    name: str
    tflops: float
    bandwidth: float
    launch: float
    node_share: float
    pair_factor: float

    @classmethod
    def read(cls, name: str, reader: Reader) -> _Gpu:
        numbers = ("tflops", "launch", "node_share", "pair_factor")
        return cls(
            name=name,
            bandwidth=reader.bandwidth("bandwidth"),
            **{field: reader.number(field, above=0) for field in numbers},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model's own constants: its size, its step on the reference type, its data and its noise."""

    parameters: float
    samples: int
    epochs: int
    initial: int
    largest: int
    smallest_per_slot: int
    floor_s: float
    per_sample_s: float
    sharpness: float
    memory_bound: float
    fixed_memory: int
    sample_memory: int
    noise: Mapping[str, float]
    loss: LossCurve
    host_wait_s: float
    host_per_sample_s: float
    overlap: float
    rescale_s: float

    @classmethod
    def read(cls, reader: Reader) -> _Model:
        batch, step, memory, noise, host, loss = (
            reader.nested(part) or reader for part in ("batch", "step", "memory", "noise", "host", "loss")
        )
        return cls(
            parameters=reader.number("parameters", above=0),
            samples=reader.integer("samples", at_least=1),
            epochs=reader.integer("epochs", at_least=1),
            initial=batch.integer("initial", at_least=1),
            largest=batch.integer("max", at_least=1),
            smallest_per_slot=batch.integer("min_per_slot", at_least=1),
            floor_s=step.duration("floor"),
            per_sample_s=step.duration("per_sample"),
            sharpness=step.number("sharpness", at_least=1),
            memory_bound=step.number("memory_bound", at_least=0, at_most=1),
            fixed_memory=memory.size("fixed"),
            sample_memory=memory.size("sample"),
            noise={name: noise.number(name, above=0) for name in ("start", "end", "shape")},
            loss=LossCurve(
                start=loss.number("start", above=0),
                end=loss.number("end", at_least=0),
                steepness=loss.number("steepness", above=0),
                exponential=loss.boolean("exponential", False),
            ),
            host_wait_s=host.duration("wait"),
            host_per_sample_s=host.duration("per_sample"),
            overlap=reader.number("overlap", at_least=1),
            rescale_s=reader.duration("rescale"),
        )


def _application(name: str, model: _Model, gpus: Mapping[str, _Gpu]) -> Application:
    limits = {gpu.name: _limits(model, gpu) for gpu in gpus.values()}
    usable = {
        gpu_type: limit for gpu_type, limit in limits.items() if limit.largest_per_slot >= limit.smallest_per_slot
    }
    return Application(
        name=name,
        progress_steps=np.arange(1, model.epochs + 1, dtype=np.float64) * (model.samples / model.initial),
        gradient=NoiseCurve(**model.noise, epochs=model.epochs, initial_batch=model.initial),
        truth=ByType({t: FittedTruth(_parameters(model, gpus[t], gpus[REFERENCE])) for t in usable}),
        limits=ByType(usable),
        rescale_s=model.rescale_s,
        loss=model.loss,
        gradient_bytes=GRADIENT_BYTES * model.parameters,
    )


def _limits(model: _Model, gpu: _Gpu) -> BatchLimits:
    free = USABLE_MEMORY * CATALOGUE[gpu.name].memory_bytes - model.fixed_memory
    return BatchLimits(
        initial=model.initial,
        largest=model.largest,
        smallest_per_slot=model.smallest_per_slot,
        largest_per_slot=min(int(free / model.sample_memory), model.largest),
    )


def _parameters(model: _Model, gpu: _Gpu, reference: _Gpu) -> dict[str, float]:
    """The parameters of our throughput model for one model on one type."""
    slower = model.memory_bound * reference.bandwidth / gpu.bandwidth
    slower += (1.0 - model.memory_bound) * reference.tflops / gpu.tflops
    links = CATALOGUE[gpu.name].interconnect
    gradient_bytes = GRADIENT_BYTES * model.parameters
    volume_node = gradient_bytes / (gpu.node_share * links.node.bandwidth_bytes_per_s)
    volume_rack = gradient_bytes / (links.efficiency * links.rack.bandwidth_bytes_per_s)
    return {
        "launch_floor": model.floor_s * gpu.launch,
        "per_sample": model.per_sample_s * slower,
        "plateau_sharpness": model.sharpness,
        "volume_node": volume_node,
        "growth_node": NODE_GROWTH * volume_node + NODE_GROWTH_S,
        "volume_rack": volume_rack,
        "growth_rack": RACK_GROWTH * volume_rack + RACK_GROWTH_S,
        "pair_factor": gpu.pair_factor,
        "host": model.host_wait_s,
        "host_per_sample": model.host_per_sample_s,
        "host_saturation": HOST_SATURATION,
        "host_unsynced": HOST_UNSYNCED,
        "gamma": model.overlap,
    }
