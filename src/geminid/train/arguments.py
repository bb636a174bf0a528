"""Check what a script passes to ``geminid.init``, ``run.prepare`` and ``run.steps``."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

from geminid.goodput.batchplan import BatchLimits
from geminid.supervise import channel, protocol

#: The options that a supervisor may override, by their names in a job file.
OPTIONS = (
    *("initial_batch_size", "max_batch_size", "min_per_slot_batch", "max_per_slot_batch"),
    *("scaling_rule", "checkpoint_interval_s"),
)


def whole(name: str, value: Any, least: int | None = 1, most: int | None = protocol.LARGEST_COUNT) -> int:
    """The value, if it is a whole number within the bounds.

    Raises:
        ValueError: it is not.
    """
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if number is None or (least is not None and number < least):
        enough = f" of at least {least}" if least is not None else ""
        raise ValueError(f"{name} is {value!r}: it must be a whole number{enough}")
    if most is not None and number > most:
        raise ValueError(f"{name} is larger than {most:,}: it must be a whole number of at most that")
    return number


def check_number(name: str, value: Any, kind: str, fits: Callable[[float], bool]) -> None:
    """Check that a value is a number of some kind.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int | float) or not fits(value):
        raise ValueError(f"{name} is {value!r}: it must be a {kind} number")


def options_from(text: str | None) -> dict[str, Any]:
    """The supervisor's options.

    Raises:
        ValueError: one is unknown.
    """
    options = json.loads(text) if text else {}
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise ValueError(f"{channel.OPTIONS} has {min(unknown)!r}: known are {', '.join(OPTIONS)}")
    return {name: value for name, value in options.items() if value is not None}


def batch_limits(
    batch_size: int | None,
    given: Mapping[str, int | None],
    options: Mapping[str, Any],
    *,
    fewest: int,
    whose: str = "the loader's batch_size",
) -> BatchLimits:
    """The limits of batch plans: those that the script has given, overridden by the supervisor's options.

    ``batch_size`` is the script's own (``whose`` says what that is), and ``fewest`` the fewest samples that the model
    can be trained with at a time.

    Raises:
        ValueError: they contradict each other.
    """
    initial = options.get("initial_batch_size", batch_size)
    if initial is None:
        raise ValueError("the loader has no batch_size: it must have one, which the learning rate was chosen for")
    largest, smallest_per_slot, largest_per_slot = (
        options.get(name, given[name]) for name in ("max_batch_size", "min_per_slot_batch", "max_per_slot_batch")
    )
    largest = initial if largest is None else whole("max_batch_size", largest)
    if largest < initial:
        raise ValueError(f"max_batch_size is {largest}: it must be at least {whose}, {initial}")
    if largest_per_slot is not None:
        whole("max_per_slot_batch", largest_per_slot)
    if smallest_per_slot is None:
        smallest_per_slot = min(fewest, initial, largest_per_slot or fewest)
    most = largest if largest_per_slot is None else min(largest, largest_per_slot)
    if whole("min_per_slot_batch", smallest_per_slot) > most:
        raise ValueError(
            f"min_per_slot_batch is {smallest_per_slot}: it must be at most {most}, the largest batch for one slot"
        )
    return BatchLimits(
        initial=initial,
        largest=largest,
        smallest_per_slot=smallest_per_slot,
        largest_per_slot=max(initial, smallest_per_slot) if largest_per_slot is None else largest_per_slot,
    )
