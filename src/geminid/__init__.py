"""Geminid schedules deep-learning training on shared clusters of mixed accelerators.

Importing this package loads nothing heavy; import the module you need, for example
``geminid.cluster``, ``geminid.job`` or ``geminid.goodput``.
"""

__version__ = "0.1.0"
