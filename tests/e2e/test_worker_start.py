"""What a worker process does before its script has called ``geminid.init()``."""

import os
import signal
import subprocess
import sys

from geminid.supervise.channel import CONTROL, Address

SCRIPT = """
import os, time
from geminid.train.agent import end_without_supervisor_before_init
end_without_supervisor_before_init(look_s=0.05, orphan_s=0.3)
if %r:
    del os.environ["GEMINID_CONTROL"]
time.sleep(%r)
"""


def start(address, *, begins, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT % (begins, seconds)],
        env={**os.environ, CONTROL: str(address)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_process_that_has_not_begun_ends_with_its_supervisor(tmp_path):
    at = Address(path=str(tmp_path / "control"))
    listener, _ = at.listen()
    listener.setblocking(True)
    listener.settimeout(60.0)
    with start(at, begins=False, seconds=600.0) as worker:
        for _ in range(5):  # it looks whether somebody is there, and stays
            listener.accept()[0].close()
        assert worker.poll() is None
        listener.close()
        assert worker.wait(60.0) == -signal.SIGKILL
        assert "there is no supervisor any more" in worker.stderr.read()


def test_one_that_has_begun_is_left_to_its_agent(tmp_path):
    with start(Address(path=str(tmp_path / "nobody")), begins=True, seconds=1.0) as worker:
        assert worker.wait(60.0) == 0
