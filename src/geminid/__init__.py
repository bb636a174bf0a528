"""Geminid schedules deep-learning training on shared clusters of mixed accelerators.

Importing this package loads nothing heavy; import the module you need, for example
``geminid.cluster``, ``geminid.job`` or ``geminid.goodput``. Training scripts use ``geminid.init``, which loads PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from geminid.train.run import Run, init

__all__ = ["Run", "__version__", "init"]


def __getattr__(name: str) -> Any:
    """The training library, loaded when it is first used."""
    if name in ("init", "Run"):
        from geminid.train import run

        return getattr(run, name)
    raise AttributeError(f"module 'geminid' has no attribute {name!r}")
