"""All built-in policies, and how their options are written: ``NAME:option=value,option=value``."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from geminid.fields import NOT_SHOWN, InvalidInput, Problem, suggestion
from geminid.policies.antman import AntMan
from geminid.policies.base import Policy
from geminid.policies.dally import Dally
from geminid.policies.fifo import Fifo
from geminid.policies.gandiva import Gandiva
from geminid.policies.gavel.fairness import (
    Hierarchical,
    HierarchicalPacked,
    HierarchicalPerf,
    Isolated,
    MaxMinFairness,
    MaxMinFairnessPacked,
    MaxMinFairnessPerf,
    Proportional,
    WaterFilling,
    WaterFillingPacked,
    WaterFillingPerf,
)
from geminid.policies.gavel.finishing import (
    AlloX,
    FinishTimeFairness,
    FinishTimeFairnessPacked,
    FinishTimeFairnessPerf,
    MinTotalDuration,
    MinTotalDurationPacked,
    MinTotalDurationPerf,
    ShortestJobFirst,
    Themis,
)
from geminid.policies.gavel.queues import FifoAgnostic, FifoPacked, FifoPerf, GandivaPacked
from geminid.policies.gavel.totals import (
    MaxSumThroughputByCostPacked,
    MaxSumThroughputByCostPackedSLOs,
    MaxSumThroughputByCostPerf,
    MaxSumThroughputByCostPerfSLOs,
    MaxSumThroughputPacked,
    MaxSumThroughputPerf,
)
from geminid.policies.geminid import Geminid
from geminid.policies.las import LeastAttainedService
from geminid.policies.lucid import Lucid
from geminid.policies.optimus import Optimus
from geminid.policies.options import describe, document_of, parse
from geminid.policies.pollux import Pollux
from geminid.policies.rubick import Rubick
from geminid.policies.shockwave import Shockwave
from geminid.policies.sia import Sia
from geminid.policies.slaq import Slaq
from geminid.policies.srtf import ShortestRemainingTimeFirst
from geminid.policies.tiresias import Tiresias

BUILT_IN: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fifo,
        ShortestRemainingTimeFirst,
        LeastAttainedService,
        Tiresias,
        Optimus,
        Dally,
        Pollux,
        Sia,
        Geminid,
        MaxMinFairness,
        MaxMinFairnessPerf,
        MaxMinFairnessPacked,
        WaterFilling,
        WaterFillingPerf,
        WaterFillingPacked,
        Hierarchical,
        HierarchicalPerf,
        HierarchicalPacked,
        Isolated,
        Proportional,
        FinishTimeFairness,
        FinishTimeFairnessPerf,
        FinishTimeFairnessPacked,
        MinTotalDuration,
        MinTotalDurationPerf,
        MinTotalDurationPacked,
        ShortestJobFirst,
        AlloX,
        Themis,
        MaxSumThroughputPerf,
        MaxSumThroughputPacked,
        MaxSumThroughputByCostPerf,
        MaxSumThroughputByCostPacked,
        MaxSumThroughputByCostPerfSLOs,
        MaxSumThroughputByCostPackedSLOs,
        FifoAgnostic,
        FifoPerf,
        FifoPacked,
        GandivaPacked,
        Gandiva,
        AntMan,
        Slaq,
        Shockwave,
        Lucid,
        Rubick,
    )
}

#: Units that field names carry and users need not write.
_UNITS = ("_gpu_s", "_s")


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option of a policy as users set it."""

    name: str
    field: str
    kind: Any
    default: Any


def options_of(policy: type[Policy]) -> list[Option]:
    """The options of a policy: its public dataclass fields that it does not ignore, without their units."""
    kinds = typing.get_type_hints(policy, include_extras=True)
    result = []
    fields = dataclasses.fields(typing.cast(Any, policy)) if hasattr(policy, "__dataclass_fields__") else ()
    for field in fields:
        if not field.name.startswith("_") and field.name not in policy.ignores():
            unit = next((unit for unit in _UNITS if field.name.endswith(unit)), "")
            default = field.default if field.default is not dataclasses.MISSING else None
            result.append(Option(field.name.removesuffix(unit), field.name, kinds[field.name], default))
    return result


def make_policy(
    text: str,
    load: Callable[[str], type[Policy]] | None = None,
    read: Callable[[str], object] | None = None,
    **defaults: Any,
) -> Policy:
    """Build a policy from ``NAME[:option=value,…]``, or from a user's own class through ``load``.

    ``read`` gives the data in a file, for options that are files.

    ``defaults`` set options that the text does not, where the policy has them (a seed, an interval). Raises
    InvalidInput with everything that is wrong.
    """
    name, _, options = text.partition(":")
    if name in BUILT_IN:
        policy = BUILT_IN[name]
    elif load is not None and name.endswith(".py"):
        class_name, _, options = options.partition(":")
        policy = load(f"{name}:{class_name}")
    else:
        known = ", ".join(sorted(BUILT_IN))
        hint = suggestion(name, BUILT_IN)
        raise InvalidInput([Problem("policy", name, f"must be one of {known}, or path/to/file.py:Class{hint}")])
    available = {option.name: option for option in options_of(policy)}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for part in filter(None, options.split(",")):
        key, equals, raw = part.partition("=")
        option = available.get(key)
        if option is None or not equals:
            known = ", ".join(available) or "none"
            hint = suggestion(key, available)
            expected = f"is not an option of {policy.name}, which has: {known}{hint}"
            problems.append(Problem(f"option {part!r}", NOT_SHOWN, expected))
            continue
        document = document_of(option.kind)
        try:
            if document is None:
                values[option.field] = parse(raw, option.kind)
            elif read is None:
                raise ValueError
            else:
                values[option.field] = document.from_dict(read(raw))
        except InvalidInput as error:
            where = f"option {key} of {policy.name}"
            problems += [dataclasses.replace(bad, field=f"{where}: {bad.field}") for bad in error.problems]
        except ValueError:
            problems.append(Problem(f"option {key} of {policy.name}", raw, f"must be {describe(option.kind)}"))
    if problems:
        raise InvalidInput(problems)
    asked = dict(values)
    for field, value in defaults.items():
        if any(option.field == field for option in available.values()):
            values.setdefault(field, value)
    try:
        built = policy(**values)
    except Exception as error:
        where = f"policy {policy.name}"
        raise InvalidInput([Problem(where, NOT_SHOWN, f"cannot be made ({type(error).__name__}: {error})")]) from error
    left_out = [name for name, option in available.items() if option.field in built.parts_left_out]
    asked_for = [name for name in left_out if asked.get(available[name].field)]
    if asked_for:
        why = "has no effect with published=true, the default for traces of durations: add published=false"
        raise InvalidInput([Problem(f"option {name} of {policy.name}", True, why) for name in asked_for])
    interval_s: object = built.interval_s
    if interval_s is not None and not (isinstance(interval_s, int | float) and 0 < interval_s < float("inf")):
        raise InvalidInput([Problem(f"interval_s of {policy.name}", interval_s, "must be a number above 0 or None")])
    return built
