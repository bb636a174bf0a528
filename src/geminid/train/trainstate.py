"""The state of training: collected for checkpoints and for workers that join, and restored from them."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from geminid.goodput.noise import NoiseEstimate
from geminid.train import rng
from geminid.train.norms import NoiseMeter
from geminid.train.optim import Schedule
from geminid.train.progress import Position, TrainingProgress
from geminid.train.several import AnyOptimizer, load_optimizer, parameters_of
from geminid.train.state_codec import CannotSave, check_saveable, decode, encode
from geminid.train.tuner import Tuner


class DoesNotFit(ValueError):
    """A state that belongs to another model, optimiser or dataset; one sentence says what differs."""


@dataclass(slots=True)
class TrainingState:
    """The objects whose state makes up that of training.

    ``present`` says whether the state is of use to other workers: not before it was restored, received or initialised.
    ``further_steps`` counts further steps of the optimiser with the batch that was counted last (None: never with any
    batch), and ``switched`` are the numbers of its parameters whose ``requires_grad`` changes within steps.
    """

    model: nn.Module
    optimizer: AnyOptimizer
    meter: NoiseMeter
    tuner: Tuner
    progress: TrainingProgress
    scaler: Any = None
    schedules: Sequence[Schedule] = ()
    user: dict[str, Any] = field(default_factory=dict)
    present: bool = False
    further_steps: int | None = None
    switched: set[int] = field(default_factory=set)
    _warned_of: set[str] = field(default_factory=set)

    @property
    def position(self) -> Position:
        """How far training is."""
        return self.progress.position

    @property
    def age(self) -> int:
        """How advanced this state is, compared with those of other workers; less than 0 if there is none.

        Where the script steps several times with one batch, these steps count: a worker may be lost in between.
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
            "trained": [parameter.requires_grad for parameter in self.parameters],
            "switched": sorted(self.switched),
            "further_steps": self.further_steps,
            "position": asdict(self.position),
            "dataset_samples": self.progress.epoch_samples,
            "noise": {"estimate": asdict(self.meter.estimate), **self.meter.state()},
            "tuner": self.tuner.state(),
            "rng": rng.states(),
            "user": {name: _state_of(value) for name, value in self._saveable()},
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        schedules = [{"taken": one.taken, "state": one.scheduler.state_dict()} for one in self.schedules]
        if len(schedules) == 1:
            (state["schedule"],) = schedules
        elif schedules:
            state["schedules"] = schedules
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from this state. The random-number generators are left as they are.

        Raises:
            DoesNotFit: it belongs to other data, or to another model or optimiser.
        """
        samples = self.progress.epoch_samples
        if state["dataset_samples"] != samples:
            raise DoesNotFit(
                f"the state belongs to a dataset of {state['dataset_samples']} samples, this one has {samples}: bring "
                "the data back"
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as problem:
            raise DoesNotFit(f"the model has changed since: {self._difference(state['model'], problem)}") from problem
        with torch.no_grad():
            for parameter, saved in zip(self._others, state.get("others", ()), strict=False):
                parameter.copy_(saved)
        try:
            load_optimizer(self.optimizer, state["optimizer"])
        except (KeyError, ValueError) as problem:
            raise DoesNotFit(f"the optimizer has changed since: {problem}") from problem
        for parameter, trained in zip(self.parameters, state.get("trained", ()), strict=False):
            parameter.requires_grad_(trained)
        self.further_steps = state.get("further_steps")
        self.switched.clear()
        self.switched.update(state.get("switched", ()))
        self.progress.position = Position(**state["position"])
        self.meter.estimate = NoiseEstimate(**state["noise"]["estimate"])
        self.meter.restore(state["noise"])
        self.tuner.restore(state["tuner"])
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        saved_schedules = state.get("schedules", [state["schedule"]] if "schedule" in state else ())
        for schedule, saved in zip(self.schedules, saved_schedules, strict=False):
            schedule.taken = saved["taken"]
            schedule.scheduler.load_state_dict(saved["state"])
        for name, value in self.user.items():
            if name in state["user"]:
                _restore(value, state["user"][name])
            elif name not in self._warned_of:
                self._warned_of.add(name)
                _warn(f"run.state({name!r}) is not in the saved state: it begins as the script created it")
        self.present = True

    def _difference(self, saved: dict[str, Any], problem: Exception) -> str:
        """The first difference between a saved model and this one."""
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
        """A hash of all weights.

        Buffers are left out: workers have running statistics of their own between two synchronisations.
        """
        sums = [_sum_of_bits(parameter) for parameter in self._weights.values()]
        return zlib.crc32(torch.stack(sums).cpu().numpy().tobytes())

    def weights_beyond_rounding(self, other: dict[str, Any]) -> list[str]:
        """The names of the weights that differ from another state's by more than rounding explains.

        Up to half of the digits may differ: where machines round differently, errors add up over an epoch.
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
        """The script's own state (``run.state``) as JSON; entries with tensors are left out."""
        apart = {name: encode(_state_of(value), name) for name, value in self._saveable()}
        return {name: document for name, (document, tensors) in apart.items() if not tensors}

    def restore_user_state(self, documents: dict[str, Any]) -> None:
        """Have the leader's values in the script's own state."""
        for name, document in documents.items():
            if name in self.user:
                _restore(self.user[name], decode(document, {}))

    def _saveable(self) -> Iterator[tuple[str, Any]]:
        """The entries of the script's own state that can be saved; a warning names those that no longer can."""
        for name, value in self.user.items():
            try:
                check_saveable(_state_of(value), f"run.state({name!r})")
            except CannotSave as problem:
                if not self.present:
                    raise
                if name not in self._warned_of:
                    self._warned_of.add(name)
                    _warn(f"{problem}; it is left out of checkpoints, and workers that join do not get it")
            else:
                yield name, value

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **_numbered(self._others)}

    @property
    def _others(self) -> list[nn.Parameter]:
        """Trained parameters that are not part of the model, such as the weights of a loss."""
        known = {id(parameter) for parameter in self.model.parameters()}
        return [parameter for parameter in self.parameters if id(parameter) not in known]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the optimiser."""
        return parameters_of(self.optimizer.param_groups)


def _numbered(others: Sequence[Tensor]) -> dict[str, Tensor]:
    """Names for the parameters that the optimiser trains besides the model."""
    return {
        f"a parameter of the optimizer's that is not the model's ({number})": one for number, one in enumerate(others)
    }


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor, read as 8-byte integers and summed: exact in any order, and fast."""
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
    """Restore an object of the script from what was saved of it."""
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    elif isinstance(target, dict):
        target.clear()
        target.update(value)
    else:
        target[:] = value
