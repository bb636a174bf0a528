"""Profiles: how fast, how noisy and how long the applications of a simulation train.

``load_applications`` reads measurements in the layout of Pollux's and Sia's simulators, or your own in the same one;
``built_in_applications`` needs no files. What a profile is and where the numbers come from: ``docs/profiles.md``.
"""

from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.profiles.peers import Profiles, load_applications, load_profiles

__all__ = ["Profiles", "built_in_applications", "load_applications", "load_profiles"]
