"""The service from Python and from notebooks.

    import geminid

    cluster = geminid.connect()
    job = cluster.submit("train.py", args=["--epochs", "10"], slots=(1, 8), name="first")
    job.wait()
    print(job.logs())
    job.metrics()

``connect`` finds the service as the command line does: by ``$GEMINID_HOME``, or ``$GEMINID_URL`` and
``$GEMINID_TOKEN``. Every method that asks the service has a counterpart for coroutines whose name ends in ``_async``.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import html
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from geminid.serve.client import Client, ServiceError, address
from geminid.serve.source import record_source
from geminid.serve.submitting import submit_once

#: Longest time that one request waits for the end of a job.
WAIT_PIECE_S = 20.0

#: Width and height of the drawing of a job's slots in a notebook, in pixels.
DRAWING_PX = (480, 60)

P = ParamSpec("P")
T = TypeVar("T")


def _in_a_thread(method: Callable[P, T]) -> Callable[P, Any]:
    """The counterpart of a method for coroutines: it waits in a thread."""

    @functools.wraps(method)
    async def wait(*args: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(method, *args, **named)

    return wait


class JobFailed(Exception):
    """A job that was waited for did not succeed; the message says how it ended."""


class Job:
    """A submitted job. Its properties are what the service last said; ``refresh`` asks again."""

    def __init__(self, client: Client, known: Mapping[str, Any]) -> None:
        self._client, self._known = client, dict(known)

    @property
    def id(self) -> str:
        """The identifier, such as ``j7``."""
        return str(self._known["id"])

    @property
    def name(self) -> str:
        """The name that it was given."""
        return str(self._known["name"])

    @property
    def state(self) -> str:
        """Where in its life it is: ``pending``, ``running``, ``succeeded`` …"""
        return str(self._known["phase"])

    @property
    def slots(self) -> int:
        """How many slots it has."""
        return int(self._known["slots"])

    @property
    def done(self) -> float | None:
        """Which share of its work it has done; None if that is not known."""
        value = self._known["done"]
        return None if value is None else float(value)

    @property
    def reason(self) -> str:
        """Why it is in this state, in a sentence; empty where that is plain."""
        return str(self._known["reason"])

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._known["finished_at_s"] is not None

    def as_dict(self) -> dict[str, Any]:
        """All that the service last said about it."""
        return dict(self._known)

    def refresh(self) -> Job:
        """Ask the service again."""
        self._known = self._client.get(address("jobs", self.id))
        return self

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Job:
        """Wait until it has ended.

        Raises:
            JobFailed: it did not succeed, and ``check`` is true.
            TimeoutError: it has not ended within ``timeout`` seconds.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while not self.is_over:
            left_s = WAIT_PIECE_S if until_s is None else min(until_s - time.monotonic(), WAIT_PIECE_S)
            if left_s <= 0.0:
                raise TimeoutError(f"job {self.id} has not ended after {timeout:g} s; it is {self.state}")
            self._known = self._client.get(address("jobs", self.id), wait_s=left_s)
        if check and self.state != "succeeded":
            raise JobFailed(f"job {self.id} {self.state}" + (f": {self.reason}" if self.reason else ""))
        return self

    def logs(self, tail: int | None = None) -> str:
        """What it has printed; with ``tail``, the last lines of each worker. Of an array: element after element."""
        jobs = self.elements() or [self]
        return "".join(piece for job in jobs for piece in _log_pieces(self._client, job.id, {"tail": tail}))

    def elements(self) -> list[Job]:
        """The elements of an array that have been queued and are retained; empty for a job that is no array."""
        if self._known["array"] is None:
            return []
        found = self._client.get("jobs", array=self.id, all=True, limit=100_000)
        return [Job(self._client, known) for known in found]

    def follow(self) -> Iterator[str]:
        """What it prints, piece by piece, until it has ended."""
        return _log_pieces(self._client, self.id, {"follow": True})

    def metrics(self) -> Any:
        """Its curves: samples, goodput, batch, learning rate, noise scale and the metrics that its script reports.

        A pandas DataFrame indexed by time, or a dictionary of lists where pandas is not installed.
        """
        found = self._client.get(address("jobs", self.id, "series"))
        columns = {name: values for name, values in found.items() if isinstance(values, list) and name != "history"}
        columns |= found["metrics"]
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            return columns
        table = pandas.DataFrame(columns)
        table.index = pandas.to_datetime(table.pop("at_s"), unit="s", utc=True)
        table.index.name = "time"
        return table

    def explain(self) -> str:
        """Why it waits, or has the size it has."""
        found = self._client.get(address("jobs", self.id, "explain"))
        suggestions = (f"what would help: {text}" for text in found["suggestions"])
        return "\n".join([found["explanation"], *found["numbers"], *suggestions])

    def history(self) -> list[dict[str, Any]]:
        """What happened to it, oldest first: time, sentence, slots, and how long training paused."""
        found: list[dict[str, Any]] = self._client.get(address("jobs", self.id, "story"))
        return found

    def rerun(self, **changes: Any) -> Job:
        """Submit it again, with these fields of its job file changed; ``env`` is added to its own."""
        path = f"{address('jobs', self.id)}/rerun"
        return Job(self._client, submit_once(lambda: self._client, changes, to=path))

    def cancel(self) -> Job:
        """Give it up."""
        return self._after(self._client.post(address("jobs", self.id, "cancel")))

    def pause(self) -> Job:
        """Have it save a checkpoint, stop, and wait."""
        return self._after(self._client.post(address("jobs", self.id, "pause")))

    def resume(self) -> Job:
        """Let it run again."""
        return self._after(self._client.post(address("jobs", self.id, "resume")))

    def set(self, *, priority: int | None = None, min_slots: int | None = None, max_slots: int | None = None) -> Job:
        """Change its priority or its size limits."""
        given = {"priority": priority, "min_slots": min_slots, "max_slots": max_slots}
        changes = {name: value for name, value in given.items() if value is not None}
        return self._after(self._client.patch(address("jobs", self.id), changes))

    def _after(self, known: Mapping[str, Any]) -> Job:
        self._known = dict(known)
        return self

    refresh_async = _in_a_thread(refresh)
    wait_async = _in_a_thread(wait)
    logs_async = _in_a_thread(logs)
    elements_async = _in_a_thread(elements)
    rerun_async = _in_a_thread(rerun)
    metrics_async = _in_a_thread(metrics)
    explain_async = _in_a_thread(explain)
    history_async = _in_a_thread(history)
    cancel_async = _in_a_thread(cancel)
    pause_async = _in_a_thread(pause)
    resume_async = _in_a_thread(resume)
    set_async = _in_a_thread(set)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r}: {self.state} on {self.slots} slots>"

    def _repr_html_(self) -> str:
        """The job in a notebook: its state, its progress, and its slots over time."""
        try:
            self.refresh()
            series = self._client.get(address("jobs", self.id, "series"))
        except ServiceError as problem:
            return f"<p>{html.escape(f'{self!r}: {problem}')}</p>"
        done = "" if self.done is None else f", {100.0 * self.done:.1f} % done"
        text = f"{self.id} {self.name}: {self.state} on {self.slots} slots{done}"
        reason = f"<br>{html.escape(self.reason)}" if self.reason else ""
        return f"<p><b>{html.escape(text)}</b>{reason}</p>{slots_drawing(series['at_s'], series['slots'])}"


