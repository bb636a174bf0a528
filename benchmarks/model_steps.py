"""Measure a training step of the ten built-in models on the GPU at hand: seconds and memory by batch size.

    python benchmarks/model_steps.py [MODEL …]

Needs a CUDA GPU, PyTorch, torchvision and transformers. Weights and data are random, the step is a whole optimiser step
(bf16 autocast, fused AdamW, channels last), the time the median of 12 after 4 to warm up. Prints one line of JSON per
model; the constants in ``src/geminid/sim/profiles/models.yaml`` come from such lines.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

WARM_UP, STEPS = 4, 12

Loss = Callable[[], Tensor]
Build = Callable[[], tuple[nn.Module, Callable[[int], Loss]]]


def _images(model: nn.Module, side: int, classes: int) -> tuple[nn.Module, Callable[[int], Loss]]:
    def batch(size: int) -> Loss:
        images = torch.randn(size, 3, side, side, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(classes, (size,), device="cuda")
        return lambda: F.cross_entropy(model(images), labels)

    return model, batch


def resnet18() -> tuple[nn.Module, Callable[[int], Loss]]:
    """ResNet-18 as torchvision has it (large stem), on 32 × 32 images."""
    return _images(torchvision.models.resnet18(num_classes=10), 32, 10)


def resnet50() -> tuple[nn.Module, Callable[[int], Loss]]:
    """ResNet-50 on 224 × 224 images."""
    return _images(torchvision.models.resnet50(), 224, 1000)


def vit_b16() -> tuple[nn.Module, Callable[[int], Loss]]:
    """ViT-B/16 on 224 × 224 images."""
    return _images(torchvision.models.vit_b_16(), 224, 1000)


def bert() -> tuple[nn.Module, Callable[[int], Loss]]:
    """BERT-base with a span head, 384 tokens."""
    model = transformers.BertForQuestionAnswering(transformers.BertConfig())

    def batch(size: int) -> Loss:
        tokens = torch.randint(1000, 30000, (size, 384), device="cuda")
        ends = torch.randint(384, (2, size), device="cuda")
        return lambda: model(input_ids=tokens, start_positions=ends[0], end_positions=ends[1]).loss

    return model, batch


def gpt2() -> tuple[nn.Module, Callable[[int], Loss]]:
    """GPT-2 with 124 million parameters, 1,024 tokens."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())

    def batch(size: int) -> Loss:
        tokens = torch.randint(50000, (size, 1024), device="cuda")
        return lambda: model(input_ids=tokens, labels=tokens).loss

    return model, batch


class DeepSpeech2(nn.Module):
    """Two convolutions over the spectrogram, five bidirectional LSTM layers of 800, characters out."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.recurrent = nn.LSTM(32 * 41, 800, 5, bidirectional=True, batch_first=True)
        self.out = nn.Linear(1600, 29)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Log-probabilities of characters, time first."""
        features = self.convolutions(spectrograms).flatten(1, 2).transpose(1, 2)
        hidden, _ = self.recurrent(features)
        return F.log_softmax(self.out(hidden).float(), -1).transpose(0, 1)


def deepspeech2() -> tuple[nn.Module, Callable[[int], Loss]]:
    """Deep Speech 2 on ten seconds of speech (1,000 frames of 161 frequencies), 150 characters."""
    model = DeepSpeech2()

    def batch(size: int) -> Loss:
        spectrograms = torch.randn(size, 1, 161, 1000, device="cuda")
        text = torch.randint(1, 29, (size, 150), device="cuda")
        frames = torch.full((size,), 500, device="cuda")
        length = torch.full((size,), 150, device="cuda")
        return lambda: F.ctc_loss(model(spectrograms), text, frames, length)

    return model, batch


