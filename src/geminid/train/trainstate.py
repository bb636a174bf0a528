"""Everything that training goes on from: collected for checkpoints and newcomers, and taken over from them."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from geminid.goodput.noise import NoiseEstimate
from geminid.train import rng
from geminid.train.norms import NoiseMeter
from geminid.train.optim import ScheduleSteps
from geminid.train.state_codec import CannotSave, check_saveable, put_together, take_apart
from geminid.train.tuner import Tuner


class DoesNotFit(ValueError):
    """A state that belongs to something else; one sentence says to what."""


@dataclass(slots=True)
class Position:
    """How far training is: samples consumed of this epoch's order and of all epochs, steps, and useful samples.

    ``batches`` is how many batches of the loader's own size the epochs before this one had: what schedules count.
    """

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    progress: float = 0.0
    batches: int = 0


@dataclass(slots=True)
class TrainingState:
    """The objects whose state makes up that of training, and the position.

    ``present`` says whether the state is worth anything to others: not before it was restored or received.
    ``further_steps`` is how often the optimiser has stepped again with the batch that was counted last (None: never
    with any), and ``switched`` are the numbers of its parameters whose ``requires_grad`` changes within steps.
    """

    model: nn.Module
    optimizer: Optimizer
    meter: NoiseMeter
    tuner: Tuner
    dataset_samples: int | None
    scaler: Any
    lr_scheduler: Any
    schedule_steps: ScheduleSteps | None
    user: dict[str, Any]
    position: Position
    present: bool = False
    further_steps: int | None = None
    switched: set[int] = field(default_factory=set)
    _told_of: set[str] = field(default_factory=set)

    @property
    def age(self) -> int:
        """How far this state is, to be compared with those of other workers; less than 0 if it is worth nothing.

        Where the script steps several times with one batch, that counts as well: a worker may be lost in between.
        """
        if not self.present:
            return -1
        again = self.further_steps
        return self.position.step if again is None else self.position.step * 1024 + min(again, 1023)

    def collect(self) -> dict[str, Any]:
        """The state as it is. Tensors are the live ones, not copies."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "others": [parameter.detach() for parameter in self._others],
            "trained": [parameter.requires_grad for parameter in self._parameters],
            "switched": sorted(self.switched),
            "further_steps": self.further_steps,
            "position": asdict(self.position),
            "dataset_samples": self.dataset_samples,
            "noise": {"estimate": asdict(self.meter.estimate), **self.meter.state()},
            "tuner": self.tuner.state(),
            "rng": rng.states(),
            "user": {name: _state_of(value) for name, value in self._saveable()},
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.schedule_steps is not None:
            state["schedule"] = {"taken": self.schedule_steps.taken, "state": self.lr_scheduler.state_dict()}
        return state

    def take(self, state: dict[str, Any]) -> None:
        """Go on from this state (the generators of random numbers excepted).

        Raises:
            DoesNotFit: it belongs to other data, or to another model or optimiser.
        """
        if state["dataset_samples"] != self.dataset_samples:
            raise DoesNotFit(
                f"the state belongs to a dataset of {state['dataset_samples']} samples, this one has "
                f"{self.dataset_samples}: bring the data back"
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as problem:
            raise DoesNotFit(f"the model has changed since: {self._difference(state['model'], problem)}") from problem
        with torch.no_grad():
            for parameter, saved in zip(self._others, state.get("others", ()), strict=False):
                parameter.copy_(saved)
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except ValueError as problem:
            raise DoesNotFit(f"the optimizer has changed since: {problem}") from problem
        for parameter, trained in zip(self._parameters, state.get("trained", ()), strict=False):
            parameter.requires_grad_(trained)
        self.further_steps = state.get("further_steps")
        self.switched.clear()
        self.switched.update(state.get("switched", ()))
        self.position = Position(**state["position"])
        self.meter.estimate = NoiseEstimate(**state["noise"]["estimate"])
        self.meter.take_state(state["noise"])
        self.tuner.restore(state["tuner"])
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        if self.schedule_steps is not None and "schedule" in state:
            self.schedule_steps.taken = state["schedule"]["taken"]
            self.lr_scheduler.load_state_dict(state["schedule"]["state"])
        for name, value in self.user.items():
            if name in state["user"]:
                _restore(value, state["user"][name])
            elif name not in self._told_of:
                self._told_of.add(name)
                _warn(f"run.state({name!r}) was not saved with the rest: it begins as the script made it")
        self.present = True

    def _difference(self, saved: dict[str, Any], problem: Exception) -> str:
        """What another model's state has that this one's has not, or the other way round, or else."""
        own = self.model.state_dict()
        for name in (*own, *saved):
            if name not in saved:
                return f"{name} is new"
            if name not in own:
                return f"it has no {name} any more"
            if getattr(own[name], "shape", None) != getattr(saved[name], "shape", None):
                return f"{name} has the shape {list(own[name].shape)} and had {list(saved[name].shape)}"
        return str(problem).splitlines()[-1].strip()

    def weights_code(self) -> int:
        """A number that differs, most likely, where a single bit of the weights does.

        Buffers are left out: workers may have statistics of their own, and take over the leader's now and then.
        """
        sums = [_sum_of_bits(parameter) for parameter in self._weights.values()]
        return zlib.crc32(torch.stack(sums).cpu().numpy().tobytes())

    def weights_beyond_rounding(self, other: dict[str, Any]) -> list[str]:
        """The names of the weights which in another state are so different that it cannot be a matter of rounding.

        Up to half of the digits may be: where machines round differently, errors add up over an epoch.
        """
        theirs = {**other["model"], **_numbered(other["others"])}
        names = []
        for name, parameter in self._weights.items():
            if name not in theirs:
                continue
            own, their = (torch.nan_to_num(one.detach().to(torch.float32)) for one in (parameter, theirs[name]))
            allowed = math.sqrt(torch.finfo(parameter.dtype).eps) if parameter.is_floating_point() else 0.0
            if (own - their).norm() > allowed * max(float(own.norm()), float(their.norm())):
                names.append(name)
        return names

    def plain_user_state(self) -> dict[str, Any]:
        """What the script keeps, as JSON, as far as there are no tensors in it."""
        apart = {name: take_apart(_state_of(value), name) for name, value in self._saveable()}
        return {name: document for name, (document, tensors) in apart.items() if not tensors}

    def take_user_state(self, documents: dict[str, Any]) -> None:
        """Keep what the leader keeps."""
        for name, document in documents.items():
            if name in self.user:
                _restore(self.user[name], put_together(document, {}))

    def _saveable(self) -> Iterator[tuple[str, Any]]:
        """What the script keeps, as far as it can be saved; it says so where that has changed since the beginning."""
        for name, value in self.user.items():
            try:
                check_saveable(_state_of(value), f"run.state({name!r})")
            except CannotSave as problem:
                if not self.present:
                    raise
                if name not in self._told_of:
                    self._told_of.add(name)
                    _warn(f"{problem}; it is left out of checkpoints, and newcomers do not get it")
            else:
                yield name, value

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **_numbered(self._others)}

    @property
    def _others(self) -> list[nn.Parameter]:
        """What is trained but not part of the model, such as the weights of a loss."""
        known = {id(parameter) for parameter in self.model.parameters()}
        return [parameter for parameter in self._parameters if id(parameter) not in known]

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _numbered(others: Sequence[Tensor]) -> dict[str, Tensor]:
    """Names for what has none: what the optimiser trains besides the model."""
    return {
        f"a parameter of the optimizer's that is not the model's ({number})": one for number, one in enumerate(others)
    }


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor, read as integers of eight bytes and summed: exact in any order, and quick."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    whole = len(flat) // 8 * 8
    return flat[:whole].view(torch.int64).sum() + flat[whole:].sum(dtype=torch.int64)


def _warn(text: str) -> None:
    print(f"geminid: warning: {text}", file=sys.stderr, flush=True)


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _restore(target: Any, value: Any) -> None:
    """Give an object of the user's back what was saved of it."""
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    elif isinstance(target, dict):
        target.clear()
        target.update(value)
    else:
        target[:] = value
