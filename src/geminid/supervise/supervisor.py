"""One job's supervisor: starts its workers, resizes the group while they train, and brings them through failures.

    spec = WorkerSpec(
        command=("python", "train.py"),
        folder=Path("jobs/17"),  # socket, checkpoints, logs
        slot_environment=lambda slot: {"CUDA_VISIBLE_DEVICES": slot},
        options={"max_batch_size": 4096},  # overrides what the script says
    )
    launcher = Zygote(preload="geminid.train.preload")
    with launcher, Supervisor(spec, on_event=handle, launcher=launcher) as job:
        job.resize(["0"])  # start on slot 0
        job.resize(["0", "1"])  # live: slot 0's process continues
        job.retune(Plan(per_slot_batch=64))  # fix the batch plan; None lets the job choose again
        job.wait(lambda status: status.phase.over)  # or job.stop(): save and end

A ``Zygote`` forks workers, of any number of jobs, from a process that has imported PyTorch. ``resize`` replaces the
last request. Workers on several machines need ``WorkerSpec(address=…)``, which all of them can reach, and
``checkpoints`` that all of them see.

A state machine (``state.py``) in a thread of its own (``loop.py``) decides what happens. The methods may be called from
any thread and return at once, except ``wait``, ``wait_for_end`` and ``detach``. ``on_event`` is called in the
supervisor's thread and must not block. No worker outlives the ``with`` block, unless ``detach`` was called: then the
workers train on, and another supervisor with ``adopt=True`` takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from geminid.clock import Clock
from geminid.process.launch import Launcher, PlainLauncher
from geminid.supervise import inputs, protocol
from geminid.supervise.events import JobEnded, JobEvent, JobStatus
from geminid.supervise.handover import Handover
from geminid.supervise.loop import JobLoop
from geminid.supervise.protocol import Plan
from geminid.supervise.spec import WorkerSpec
from geminid.wire.reactor import Reactor, shared_reactor

#: How often ``wait`` looks at what workers are doing, in seconds: heartbeats notify nobody.
WAIT_POLL_S = 0.05


class Supervisor:
    """One job and its workers; see the module."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        on_event: Callable[[JobEvent], None] = lambda event: None,
        launcher: Launcher | None = None,
        adopt: bool = False,
        reactor: Reactor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.spec = spec
        self._clock = clock or Clock()
        self._loop = JobLoop(
            spec,
            on_event,
            launcher=launcher or PlainLauncher(),
            left=Handover.read(spec.folder.absolute()) if adopt else None,
            reactor=reactor or shared_reactor(),
            clock=self._clock,
        )

    def __enter__(self) -> Self:
        """Begin to supervise."""
        self._loop.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers at once, unless the job is over or detached."""
        self.kill()
        self._loop.thread.join()

    @property
    def status(self) -> JobStatus:
        """The job as it is now, with what its workers last reported that they do."""
        with self._loop.changed:
            status = self._loop.status
        links = dict(self._loop.processes.links)
        workers = tuple(
            replace(one, phase=links[one.worker].activity.phase) if one.worker in links else one
            for one in status.workers
        )
        return status if workers == status.workers else replace(status, workers=workers)

    def resize(self, slots: Sequence[str], plan: Plan | None = None) -> None:
        """Run the job on these slots: live if it is running, from its last checkpoint if it is not.

        Raises:
            ValueError: there are no slots, or more than the job's largest batch can be divided over.
        """
        if not slots:
            raise ValueError("a job cannot run on no slots: stop it instead")
        ready = self.status.ready
        if ready is not None and len(slots) * ready.smallest_per_slot > ready.largest_batch:
            raise ValueError(
                f"{len(slots)} slots are too many: each needs at least {ready.smallest_per_slot} samples of a batch, "
                f"which has at most {ready.largest_batch}"
            )
        self._loop.post(inputs.Resize(tuple(slots), plan))

    def set_min_slots(self, min_slots: int) -> None:
        """From now on, do not train on fewer slots than these: survivors of a loss wait for others."""
        self._loop.post(inputs.SetMinSlots(min_slots))

    def retune(self, plan: Plan | None) -> None:
        """Train with this batch plan; with None, the job chooses for itself again."""
        self._loop.post(inputs.SendToMembers(protocol.Retune(plan=plan)))

    def checkpoint(self) -> None:
        """Have the job write a checkpoint now."""
        self._loop.post(inputs.SendToMembers(protocol.SaveCheckpoint()))

    def lose(self, slots: Collection[str], reason: str) -> None:
        """These slots are gone with their machine. The other workers continue from memory, if there are any.

        It does not count as a failure of the job.
        """
        self._loop.post(inputs.SlotsLost(slots, reason))

    def drop_slots(self, gone: Callable[[str], bool]) -> None:
        """Before supervision begins: do not use these slots. Workers that were taken over there leave.

        If there are no others they train on, until the job is resized or stopped.
        """
        group = self._loop.state.group
        group.remove_slots([slot for slot in group.requested if gone(slot)])

    def stop(self, *, save: bool = True) -> None:
        """Have the workers save and end; those that have not after the grace period are ended."""
        self._loop.post(inputs.StopRequested(save))

    @property
    def has_ended(self) -> bool:
        """Whether the job is not supervised any more."""
        return not self._loop.thread.is_alive()

    def kill(self) -> None:
        """End all workers now."""
        self._loop.post(inputs.KillRequested())

    def detach(self) -> None:
        """Stop supervising and leave the workers alone; they look for a new supervisor at the same address."""
        self._loop.inbox.put(self._loop.detach)
        self._loop.thread.join()

    def wait(self, reached: Callable[[JobStatus], bool], timeout_s: float = 60.0) -> JobStatus:
        """Wait until ``reached`` is true of the status, or the job is over; the status then.

        Raises:
            TimeoutError: it did not happen in time.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        with self._loop.changed:
            while not (reached(status := self.status) or status.phase.over):
                if self._clock.monotonic_s() > deadline_s:
                    raise TimeoutError(self._timeout_text(timeout_s))
                self._loop.changed.wait(WAIT_POLL_S)
            return status

    def wait_for_end(self, timeout_s: float = 60.0) -> JobEnded:
        """Wait until the job is over, its files are closed and every event has been emitted; how it ended.

        The status shows the end a moment earlier, when the last events may not have been emitted.

        Raises:
            TimeoutError: it did not end in time.
        """
        self._loop.thread.join(timeout_s)
        if self._loop.thread.is_alive():
            raise TimeoutError(self._timeout_text(timeout_s))
        return self._loop.state.end or JobEnded(self._loop.state.phase, self._loop.state.reason)

    def _timeout_text(self, timeout_s: float) -> str:
        logs = self._loop.processes.folder / "logs"
        return f"{self.spec.name} was still {self.status.phase} after {timeout_s:g} s; its logs are in {logs}"
