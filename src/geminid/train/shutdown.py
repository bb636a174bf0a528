"""How a worker's process ends before training does: it has to stop or to leave the group, or it cannot continue."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from geminid.supervise import protocol
from geminid.supervise.protocol import Form
from geminid.train import peers
from geminid.train.peers import Stuck
from geminid.train.step import Step
from geminid.train.worker import Worker

#: Exit code of a worker that has stopped or left the group: what a shell reports for a process ended by SIGTERM.
STOPPED_EXIT_CODE = 143

#: Exit code of a worker that could not form a group with a dying peer; a new process takes its place.
STUCK_EXIT_CODE = 75


class Shutdown:
    """Ends this process, in one of several ways."""

    def __init__(self, worker: Worker, step: Step) -> None:
        self._agent, self._group, self._state = worker.agent, worker.group, worker.state
        self._step, self._saver = step, worker.saver

    def leave_group(self) -> None:
        """Destroy the process group, so that peers notice that this worker has left it."""
        self._step.gradients.release()
        peers.leave_group()

    def leave(self, form: Form) -> NoReturn:
        """This worker is not part of the next generation."""
        if self._saver is not None:
            self._saver.wait()
        self._send_leaving(form.generation)
        self._end_process(STOPPED_EXIT_CODE)

    def give_up(self, problem: Stuck) -> NoReturn:
        """This process cannot continue: save the state, which is intact, for a new process."""
        if self._saver is not None and self._state.present:
            self._state.progress.end_epoch_if_over()
            self._saver.save_now()
        self._agent.send(protocol.Failed(reason=f"{problem}: it saved its state for a new process"))
        self._end_process(STUCK_EXIT_CODE)

    def stop_if_ordered(self) -> None:
        """Stop if this worker has to."""
        if self._agent.orders.stop:
            self.stop()

    def stop(self) -> NoReturn:
        """Save, if that is this worker's task, and end the script."""
        self._state.progress.end_epoch_if_over()
        self.leave_group()
        try:
            problem = None
            if self._saver is not None:
                saves = self._group.leads and self._state.present and self._agent.orders.save_before_stop
                problem = self._saver.save_now() if saves else self._saver.wait()
            if problem is not None:
                print(f"geminid: error: stopped without saving: {problem}", file=sys.stderr, flush=True)
            self._send_leaving(self._group.generation)
            self._agent.close()
            raise SystemExit(1 if problem is not None else STOPPED_EXIT_CODE)
        finally:
            self._state.progress.training = False

    def _send_leaving(self, generation: int) -> None:
        self._agent.send(protocol.Leaving(generation=generation, stopped_at_s=self._step.ended_at_s))

    def _end_process(self, code: int) -> NoReturn:
        """End at once: unwinding the script would run its code that follows training."""
        self._agent.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
