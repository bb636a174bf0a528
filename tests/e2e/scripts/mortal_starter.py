"""A service that kills itself when it starts a worker: mortal_starter.py SLOTS MOMENT, in $GEMINID_HOME.

Moments: ``asked`` (the warm process has been asked, and may still be importing PyTorch), ``answered`` (there is a
process), ``written`` (and it is written down) and ``begun`` (and it runs the script).
"""

import os
import signal
import sys
from typing import Any, NoReturn

from geminid.process.zygote import Fork, ForkedProcess, Request, Zygote
from geminid.serve.client import home
from geminid.serve.server import Options, serve

moment = sys.argv[2]
request_answer, begin = Zygote._request, ForkedProcess.begin


def die() -> NoReturn:
    with open(home() / "deaths", "a") as file:
        file.write(f"{moment}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def asking(self: Zygote, request: Request, kind: type[Any]) -> Any:
    if moment == "asked" and isinstance(request, Fork):
        self._connection.send(request)
        self._connection.drain(60.0)
        die()
    answer = request_answer(self, request, kind)
    if moment == "answered" and isinstance(request, Fork):
        die()
    return answer


def beginning(self: ForkedProcess) -> None:
    if moment == "written":
        die()
    begin(self)
    die()


Zygote._request, ForkedProcess.begin = asking, beginning  # type: ignore[method-assign]
serve(Options(home=home(), slots=int(sys.argv[1]), policy="geminid:gap=1,refresh=5", grace_s=5.0))
