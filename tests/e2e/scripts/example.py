"""Runs an example and writes down the numbers of the samples it uses.

Until there is a file it waits after every step for an order to form another group.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import geminid
from geminid.train.sampler import StepSampler

out, until, name, *options = sys.argv[1:]
examples = Path(__file__).parents[3] / "examples"
begin, batch = geminid.init, StepSampler.batch
numbers = []


def init(**more):
    run = begin(**more)

    def after_step():
        with open(f"{out}-{os.getpid()}", "a") as lines:
            lines.write(" ".join(map(str, numbers)) + "\n")
        numbers.clear()
        while not Path(until).exists() and run._agent.orders.form is None:
            time.sleep(0.02)

    run.on_step(after_step)
    return run


def batch_of(sampler, span):
    """Positions in the only epoch are numbers of samples."""
    numbers.extend(range(*span))
    return batch(sampler, span)


geminid.init, StepSampler.batch = init, batch_of
sys.argv = [name, *options]
runpy.run_path(str(examples / name), run_name="__main__")
