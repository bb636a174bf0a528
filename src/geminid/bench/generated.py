"""Step times of applications that do not exist: what quick benches of models have where there is no data."""

from __future__ import annotations

from itertools import product

import numpy as np

from geminid.executionplan import BUILT_IN_PLANS
from geminid.goodput.planmodel import GEMINID, GRADIENT_BYTES, PlanShape
from geminid.goodput.profile import Observation
from geminid.sim.measurements import MeasuredApplication
from geminid.sim.profiles.rubick import MeasuredModel, PlanMeasurement

#: Slots on each node, and samples of each slot, of what was "measured".
PLACEMENTS = ((1,), (2,), (4,), (1, 1), (2, 2), (4, 4), (1, 1, 1), (2, 2, 2))
BATCHES = (8, 16, 32, 64)

#: Standard deviation of the logarithm of a measured time.
NOISE = 0.03

#: By application, in seconds: a pass without samples, a sample, synchronising per node, and per slot.
APPLICATIONS = {
    "generated-vision": (0.05, 0.002, 0.010, 0.002),
    "generated-language": (0.02, 0.008, 0.025, 0.001),
}


def generated_measurements(seed: int = 0) -> list[MeasuredApplication]:
    """Measurements with a little noise of two applications whose steps follow a simple law."""
    rng = np.random.default_rng(seed)
    found = []
    for name, (pass_s, sample_s, node_s, slot_s) in APPLICATIONS.items():
        observations = []
        for placement, batch in product(PLACEMENTS, BATCHES):
            slots = sum(placement)
            compute_s = (pass_s + sample_s * batch) * float(np.exp(rng.normal(0.0, NOISE)))
            sync_s = 0.0 if slots == 1 else node_s * len(placement) + slot_s * slots
            observations.append(
                Observation(
                    nodes=len(placement),
                    slots=slots,
                    busiest_node_slots=max(placement),
                    per_slot_batch=batch,
                    accumulation_s=compute_s,
                    step_s=compute_s + sync_s,
                )
            )
        found.append(MeasuredApplication(name, "generated", tuple(observations)))
    return found


#: By model: seconds of a sample, parameters, and samples of a step, of jobs that follow the formula of plans.
PLAN_MODELS = {
    "generated-small": (0.01, 3e8, 64),
    "generated-medium": (0.06, 1e9, 32),
    "generated-large": (0.2, 2e9, 16),
}


def generated_plan_models(seed: int = 0) -> list[MeasuredModel]:
    """Step times under execution plans, with a little noise, of models that differ in size and compute."""
    rng = np.random.default_rng(seed)
    found = []
    for name, (sample_s, parameters, batch) in PLAN_MODELS.items():
        values = np.array([[parameter.typical for parameter in GEMINID.parameters]])
        values[0, 0] = sample_s
        rows = []
        for plan, placement in product(BUILT_IN_PLANS.values(), PLACEMENTS):
            shape = PlanShape.of(plan, placement, batch / sum(placement))
            exact = GEMINID.step_times(values, np.array([[GRADIENT_BYTES * parameters]]), shape)
            rows.append(PlanMeasurement(plan, placement, float(exact.real[0, 0]) * float(np.exp(rng.normal(0, NOISE)))))
        found.append(MeasuredModel(name, parameters, batch, tuple(rows), ()))
    return found
