"""How a worker ends before training does: it was told to stop or to leave, or it cannot go on."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from geminid.supervise import protocol
from geminid.supervise.protocol import Form
from geminid.train.agent import Agent
from geminid.train.agreement import Place
from geminid.train.peers import Stuck
from geminid.train.saving import Saver
from geminid.train.trainstate import TrainingState

#: What a shell reports for a process that SIGTERM ended; also how a worker ends that was told to stop or to leave.
STOPPED_EXIT_CODE = 143

#: How a worker ends that could not form a group with a dying peer; a new process takes its place.
STUCK_EXIT_CODE = 75


class Ending:
    """Ends this process, in one of several ways. ``stopped_at_s`` is when its last step ended."""

    def __init__(self, agent: Agent | None, place: Place, state: TrainingState, saver: Saver | None) -> None:
        self._agent, self._place, self._state, self._saver = agent, place, state, saver
        self.stopped_at_s: float | None = None

    def leave(self, form: Form) -> NoReturn:
        """This worker is not part of the next generation."""
        assert self._agent is not None
        if self._saver is not None:
            self._saver.wait()
        self._agent.send(protocol.Leaving(generation=form.generation, stopped_at_s=self.stopped_at_s))
        self._end_process(STOPPED_EXIT_CODE)

    def give_up(self, problem: Stuck) -> NoReturn:
        """This process cannot go on: save the state, which is intact, for a new one to go on from."""
        assert self._agent is not None
        if self._saver is not None and self._state.present:
            self._saver.at_once()
        self._agent.send(protocol.Failed(reason=f"{problem}: it saved its state for a new process"))
        self._end_process(STUCK_EXIT_CODE)

    def stop(self) -> NoReturn:
        """Save, as far as that is this worker's business, and end the script."""
        order = self._agent.stop if self._agent is not None else None
        problem = None
        if self._saver is not None:
            wanted = self._place.rank == 0 and self._state.present and (order is None or order.save)
            problem = self._saver.at_once() if wanted else self._saver.wait()
        if problem is not None:
            print(f"geminid: error: stopped without saving: {problem}", file=sys.stderr, flush=True)
        if self._agent is not None:
            self._agent.send(protocol.Leaving(generation=self._place.generation, stopped_at_s=self.stopped_at_s))
            self._agent.close()
        raise SystemExit(1 if problem is not None else STOPPED_EXIT_CODE)

    def _end_process(self, code: int) -> NoReturn:
        """End at once: unwinding the script would run what it does after training."""
        assert self._agent is not None
        self._agent.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
