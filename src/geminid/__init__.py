"""Geminid schedules deep-learning training on shared clusters of mixed accelerators.

Importing this package loads nothing heavy; import the module you need, for example
``geminid.cluster``, ``geminid.job`` or ``geminid.goodput``. Training scripts use ``geminid.init``, which loads PyTorch;
programs and notebooks that submit jobs use ``geminid.connect``, which does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from geminid.serve.connection import connect
    from geminid.train.run import Run, init

__all__ = ["Run", "__version__", "connect", "init"]


def __getattr__(name: str) -> Any:
    """The training library, and the client of the service, loaded when they are first used."""
    if name in ("init", "Run"):
        from geminid.train import run

        return getattr(run, name)
    if name == "connect":
        from geminid.serve.connection import connect

        return connect
    raise AttributeError(f"module 'geminid' has no attribute {name!r}")
