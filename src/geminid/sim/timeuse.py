"""Where the working time of a simulated job goes: computing, synchronising, and samples that are worth less."""

from __future__ import annotations

from geminid.goodput.efficiency import efficiency
from geminid.sim.application import Application
from geminid.sim.rates import epoch_gradients
from geminid.sim.simjob import SimJob, Stint


def iteration_times(app: Application, stint: Stint) -> tuple[float, float]:
    """Seconds of one iteration of a stint, and of the same iteration without synchronising.

    An iteration is one optimiser step. Contention for uplinks is included, a partner on the same slots is not.
    """
    assert stint.batch is not None
    path = stint.crossing.path
    accumulation_s, step_s = app.truth[stint.gpu_type].step_times_over(stint.placement, stint.batch.per_slot, path)
    iteration_s = stint.batch.accumulation * accumulation_s + step_s
    return iteration_s * stint.contention, (stint.batch.accumulation + 1) * accumulation_s


def communication_share(job: SimJob, stint: Stint) -> float:
    """The share of a stint's working time that synchronising adds to computing; 0 for jobs without an application."""
    if job.application is None or stint.batch is None or len(stint.placement) == sum(stint.placement) == 1:
        return 0.0
    iteration_s, computing_s = iteration_times(job.application.value, stint)
    return max(0.0, 1.0 - computing_s / iteration_s)


def time_shares(job: SimJob, stint: Stint) -> dict[str, float]:
    """The shares of a stint's working time that were useful, lost to scaling, and lost to statistics.

    Lost to scaling is the time that perfect scaling of a one-slot pass would have saved. Lost to statistics is the time
    that would have been saved if every sample were worth as much as at the initial batch size.
    """
    if job.application is None or stint.batch is None:
        return {"useful_share": 1.0, "lost_to_scaling_share": 0.0, "lost_to_statistics_share": 0.0}
    app = job.application.value
    iteration_s, _ = iteration_times(app, stint)
    alone_s, _ = app.truth[stint.gpu_type].step_times((1,), stint.batch.per_slot)
    scaling = min(1.0, (stint.batch.accumulation + 1) * alone_s / iteration_s)
    squared, variance = epoch_gradients(job.application, stint.batch.total)
    epoch = min(stint.epoch, len(squared) - 1)
    worth = min(1.0, float(efficiency(squared[epoch], variance[epoch], stint.batch.total / app.initial_batch)))
    return {
        "useful_share": scaling * worth,
        "lost_to_scaling_share": 1.0 - scaling,
        "lost_to_statistics_share": scaling * (1.0 - worth),
    }
