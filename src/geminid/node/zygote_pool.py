"""A launcher that is warm when it can be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from geminid.process.launch import Launch, PlainLauncher, WorkerProcess, adopted
from geminid.process.zygote import Zygote

#: What the zygotes of training workers import in advance.
PRELOAD = "geminid.train.preload"


class WarmLauncher:
    """Forks workers from a warm process, which is made when it is first needed and again if it is gone.

    With ``keep``, the warm process is made at once, starts everything, and its workers end with it: no process outlives
    the owner of this launcher. It has the descriptors to ``hold`` open until they have ended.
    """

    def __init__(
        self, *, keep: bool = False, hold: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._keep, self._hold, self._environment = keep, hold, environment
        self._zygote: Zygote | None = self._warm_up() if keep else None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The warm process, if there is one."""
        return None if self._zygote is None else self._zygote.pid

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a worker; afresh, if there is no warm process to be had."""
        for _ in range(2):
            with self._lock:
                zygote = self._zygote = self._zygote or self._warm_up()
            try:
                return zygote.start(launch)
            except FileNotFoundError:
                raise  # there is no such program, or no such folder
            except OSError:
                with self._lock:
                    self._zygote = None if self._zygote is zygote else self._zygote
                with contextlib.suppress(OSError):
                    zygote.close()
        if self._keep:
            raise OSError("the process that workers are forked from cannot be started")
        return PlainLauncher().start(launch)

    def _warm_up(self) -> Zygote:
        return Zygote(preload=PRELOAD, keep=self._keep, hold=self._hold, environment=self._environment)

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a worker that an earlier launcher started."""
        return adopted(identity)

    def close(self) -> None:
        """End the warm process, if there is one."""
        if self._zygote is not None:
            self._zygote.close()
