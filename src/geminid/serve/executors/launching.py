"""How the processes of a job are started: its supervisor if it may be elastic, and its command on each node if not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geminid.node.machine import slot_environment
from geminid.process.launch import Launch
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.jobrecords import worker_options
from geminid.serve.executors.nodepool import NodePool
from geminid.serve.executors.provider import Agents, NodeProvider
from geminid.serve.executors.rendezvous import meeting_place, place_among
from geminid.serve.livejob import LiveJob
from geminid.supervise.channel import Address
from geminid.supervise.events import JobEvent
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor

#: How long workers train on while no service is there, in seconds.
ORPHANS_S = 600.0

#: Total rate of heartbeats that the service takes, per second.
HEARTBEATS_PER_S = 2000.0

#: Longest time between two heartbeats of a worker; a hang is noticed after 10 s.
MAX_HEARTBEAT_S = 2.5


@dataclass(frozen=True, slots=True)
class Launching:
    """Starts processes with the agents of nodes, on slots that are leased.

    ``slot_memory_bytes`` is how much memory a process may use for each of its slots.
    """

    provider: NodeProvider
    agents: Agents
    nodes: NodePool
    folders: JobFolders
    patience: Patience
    slot_memory_bytes: int | None = None
    make_supervisor: Callable[..., Supervisor] = Supervisor

    def supervisor(
        self,
        job: LiveJob,
        on_event: Callable[[Supervisor, JobEvent], None],
        *,
        adopt: bool,
        lone_slots: tuple[str, ...] = (),
    ) -> Supervisor:
        """The supervisor of a job; with ``lone_slots``, of one process on all of them until that shows to be elastic.

        Raises:
            OSError, ValueError: it cannot be made.
        """
        made: list[Supervisor] = []
        spec = self.worker_spec(job)
        if lone_slots:
            first = [slot for slot in lone_slots if self._node(slot) == self._node(lone_slots[0])]  # it sees no others
            environment = lambda: self.launches(job, first)[0].environment  # noqa: E731
            spec = replace(spec, lone_slots=lone_slots, lone_environment=environment)
        made.append(
            self.make_supervisor(
                spec, on_event=lambda event: on_event(made[0], event), launcher=self.agents, adopt=adopt
            )
        )
        return made[0]

    def worker_spec(self, job: LiveJob) -> WorkerSpec:
        """How the workers of a job are run."""
        host, slots = self.provider.host, self.nodes.cluster.total_slots
        return WorkerSpec(
            command=job.spec.command,
            folder=self.folders.folder_of(job.id),
            name=job.id,
            working_folder=self._working_folder(job),
            environment={},
            slot_environment=lambda slot: self._environment(job, self._node(slot), [slot]),
            options=worker_options(job.spec),
            checkpoints=self.folders.checkpoints_of(job.id),
            saved_samples=job.saved_samples,
            address=None if host is None else Address(host=host),
            topology=self.nodes.topology,
            max_failures=job.spec.max_retries,
            min_slots=job.spec.min_slots,
            patience=replace(self.patience, heartbeat=heartbeat_s(slots, self.patience.heartbeat)),
        )

    def launches(self, job: LiveJob, slots: Sequence[str]) -> list[Launch]:
        """What is to run on each node of a command: one process, which sees the command's slots there."""
        by_node: dict[str, list[str]] = {}
        for slot in slots:
            by_node.setdefault(self._node(slot), []).append(slot)
        by_node = {node: by_node[node] for node in sorted(by_node, key=lambda node: (self.nodes.topology(node), node))}
        addresses = {node: self.agents.host(node) for node in by_node}
        meeting = meeting_place(addresses)
        launches = []
        for node, mine in by_node.items():
            environment = {
                **meeting,
                **self._environment(job, node, mine),
                **place_among(addresses, node, len(mine)),
                "GEMINID_JOB": job.id,
            }
            log = self.folders.logs_of(job.id) / ("out.log" if len(by_node) == 1 else f"{node}.log")
            folder = self._working_folder(job) or self.folders.folder_of(job.id)
            launches.append(Launch(job.spec.command, environment, folder, log, mine[0], f"{job.id}/out"))
        return launches

    def _working_folder(self, job: LiveJob) -> Path | None:
        """Where a job's command runs; None: in the job's own folder, of its node if that is another machine."""
        if job.spec.working_dir is not None:
            return Path(job.spec.working_dir)
        return None if self.provider.host is None else Path()

    def _environment(self, job: LiveJob, node: str, slots: Sequence[str]) -> dict[str, str]:
        """What a process needs to see its slots of a node and no others: the devices that are leased with them."""
        numbers = [int(slot.rpartition("/")[2]) for slot in slots]
        seats = [seat for slot in slots if (seat := self.provider.seat(slot)) is not None]
        place = self.provider.code_on(job.id, node)
        threads = {"OMP_NUM_THREADS": "1"} if self.nodes.gpu_type(node) == "cpu" else {}
        brought: Mapping[str, str] = {} if place is None else place.environment
        return {
            **threads,
            **brought,
            **dict(job.spec.env),
            **slot_environment(numbers, (), self.slot_memory_bytes),
            **self.provider.device_environment,
            "CUDA_VISIBLE_DEVICES": ",".join(device for seat in seats for device in seat.devices),
        }

    def _node(self, slot: str) -> str:
        return self.provider.names.place(slot)[0]


def heartbeat_s(slots: int, least_s: float = Patience().heartbeat) -> float:
    """How often workers send a heartbeat: the more of them there are, the less often."""
    return min(max(slots / HEARTBEATS_PER_S, least_s), max(MAX_HEARTBEAT_S, least_s))
