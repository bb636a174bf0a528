"""Predict a GPU type that a job has hardly run on from one that it knows.

All that is asked of the new type is a profile on one slot, which takes a minute to measure. Two ways of using it:

- ``scaled`` is Sia's rule: every time on the new type is the known type's, times the ratio of the pass times.
- ``recombined`` is ours: computing comes from the one-slot profile itself; synchronising comes from the known type,
  scaled by the ratio of the link bandwidths where they are known. Where they are not, synchronising and waiting for
  the host are scaled like computing (faster GPUs tend to sit in faster machines) and halved: an unknown overhead is
  overestimated at least as often as not, and optimism is what makes a job try the type and learn.

``geminid bench model`` prints the error of both on the measured types, beside that of pure optimism.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from geminid.goodput.fit import Corrections, ThroughputFit
from geminid.goodput.throughput import MODELS, Shape

_COMPUTE = {"pollux": ("alpha_c", "beta_c"), "geminid": ("launch_floor", "per_sample")}
_SYNC = {
    "pollux": ("alpha_n", "beta_n", "alpha_r", "beta_r"),
    "geminid": ("volume_node", "growth_node", "volume_rack", "growth_rack"),
}
_HOST: dict[str, tuple[str, ...]] = {"pollux": (), "geminid": ("host", "host_per_sample")}

#: What remains of the known type's overheads on a type whose links are not known.
UNKNOWN_OVERHEAD = 0.5

Method = Literal["recombined", "scaled"]


def transfer(
    known: ThroughputFit,
    one_slot: ThroughputFit,
    *,
    typical_batch: float,
    method: Method = "recombined",
    link_time_ratio: float | None = None,
) -> ThroughputFit:
    """The fit to use on a new GPU type until it has been observed on several slots.

    ``known`` is the fit on the known type and ``one_slot`` one to the new type's one-slot profile, both of the same
    model. Pass times are compared at the per-slot batch ``typical_batch``. ``link_time_ratio`` is how much longer the
    same message takes on the new type's links (the known bandwidth over the new one), if that is known.
    """
    if known.model != one_slot.model:
        raise ValueError(f"cannot combine a fit of model '{known.model}' with one of model '{one_slot.model}'")
    shape = Shape.of(1, 1, typical_batch)
    ratio = float(one_slot.step_times(shape).step_s / known.step_times(shape).step_s)
    specification = MODELS[known.model].parameters
    values = dict(zip([p.name for p in specification], known.parameters, strict=True))
    host_factor = sync_factor = ratio
    if method == "recombined":
        host_factor *= UNKNOWN_OVERHEAD
        sync_factor = ratio * UNKNOWN_OVERHEAD if link_time_ratio is None else link_time_ratio
    for names, factor in (
        (_COMPUTE[known.model], ratio),
        (_HOST[known.model], host_factor),
        (_SYNC[known.model], sync_factor),
    ):
        values |= {name: values[name] * factor for name in names}
    corrections = Corrections()
    if method == "recombined":
        corrections = one_slot.corrections
        computing = (
            *_COMPUTE[known.model],
            *(("plateau_sharpness",) if "plateau_sharpness" in values else ()),
        )
        values |= {name: one_slot[name] for name in computing}
    parameters = np.clip(list(values.values()), [p.lower for p in specification], [p.upper for p in specification])
    return replace(
        known,
        parameters=tuple(parameters.tolist()),
        corrections=corrections,
        observations=0,
        reason="carried over from another GPU type with a one-slot profile",
    )
