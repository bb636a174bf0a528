"""Lower bounds on the completion times of jobs that share slots over time, certified by prices.

The problem that is bounded (:class:`Instance`) is kinder than any real schedule: a job runs in any mixture of its
modes, changes them for nothing and does its phases in any order, and slots are divided at will. ``docs/bound.md`` has
the proof.
"""

from geminid.solve.bound.problem import Instance, JobKind
from geminid.solve.bound.totals import jct_bound, makespan_bound

__all__ = ["Instance", "JobKind", "jct_bound", "makespan_bound"]
