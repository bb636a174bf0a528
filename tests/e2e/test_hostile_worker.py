"""A worker may say anything to its supervisor, over the real socket: it hurts its own job at most."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from live import SCRIPTS, Live
from msgspec.structs import fields

from geminid.supervise import protocol
from geminid.supervise.protocol import FromWorker, Plan
from waiting import until

#: How many conversations are tried at most and at least, and for how long.
CONVERSATIONS, FEWEST_CONVERSATIONS, ENOUGH_S = 60, 10, 30.0

#: How many jobs are spoken for at a time.
LIARS = 6

#: How long the honest job is: it trains for longer than all of that, until it is to hurry.
EPOCHS = 400

NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([10**320, -(10**400), 2**53, 2**53 + 1, 2**63, 1e308, -1e308, 1e-320, 0.5]),
    st.floats(allow_nan=True, allow_infinity=True),
)
ANYTHING = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    st.text(max_size=20),
    st.sampled_from(["x" * 70_000, "\ud800", "\x00", "nan", "../../etc"]),
    st.lists(NUMBERS, max_size=3),
    st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
)


def of_type(hint: object) -> st.SearchStrategy:
    """A value that a field may well have, at the edge of what is believed."""
    if hint is int:
        return st.sampled_from([0, 1, 2, 3, 8, 2**31, 2**53])
    if hint is float:
        return st.sampled_from([0.0, -1.0, 0.001, 1.0, 1e12, 1e-300])
    if hint is str:
        return st.sampled_from(["", "w1", "x" * 1000, "tcp:nowhere:1"])
    if hint is bool:
        return st.booleans()
    if hint is Plan:
        return st.builds(lambda a, b: {"per_slot_batch": a, "accumulation_steps": b}, of_type(int), of_type(int))
    if options := [one for one in get_args(hint) if one is not type(None)]:
        if all(isinstance(one, str) for one in options):
            return st.sampled_from(options)
        if "dict" in str(hint):
            return st.dictionaries(st.text(max_size=5), st.sampled_from([1.0, "nan", 1e300]), max_size=3)
        return st.one_of(st.none(), of_type(options[0]))
    return ANYTHING


def spoken(kind: type) -> st.SearchStrategy[str]:
    """Messages of a kind: right, with an absurd value, with a field missing, with one twice, or with one too many."""
    hints = get_type_hints(kind)
    likely = {one.name: of_type(hints[one.name]) for one in fields(kind)}
    needed = [one.name for one in fields(kind) if one.required]
    right = st.fixed_dictionaries(likely)
    name = st.sampled_from(list(likely))
    return st.one_of(
        right.map(lambda document: written(kind, document)),
        right.map(lambda document: written(kind, document)),
        st.builds(lambda document, one, value: written(kind, {**document, one: value}), right, name, ANYTHING),
        st.builds(lambda document, one: written(kind, {k: v for k, v in document.items() if k != one}), right, name)
        if needed
        else right.map(lambda document: written(kind, document)),
        st.builds(lambda document, value: written(kind, {**document, "more": value}), right, ANYTHING),
        st.builds(lambda document, one: repeated(written(kind, document), one, document[one]), right, name),
    )


def written(kind: type, document: dict) -> str:
    return json.dumps({"kind": kind.__name__.lower(), **document})


def repeated(line: str, name: str, value: object) -> str:
    return f"{line[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"


SPOKEN = [kind for kind in get_args(FromWorker) if kind is not protocol.Hello]
LINES = st.one_of(*(spoken(kind) for kind in SPOKEN), st.text(max_size=30), st.just("[" * 5000), st.just("9" * 100_000))


class Liars:
    """Jobs in the place of whose workers a test speaks to the supervisors; of each once, while others are started."""

    def __init__(self, live: Live, count: int) -> None:
        self.live = live
        self.waiting = [self._submit() for _ in range(count)]
        self.spoken: list[str] = []

    def _submit(self) -> str:
        command = (sys.executable, str(SCRIPTS / "idle.py"))
        return self.live.submit(*command, min_slots=1, max_slots=2, name="liar")

    @contextlib.contextmanager
    def line(self) -> Iterator[socket.socket]:
        """A line to the supervisor of the next job that has a worker, as that worker."""
        job_id, line = until(self._next, every_s=0.05, seen=lambda: "no job of the liars has a worker")
        self.waiting.remove(job_id)
        self.spoken.append(job_id)
        with contextlib.closing(line):
            yield line
        if not self.is_over(job_id):
            self.live.client.post(f"jobs/{job_id}/cancel")
        self.waiting.append(self._submit())

    def _next(self) -> tuple[str, socket.socket] | None:
        """The first job whose worker can be replaced by now, and a line to its supervisor."""
        for job_id in self.waiting:
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                return job_id, self._connected(self.live.home / "jobs" / job_id)
        return None

    def is_over(self, job_id: str) -> bool:
        return self.live.job(job_id)["finished_at_s"] is not None

    @staticmethod
    def _connected(folder: Path) -> socket.socket:
        saved = json.loads((folder / "supervisor.json").read_text())
        ((worker, known),) = saved["workers"].items()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(5.0)
        try:
            line.connect(str(folder / "control"))
            line.sendall(protocol.encode(protocol.Hello(token=known["token"], worker=worker, pid=known["pid"])))
            if b"welcome" not in line.recv(4096):
                raise ConnectionRefusedError
        except BaseException:
            line.close()
            raise
        return line


def test_whatever_a_worker_says_hurts_its_own_job_at_most():
    """Huge integers, NaN, huge strings, missing and repeated fields, in any order; another job trains on unharmed."""
    with Live(slots=1 + LIARS, policy="fifo") as live:
        pid = live.pid
        honest = live.patient("a", min_slots=1, max_slots=1, epochs=EPOCHS)
        live.until(honest, lambda job: job["samples"] > 0)
        liars = Liars(live, LIARS)
        enough_at_s = time.monotonic() + ENOUGH_S

        @settings(max_examples=CONVERSATIONS, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(st.lists(LINES, min_size=1, max_size=12))
        def converse(lines: list[str]) -> None:
            if time.monotonic() > enough_at_s:  # a slow machine tries fewer
                return
            with liars.line() as line, contextlib.suppress(OSError):
                for text in lines:
                    line.sendall(text.encode("utf-8", "replace") + b"\n")
            assert live.pid == pid
            assert live.client.get("status")["trouble"] == ""
            assert live.job(honest)["phase"] == "running"
            assert honest in {job["id"] for job in live.client.get("jobs")}

        converse()
        assert len(liars.spoken) >= FEWEST_CONVERSATIONS
        for job_id in (*liars.spoken, *liars.waiting):
            if not liars.is_over(job_id):
                live.client.post(f"jobs/{job_id}/cancel")
        after = live.submit("true", name="after")  # decisions are still made
        assert live.over(after)["phase"] == "succeeded"
        done = live.hurry(honest, "a", epochs=EPOCHS)
        assert (done["failures"], live.pid) == (0, pid)
        assert live.run("queue", "--all").returncode == live.run("explain", liars.spoken[0]).returncode == 0


def test_a_script_that_asks_for_absurdly_many_epochs_is_told_so_and_nothing_else_happens():
    with Live(slots=2) as live:
        script = live.home / "endless.py"
        script.write_text(
            "import torch, geminid\n"
            "from torch.utils.data import DataLoader, TensorDataset\n"
            "run = geminid.init()\n"
            "model = torch.nn.Linear(1, 1)\n"
            "loader = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4)\n"
            "parts = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)\n"
            "for epoch in run.epochs(10**320): pass\n"
        )
        job = live.submit(sys.executable, str(script), min_slots=1, max_slots=1, max_retries=0)
        ended = live.over(job)
        assert ended["phase"] == "failed"
        told = "ValueError: the number of epochs is larger than 9,007,199,254,740,992: it must be"
        assert told in ended["reason"]
        live.run("down")
        live.up()
        assert live.job(job)["phase"] == "failed"