def _log_pieces(client: Client, job_id: str, query: Mapping[str, object]) -> Iterator[str]:
    """What a job printed, piece by piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character
    for piece in client.stream(address("jobs", job_id, "logs"), **query):
        yield decoder.decode(piece)


def slots_drawing(times: Sequence[float], slots: Sequence[int]) -> str:
    """An SVG drawing of how many slots a job had over time; empty before it had any."""
    if len(times) < 2:
        return ""
    width, height = DRAWING_PX
    most, begin_s, span_s = max(max(slots), 1), times[0], max(times[-1] - times[0], 1e-9)
    points = [f"0,{height}"]
    for i, at_s in enumerate(times):
        x, y = width * (at_s - begin_s) / span_s, height - (height - 14) * slots[i] / most
        before = height - (height - 14) * slots[max(i - 1, 0)] / most
        points += [f"{x:.1f},{before:.1f}", f"{x:.1f},{y:.1f}"]
    points.append(f"{width},{height}")
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="slots over {span_s:.0f} s, at most {most}">'
        f'<polygon points="{" ".join(points)}" fill="#0b62b8"/><text x="2" y="11" font-size="11">{most} slots at most,'
        f" {span_s:.0f} s</text></svg>"
    )


class Connection:
    """A service, in the name of one user."""

    def __init__(self, find_client: Callable[[], Client]) -> None:
        self._find_client = find_client
        self._client = find_client()

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._client.url

    def submit(
        self,
        what: str | os.PathLike[str] | Sequence[str],
        *,
        args: Sequence[object] = (),
        name: str | None = None,
        slots: int | tuple[int, int | None] = 1,
        working_dir: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        after: Sequence[Job | str] = (),
        key: str | None = None,
        **fields: Any,
    ) -> Job:
        """Submit a Python script with ``args``, or a command as a list of words.

        ``slots`` is an exact number, or the fewest and the most. ``after`` are jobs that must succeed first, or texts
        such as ``"prepare:any"``. ``fields`` are those of a job file, such as ``array``, ``priority``, ``queue``,
        ``deadline`` or ``kind``. With the same ``key``, a job is submitted at most once.

        Raises:
            ServiceError: the service refused it, with a sentence for each mistake.
        """
        command = _command(what, args)
        least, most = (slots, slots) if isinstance(slots, int) else slots
        document: dict[str, Any] = {
            "name": name or _name_of(what),
            "command": command,
            "working_dir": str(Path(working_dir or Path.cwd()).absolute()),
            "min_slots": least,
            **({} if most is None else {"max_slots": most}),
            **({} if env is None else {"env": dict(env)}),
            **({"after": [one.id if isinstance(one, Job) else one for one in after]} if after else {}),
            **fields,
        }
        known = submit_once(self._find_client, document, key)
        record_source(self._client, known, document["working_dir"])
        return Job(self._client, known)

    def job(self, name_or_id: str) -> Job:
        """A job by its identifier or its name."""
        return Job(self._client, self._client.get(address("jobs", name_or_id)))

    def jobs(self, *, all: bool = False, owner: str | None = None) -> list[Job]:
        """The jobs that run or wait; with ``all``, also those that are over and retained."""
        query = {} if owner is None else {"owner": owner}
        return [Job(self._client, known) for known in self._client.get("jobs", all=all, limit=100_000, **query)]

    def status(self) -> dict[str, Any]:
        """The service at a glance."""
        found: dict[str, Any] = self._client.get("status")
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes, and what is on their slots."""
        found: list[dict[str, Any]] = self._client.get("nodes")
        return found

    submit_async = _in_a_thread(submit)
    job_async = _in_a_thread(job)
    jobs_async = _in_a_thread(jobs)
    status_async = _in_a_thread(status)
    nodes_async = _in_a_thread(nodes)

    def __repr__(self) -> str:
        return f"<Connection to {self.url}>"


def _command(what: str | os.PathLike[str] | Sequence[str], args: Sequence[object]) -> list[str]:
    """The words of the command to run."""
    if isinstance(what, str | os.PathLike):
        return ["python", os.fspath(what), *map(str, args)]
    return [*map(str, what), *map(str, args)]


def _name_of(what: str | os.PathLike[str] | Sequence[str]) -> str:
    """A name for a job that was given none: that of its script, or of its program."""
    words = [os.fspath(what)] if isinstance(what, str | os.PathLike) else [str(word) for word in what]
    scripts = [word for word in words if word.endswith(".py")]
    stem = Path((scripts or words)[0]).stem
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem).lstrip("._-")
    return kept[:63] or "job"


def connect(home: str | os.PathLike[str] | None = None) -> Connection:
    """Connect to the service that the command line would use, or to that of a home folder.

    Raises:
        ServiceError: there is no service, or the token is not valid.
    """
    folder = None if home is None else Path(home).absolute()
    return Connection(lambda: Client.here(folder))


__all__ = ["Connection", "Job", "JobFailed", "ServiceError", "connect"]
