"""Hugging Face Accelerate, elastic: the same ``Accelerator``, with a loop over ``accelerator.epochs``.

    from geminid.accelerate import Accelerator  # instead of: from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in accelerator.epochs(3):  # instead of: for epoch in range(3)
        ...  # as it was

Needs ``pip install 'geminid[accelerate]'``.
"""

from __future__ import annotations

from geminid.train.integrations.accelerate import Accelerator

__all__ = ["Accelerator"]
