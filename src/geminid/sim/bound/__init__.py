"""How good any schedule of a workload can be: a certified bound on mean completion time and makespan.

``rates`` finds the best that the simulator lets a job do on every number of slots; ``instance`` makes of a simulation's
jobs what :mod:`geminid.solve.bound` bounds. The proof is in ``docs/bound.md``.
"""

from geminid.sim.bound.instance import Bound, bound

__all__ = ["Bound", "bound"]
