"""A small model and data that it can learn, so that measuring needs no download and no dataset."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10
CHANNELS, SIDE = 3, 16

#: Standard deviation of the noise on every image (the patterns have 1), and the share of labels drawn at random: hard
#: enough that training takes hundreds of steps, easy enough that a minute shows it.
IMAGE_NOISE, LABEL_NOISE = 1.5, 0.3


def small_convnet(seed: int) -> nn.Module:
    """A convolutional network with 1.1 million parameters, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(1024, CLASSES)
        model = nn.Sequential(
            nn.Conv2d(CHANNELS, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (SIDE // 4) ** 2, 1024),
            nn.ReLU(),
            last,
        )
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(last.weight)  # every class equally likely at first, so that learning begins at once
    return model


class NoisyPatterns:
    """An endless stream of images: one of ten fixed random patterns under noise, labelled with its number.

    Some labels are wrong, as labels are. The patterns follow from ``seed`` alone and are the same for every worker;
    the samples differ by ``rank``, and no sample comes twice.
    """

    def __init__(self, seed: int, rank: int) -> None:
        shared = torch.Generator().manual_seed(seed)
        self._patterns = torch.randn(CLASSES, CHANNELS, SIDE, SIDE, generator=shared)
        self._random = torch.Generator().manual_seed(seed * 1_000_003 + rank + 1)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next ``size`` images, with a standard deviation of 1, and their labels."""
        truth = torch.randint(CLASSES, (size,), generator=self._random)
        noise = torch.randn(size, CHANNELS, SIDE, SIDE, generator=self._random)
        images = (self._patterns[truth] + IMAGE_NOISE * noise) / (1.0 + IMAGE_NOISE**2) ** 0.5
        mislabelled = torch.rand(size, generator=self._random) < LABEL_NOISE
        labels = torch.where(mislabelled, torch.randint(CLASSES, (size,), generator=self._random), truth)
        return images, labels
