"""Profiles: how fast, how noisy and how long the applications of a simulation train.

``load_applications`` reads measurements in the layout of Pollux's and Sia's simulators, or your own in the same one;
``load_throughputs`` reads Gavel's tables of steps per second; ``built_in_applications`` needs no files. What a profile
is and where the numbers come from: ``docs/profiles.md``.
"""

from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.profiles.gavel import ThroughputTable, find_throughputs, load_throughputs
from geminid.sim.profiles.peers import Profiles, load_applications, load_profiles

__all__ = [
    "Profiles",
    "ThroughputTable",
    "built_in_applications",
    "find_throughputs",
    "load_applications",
    "load_profiles",
    "load_throughputs",
]
