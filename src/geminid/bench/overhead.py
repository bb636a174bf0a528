"""What the training library adds to a step, and what measuring the gradient noise adds to that.

Three ways of training take turns in one run, a block of steps each, so that whatever else the machine does meets all of
them: the plain loop, the same loop with the library but no measuring, and with measuring as it is by default (as often
as fits its budget). Two models that keep a GPU busy (ResNet-50, GPT-2) and one whose steps cost what launching their
kernels costs; on a CPU smaller ones stand in. Blocks are timed from an idle device to an idle device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from geminid.train.run import Run, init

#: Duration of a block of steps, in seconds, within the two limits below.
BLOCK_S = 0.5

#: Fewest steps of a block.
FEWEST_STEPS = 4

#: Most steps of a block.
MOST_STEPS = 64

#: Steps before anything is timed: kernels are chosen, memory is allocated, and the library finds its intervals.
WARM_UP_STEPS = 130

#: Longest time for these steps, in seconds.
WARM_UP_S = 4.0

#: Measuring the gradient noise is to cost less than this part of a step of a model that keeps a GPU busy.
GOAL = 0.02
BUSY_MODELS = ("resnet50", "gpt2")

#: What a step ends with.
OPTIMIZERS = ("SGD", "AdamW")

#: The model and the optimiser of a quick run, and what rows call a CPU.
QUICK_MODEL = "gpt2"
QUICK_OPTIMIZERS = ("AdamW",)
ON_CPU = "CPU"

#: Number of rounds in which every way of training is measured, even if there is little time.
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class OverheadRow:
    """Seconds of a step, three ways; overheads are relative: the library's to the plain loop, measuring's to it."""

    model: str
    device: str
    batch: int
    optimizer: str
    parameters: int
    plain_s: float
    library_s: float
    measuring_s: float
    library_overhead: float
    measuring_overhead: float
    interval: int
    rounds: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What is trained: a fresh model, a batch of data, and the loss."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.device], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


class _Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return F.relu(self.layers(x) + self.shortcut(x))


def _resnet50(first: int = 64) -> nn.Module:
    """A ResNet-50 whose first layers have this many channels; the real one has 64."""
    blocks: list[nn.Module] = []
    inputs = first
    for wider, count, stride in ((1, 3, 1), (2, 4, 2), (4, 6, 2), (8, 3, 2)):
        for number in range(count):
            blocks.append(_Bottleneck(inputs, wider * first, stride if number == 0 else 1))
            inputs = 4 * wider * first
    stem = [nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *end)


class _Transformer(nn.Module):
    """A causal language model of GPT-2's shape."""

    def __init__(self, *, words: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.length = length

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next word at every place; the words' embedding is also the output layer."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.layers(self.words(tokens) + self.places(places), mask=mask, is_causal=True)
        return F.linear(hidden, self.words.weight)


def _convnet() -> nn.Module:
    """Many small kernels on small images: on a GPU, launching them is what takes time."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU()]
    for number in range(18):
        layers += [nn.Conv2d(64, 64, 3, 2 if number in (6, 12) else 1, 1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _images(size: int, side: int, classes: int) -> Callable[[torch.device], tuple[Tensor, Tensor]]:
    def batch(device: torch.device) -> tuple[Tensor, Tensor]:
        images = torch.randn(size, 3, side, side, device=device).to(memory_format=torch.channels_last)
        return images, torch.randint(classes, (size,), device=device)

    return batch


def _tokens(size: int, length: int, words: int) -> Callable[[torch.device], tuple[Tensor, Tensor]]:
    def batch(device: torch.device) -> tuple[Tensor, Tensor]:
        text = torch.randint(words, (size, length + 1), device=device)
        return text[:, :-1], text[:, 1:]

    return batch


def _next_word_loss(logits: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


#: By name: the batch size, the task on a GPU, and the smaller one that stands in for it on a CPU.
MODELS: dict[str, dict[str, tuple[int, _Task]]] = {
    "resnet50": {
        "cuda": (256, _Task(_resnet50, _images(256, 224, 1000), F.cross_entropy)),
        "cpu": (8, _Task(lambda: _resnet50(first=8), _images(8, 64, 1000), F.cross_entropy)),
    },
    "gpt2": {
        "cuda": (
            16,
            _Task(
                lambda: _Transformer(words=50257, length=1024, width=768, layers=12, heads=12),
                _tokens(16, 1024, 50257),
                _next_word_loss,
            ),
        ),
        "cpu": (
            8,
            _Task(
                lambda: _Transformer(words=2000, length=64, width=128, layers=4, heads=4),
                _tokens(8, 64, 2000),
                _next_word_loss,
            ),
        ),
    },
    "launch-bound": {
        "cuda": (64, _Task(_convnet, _images(64, 32, 10), F.cross_entropy)),
        "cpu": (4, _Task(_convnet, _images(4, 16, 10), F.cross_entropy)),
    },
}


def run(
    *,
    device: str | None = None,
    only: str | None = None,
    optimizers: Sequence[str] = OPTIMIZERS,
    seconds: float = 120.0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[OverheadRow]:
    """Measure all models, with SGD (which compares gradients as they are) and AdamW (which divides them first).

    Each of them has its part of the ``seconds``, in which the ways of training take turns as often as they can.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.set_num_threads(1)
    rows = []
    wanted = [(name, kind) for name in MODELS if only in (None, name) for kind in optimizers]
    for name, kind in wanted:
        batch, task = MODELS[name][place.type]
        progress(f"{name} with {kind}")
        rows.append(_measure(name, place, batch, task, kind, seconds / len(wanted)))
    return rows


class _Loop:
    """A training loop that stands still between blocks of steps."""

    def __init__(self, task: _Task, place: torch.device, batch: int, optimizer: str, *, library: bool) -> None:
        torch.manual_seed(0)
        model = task.build().to(place)
        if any(isinstance(module, nn.Conv2d) for module in model.modules()):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        kind = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}[optimizer]
        options: dict[str, Any] = {"lr": 1e-4} | ({"momentum": 0.9} if optimizer == "SGD" else {})
        if place.type == "cuda":
            options["fused"] = True
        self.optimizer = kind(model.parameters(), **options)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        data = task.batch(place)
        # The data is already where it is needed: what is measured is the step.
        loader: Any = DataLoader(TensorDataset(torch.zeros(batch * 10**4)), batch_size=batch, collate_fn=lambda _: data)
        self.run: Run | None = None
        if library:
            self.run = init()
            _, _, loader = self.run.prepare(model, self.optimizer, loader)
        self._model, self._task, self._place = model, task, place
        self._steps = self._train(loader)

    def _train(self, loader: Any) -> Iterator[None]:
        epochs = self.run.epochs(10**6) if self.run is not None else range(10**6)
        for _ in epochs:
            for x, y in loader:
                self.optimizer.zero_grad()
                with torch.autocast(self._place.type, torch.bfloat16, enabled=self._place.type == "cuda"):
                    loss = self._task.loss(self._model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                yield

    def block(self, steps: int) -> float:
        """Take some steps; seconds for one of them."""
        self._settle()
        begin = time.perf_counter()
        for _ in range(steps):
            next(self._steps)
        self._settle()
        return (time.perf_counter() - begin) / steps

    def _settle(self) -> None:
        if self._place.type == "cuda":
            torch.cuda.synchronize()


def _measure(name: str, place: torch.device, batch: int, task: _Task, optimizer: str, seconds: float) -> OverheadRow:
    end_s = time.perf_counter() + seconds
    plain = _Loop(task, place, batch, optimizer, library=False)
    ours = _Loop(task, place, batch, optimizer, library=True)
    assert ours.run is not None
    for loop in (plain, ours):
        first_s = loop.block(FEWEST_STEPS)
        loop.block(max(FEWEST_STEPS, min(WARM_UP_STEPS, int(min(WARM_UP_S, seconds / 6) / first_s))))
    steps = max(FEWEST_STEPS, min(MOST_STEPS, math.ceil(BLOCK_S / plain.block(FEWEST_STEPS))))
    interval = ours.run.noise_interval
    steps = interval * math.ceil(steps / interval)  # every block has its share of measured steps
    times: dict[str, list[float]] = {"plain": [], "library": [], "measuring": []}
    while len(times["plain"]) < FEWEST_ROUNDS or time.perf_counter() < end_s:
        times["plain"].append(plain.block(steps))
        for way in ("library", "measuring"):
            ours.run.measure_noise(way == "measuring")
            times[way].append(ours.block(steps))
    # Within a round the three ways meet the same machine, so compare there, and take the median over the rounds.
    library = median(b / a for a, b in zip(times["plain"], times["library"], strict=True))
    measuring = median(b / a for a, b in zip(times["library"], times["measuring"], strict=True))
    return OverheadRow(
        model=name,
        device=torch.cuda.get_device_name() if place.type == "cuda" else ON_CPU,
        batch=batch,
        optimizer=optimizer,
        parameters=plain.parameters,
        plain_s=median(times["plain"]),
        library_s=median(times["library"]),
        measuring_s=median(times["measuring"]),
        library_overhead=library - 1.0,
        measuring_overhead=measuring - 1.0,
        interval=interval,
        rounds=len(times["plain"]),
    )
