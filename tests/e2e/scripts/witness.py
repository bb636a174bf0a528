"""counting.py, which writes down which processes run it (in ``begun``), and whether a slot had two (``twice``)."""

import fcntl
import os
import runpy
import sys
import time
from pathlib import Path

import geminid  # noqa: F401

folder, slot = Path(sys.argv[1]).parent, os.environ["GEMINID_SLOTS"]
with (folder / "begun").open("a") as begun:
    print(os.getpid(), slot, os.environ["GEMINID_WORKER"], file=begun)
alone = (folder / f"slot{slot}").open("a")
for _ in range(40):  # whoever was there before may be dying
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        time.sleep(0.05)
else:
    (folder / "twice").touch()
runpy.run_path(str(Path(__file__).with_name("counting.py")), run_name="__main__")
