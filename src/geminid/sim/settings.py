"""How the simulated world behaves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the simulated world behaves.

    - ``rescale_s``: pause of every change of slots (None: the pauses that come with the profiles).
    - ``interference``: fraction of their speed that distributed jobs lose when they share a node.
    - ``node_mtbf_s``: mean time between failures of a node (None: nodes never fail). It is back after ``repair_s``.
      Jobs on it fall back to their last checkpoint; checkpoints are ``checkpoint_s`` of work apart.
    - ``provision_s``: time until a node that the policy returned and requests again is there.
    - ``oracle``: every policy knows what only a simulator can know.
    - ``estimate_error``: standard deviation of the logarithm of the error in the work that jobs declare
      (0: it is exact, from epochs and dataset; None: they declare none).
    - ``speeds_known``: schedulers know all step times of a job when it arrives; otherwise, what jobs have measured.
    - ``speed_error``: standard deviation of the logarithm of the error in the step times that running jobs report.
    - ``arrivals_known``: schedulers know when the next job will arrive.
    - ``tune_s``: None, and jobs choose the best batch size at every decision of the scheduler, as in the published
      simulators. A number, and they do it as the training library does: a job starts with its initial batch, looks
      for a better one at this interval using its own measurements, and changes if it is clearly better.
    - ``report_s``: time after a change of slots or batch until a job has measured its speed.
    - ``seed``: of everything random. ``model``: the throughput model that schedulers fit.
    - ``debug``: check the engine's invariants at every event.
    """

    rescale_s: float | None = None
    interference: float = 0.0
    node_mtbf_s: float | None = None
    repair_s: float = 1800.0
    checkpoint_s: float = 600.0
    provision_s: float = 120.0
    seed: int = 0
    model: str = "geminid"
    oracle: bool = False
    estimate_error: float | None = 0.0
    speeds_known: bool = False
    speed_error: float = 0.0
    arrivals_known: bool = False
    tune_s: float | None = None
    report_s: float = 0.0
    debug: bool = False
