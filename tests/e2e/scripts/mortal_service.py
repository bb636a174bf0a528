"""A service that kills itself with SIGKILL at its n-th write point: mortal_service.py SLOTS N, in $GEMINID_HOME."""

import os
import signal
import sys
from itertools import count

from geminid.serve.client import home
from geminid.serve.server import Options, serve

points, last = count(1), int(sys.argv[2])


def die(point: str) -> None:
    """Count write points, and die at the last one that is wanted."""
    if next(points) == last:
        with open(home() / "deaths", "a") as file:
            file.write(f"{last} {point}\n")
        os.kill(os.getpid(), signal.SIGKILL)


serve(Options(home=home(), slots=int(sys.argv[1]), policy="geminid:gap=1,refresh=5", grace_s=5.0), before_write=die)