def _conv(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)
    )


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_conv(channels, channels // 2, 1), _conv(channels // 2, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _neck(inputs: int, channels: int) -> nn.Sequential:
    layers = [_conv(inputs, channels, 1), _conv(channels, 2 * channels, 3)]
    layers += [_conv(2 * channels, channels, 1), _conv(channels, 2 * channels, 3)]
    return nn.Sequential(*layers, _conv(2 * channels, channels, 1))


class YoloV3(nn.Module):
    """Darknet-53 with heads at three scales."""

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        stages, channels = [], 32
        for blocks in (1, 2, 8, 8, 4):
            stages.append(
                nn.Sequential(_conv(channels, 2 * channels, 3, 2), *[_Residual(2 * channels) for _ in range(blocks)])
            )
            channels *= 2
        self.stem, self.stages = _conv(3, 32, 3), nn.ModuleList(stages)
        self.necks = nn.ModuleList([_neck(1024, 512), _neck(768, 256), _neck(384, 128)])
        self.up = nn.ModuleList([_conv(512, 256, 1), _conv(256, 128, 1)])
        outputs = 3 * (5 + classes)
        self.heads = nn.ModuleList(
            [nn.Sequential(_conv(c, 2 * c, 3), nn.Conv2d(2 * c, outputs, 1)) for c in (512, 256, 128)]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Raw predictions at strides 32, 16 and 8."""
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        x, predictions = kept[4], []
        for i, (neck, head) in enumerate(zip(self.necks, self.heads, strict=True)):
            x = neck(x)
            predictions.append(head(x))
            if i < 2:
                x = torch.cat([F.interpolate(self.up[i](x), scale_factor=2), kept[3 - i]], 1)
        return predictions


def yolov3() -> tuple[nn.Module, Callable[[int], Loss]]:
    """YOLOv3 on 416 × 416 images; the loss is squared error on every anchor, which costs what the real one does."""
    model = YoloV3()

    def batch(size: int) -> Loss:
        images = torch.randn(size, 3, 416, 416, device="cuda").to(memory_format=torch.channels_last)
        targets = [torch.randn(size, 75, side, side, device="cuda") for side in (13, 26, 52)]
        return lambda: sum(F.mse_loss(p.float(), t) for p, t in zip(model(images), targets, strict=True))  # type: ignore

    return model, batch


class NeuMF(nn.Module):
    """Neural matrix factorisation for MovieLens-20M (64 factors; layers of 256, 256, 128 and 64)."""

    USERS, ITEMS = 138_493, 26_744

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.ModuleList([nn.Embedding(self.USERS, size) for size in (64, 128)])
        self.items = nn.ModuleList([nn.Embedding(self.ITEMS, size) for size in (64, 128)])
        sizes = (256, 256, 128, 64)
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        self.layers, self.out = nn.Sequential(*layers), nn.Linear(128, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of an interaction."""
        product = self.users[0](user) * self.items[0](item)
        mixed = self.layers(torch.cat([self.users[1](user), self.items[1](item)], 1))
        return self.out(torch.cat([product, mixed], 1)).squeeze(1)


def neumf() -> tuple[nn.Module, Callable[[int], Loss]]:
    """NeuMF on pairs of a user and an item."""
    model = NeuMF()

    def batch(size: int) -> Loss:
        user = torch.randint(NeuMF.USERS, (size,), device="cuda")
        item = torch.randint(NeuMF.ITEMS, (size,), device="cuda")
        seen = torch.rand(size, device="cuda").round()
        return lambda: F.binary_cross_entropy_with_logits(model(user, item).float(), seen)

    return model, batch


class WordLstm(nn.Module):
    """Two LSTM layers of 650 over the 33,278 words of WikiText-2, embeddings tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(33_278, 650)
        self.recurrent = nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(650, 33_278)
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next word."""
        return self.out(self.recurrent(self.words(words))[0])


def lstm() -> tuple[nn.Module, Callable[[int], Loss]]:
    """A word-level LSTM language model on 35 words at a time."""
    model = WordLstm()

    def batch(size: int) -> Loss:
        words = torch.randint(33_278, (size, 35), device="cuda")
        return lambda: F.cross_entropy(model(words).flatten(0, 1), words.flatten())

    return model, batch


class Dlrm(nn.Module):
    """DLRM with 26 tables of at most a million rows of 16, as for the Criteo Kaggle data."""

    ROWS = (
        *(1_000_000,) * 5,
        *(
            1460,
            583,
            305,
            24,
            12517,
            633,
            3,
            93145,
            5683,
            3194,
            27,
            14992,
            10,
            5652,
            2173,
            4,
            18,
            15,
            286181,
            105,
            142572,
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, 16) for rows in self.ROWS])
        self.bottom = self._layers(13, 512, 256, 64, 16)
        self.top = self._layers(27 * 26 // 2 + 16, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1))

    @staticmethod
    def _layers(*sizes: int) -> nn.Sequential:
        pairs = pairwise(sizes)
        layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*(layers[:-1] if sizes[-1] == 1 else layers))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Logits of a click."""
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *[t(categories[:, i]) for i, t in enumerate(self.tables)]], 1)
        products = vectors @ vectors.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, chosen], 1)).squeeze(1)


def dlrm() -> tuple[nn.Module, Callable[[int], Loss]]:
    """DLRM on 13 numbers and 26 categories a sample."""
    model = Dlrm()

    def batch(size: int) -> Loss:
        dense = torch.randn(size, 13, device="cuda")
        categories = torch.stack([torch.randint(rows, (size,), device="cuda") for rows in Dlrm.ROWS], 1)
        clicked = torch.rand(size, device="cuda").round()
        return lambda: F.binary_cross_entropy_with_logits(model(dense, categories).float(), clicked)

    return model, batch


MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "resnet18-cifar10": (resnet18, (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
    "resnet50-imagenet": (resnet50, (16, 32, 64, 128, 256, 512, 1024)),
    "bert-base-squad": (bert, (2, 4, 8, 12, 16, 32, 64, 128)),
    "gpt2-124m": (gpt2, (1, 2, 4, 8, 16, 32, 64)),
    "vit-b16-imagenet": (vit_b16, (16, 32, 64, 128, 256, 512)),
    "deepspeech2": (deepspeech2, (4, 8, 16, 32, 64, 128, 256)),
    "yolov3": (yolov3, (2, 4, 8, 16, 32, 64, 128)),
    "neumf-ml20m": (neumf, (1024, 4096, 16384, 65536, 262144, 1048576)),
    "lstm-wikitext2": (lstm, (10, 20, 40, 80, 160, 320, 640)),
    "dlrm-small": (dlrm, (512, 2048, 8192, 32768, 131072)),
}


def measure(name: str) -> dict[str, Any]:
    """Seconds of a step and peak bytes at each batch size of one model."""
    build, sizes = MODELS[name]
    model, batch = build()
    model.to("cuda", memory_format=torch.channels_last).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    parameters = sum(p.numel() for p in model.parameters())
    seconds, peak = {}, {}
    for size in sizes:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        loss, times = batch(size), []
        for _ in range(WARM_UP + STEPS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16):
                value = loss()
            value.backward()
            optimiser.step()
            optimiser.zero_grad()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        seconds[size], peak[size] = statistics.median(times[WARM_UP:]), torch.cuda.max_memory_allocated()
        del loss, value
    return {"model": name, "parameters": parameters, "step_s": seconds, "peak_bytes": peak}


def main() -> None:
    """Measure the models that are named, or all."""
    for name in sys.argv[1:] or MODELS:
        try:
            print(json.dumps(measure(name)), flush=True)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(json.dumps({"model": name, "error": str(error)[:200]}), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
