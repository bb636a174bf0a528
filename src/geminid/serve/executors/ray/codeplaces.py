"""Where the code of jobs is on the nodes of a cluster, and to which nodes it is on its way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from geminid.process.shim import write
from geminid.serve.executors.ray.code import CodeStore
from geminid.serve.executors.ray.messages import CodePlace, Request, Ship, Unship
from geminid.serve.executors.ray.unanswered import Request as Asked
from geminid.serve.executors.ray.unanswered import Unanswered


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a job's code is on a node, and the agent that has it there."""

    agent: str
    place: CodePlace


class CodePlaces:
    """The nodes on which each job's code is, in which folder there and with which environment.

    The bridge brings it and removes it (``send``). It is on a node for as long as the node's agent lives, which is
    identified by its token (``agent_of``; of none, it is empty). Where it is, is written down for the next service,
    from before it is brought until it was removed: none is left behind, whichever process dies in between.
    """

    def __init__(
        self,
        folder: Path,
        store: CodeStore,
        send: Callable[[Request], int | None],
        agent_of: Callable[[str], str],
    ) -> None:
        self._folder, self._store, self._send, self._agent_of = folder, store, send, agent_of
        self._places: dict[str, dict[str, _Place]] = {}
        self._bringing, self._removing = Unanswered(), Unanswered()
        self._leftover: set[str] = set()  # jobs whose code may be somewhere, though that was not reported

    def on(self, job_id: str, node: str) -> CodePlace | None:
        """Where a job's code is on a node, if it was brought there and the node's agent is still the same."""
        known = self._places.get(job_id, {}).get(node)
        return known.place if known is not None and known.agent == self._agent_of(node) != "" else None

    def bringing(self, job_id: str) -> set[str]:
        """The nodes to which a job's code is on its way."""
        return self._bringing.of(job_id)

    def bring(self, job_id: str, nodes: Set[str], code: str) -> None:
        """Have a job's code on some nodes, where it is neither there nor on its way."""
        lacking = sorted(node for node in nodes - self._bringing.of(job_id) if self.on(job_id, node) is None)
        if lacking:
            if job_id not in self._places:
                self._write(job_id)
            package = str(self._store.package(code))
            self._bringing.ask(
                job_id,
                lacking,
                lambda number: self._send(Ship(id=number, job=job_id, code=package, nodes=lacking)),
            )

    def asked(self, number: int) -> Asked | None:
        """What the bridge was asked to bring under a number, unless it has answered."""
        return self._bringing.get(number)

    def answered(self, number: int) -> Asked | None:
        """The bridge has answered what it was asked to bring, if that is still wanted."""
        return self._bringing.answered(number)

    def came(self, job_id: str, places: Mapping[str, CodePlace]) -> None:
        """A job's code is on some more nodes; an agent that has unpacked it says so, and may be gone by now."""
        here = {node: _Place(place.agent or self._agent_of(node), place) for node, place in places.items()}
        self._places.setdefault(job_id, {}).update(here)
        self._write(job_id)

    def gone(self, job_id: str, node: str) -> None:
        """A job's code is not on a node any more."""
        if self._places.get(job_id, {}).pop(node, None) is not None:
            self._write(job_id)

    def recall(self, jobs: Collection[str]) -> None:
        """Where an earlier service had the code of these jobs brought; that of others is removed unless needed."""
        for path in self._folder.glob("*.json"):
            self._leftover.add(path.stem)
            with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
                known = json.loads(path.read_text(encoding="utf-8"))
                if path.stem in jobs:
                    self._places[path.stem] = msgspec.convert(known, dict[str, _Place])

    def may_be_left(self, job_id: str) -> None:
        """A job's code may be on nodes for which that was not reported."""
        self._leftover.add(job_id)

    def lose_bridge(self, bridge: int) -> None:
        """What this bridge was asked for will not be answered; it may have been done, or may be done yet."""
        for unanswered in (self._bringing, self._removing):
            self._leftover |= unanswered.jobs
            unanswered.drop_bridge(bridge)

    def keep_only(self, needed: Callable[[str], bool]) -> None:
        """Have the code of all jobs removed that do not need it any more."""
        for job_id in [job for job in self._somewhere() if not needed(job)]:
            if self._have_removed(job_id):
                self._places.pop(job_id, None)
                self._bringing.drop_job(job_id)
                self._leftover.discard(job_id)

    def _have_removed(self, job_id: str) -> bool:
        return self._removing.ask(job_id, [], lambda number: self._send(Unship(id=number, job=job_id)))

    def removed(self, number: int) -> None:
        """The bridge has removed what it was asked to; unless it was asked to bring it again, nothing of it is left."""
        request = self._removing.answered(number)
        if request is not None and request.job_id not in self._somewhere():
            with contextlib.suppress(OSError):
                self._written(request.job_id).unlink(missing_ok=True)

    def _somewhere(self) -> Set[str]:
        """The jobs of whose code something may be somewhere, or will be."""
        return self._places.keys() | self._bringing.jobs | self._leftover

    def _write(self, job_id: str) -> None:
        kept: dict[str, object] = msgspec.to_builtins(self._places.get(job_id, {}))
        with contextlib.suppress(OSError):  # then it is brought again
            self._folder.mkdir(exist_ok=True, mode=0o700)
            write(str(self._written(job_id)), kept)

    def _written(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"
