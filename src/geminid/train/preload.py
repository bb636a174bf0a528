"""What the zygote of training workers imports in advance (``process/zygote.py``), and what it runs around a script."""

from __future__ import annotations

import os

import torch

import geminid.train.run  # noqa: F401
from geminid.supervise.handover import write_end
from geminid.train.agent import end_without_supervisor_before_init

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimiser imports half of PyTorch


def before_script() -> None:
    """Prepare a forked worker: it ends if its supervisor disappears, and computes with its own number of threads."""
    end_without_supervisor_before_init()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))


def after_script() -> None:
    """Record that the script has ended well after training."""
    write_end()
