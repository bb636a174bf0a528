"""The thread that sends notifications: it looks at the published state, and tries again what could not be sent.

What has been said of jobs that are not over is kept in a file, so that a service that was restarted says what was
missed and repeats nothing that was handed to a channel before it wrote the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from geminid.fields import InvalidInput
from geminid.serve.livejob import LiveJob
from geminid.serve.notify.channels import FILE, Notifications, NotSent, read_notifications
from geminid.serve.notify.messages import Message, Said, messages_of
from geminid.serve.service import Service

log = logging.getLogger("geminid.serve")

#: The file in a service's home that has what has been said of jobs.
SAID = "notified.json"

#: Time between two looks at the jobs, in seconds.
LOOK_EVERY_S = 1.0

#: First delay before a message is sent again, in seconds; doubles with every further attempt.
FIRST_RETRY_S = 1.0

#: A message is given up after this many attempts: about half an hour.
MAX_ATTEMPTS = 12

#: The most messages that wait to be sent; further ones are dropped.
MAX_WAITING = 10_000


@dataclass(slots=True)
class Outgoing:
    """A message on its way to a channel."""

    channel: str
    message: Message
    attempts: int = 0
    at_s: float = 0.0


@dataclass(slots=True)
class Outbox:
    """Messages to send, with retries. ``now_s`` is the time; nothing sleeps in here."""

    waiting: list[Outgoing] = field(default_factory=list)

    def add(self, message: Message, channels: list[str]) -> None:
        """Have a message sent by these channels."""
        room = max(MAX_WAITING - len(self.waiting), 0)
        self.waiting += [Outgoing(channel, message) for channel in channels[:room]]

    def send_due(self, settings: Notifications, now_s: float) -> list[str]:
        """Send what is due; sentences about messages that are given up, without secrets."""
        given_up: list[str] = []
        left: list[Outgoing] = []
        for one in self.waiting:
            channel = settings.channels.get(one.channel)
            if channel is None:
                continue  # it is not in the file any more
            if one.at_s > now_s:
                left.append(one)
                continue
            try:
                channel.send(one.message)
            except NotSent as problem:
                one.attempts += 1
                one.at_s = now_s + FIRST_RETRY_S * 2.0 ** (one.attempts - 1)
                if problem.final or one.attempts >= MAX_ATTEMPTS:
                    about = f"notification of {one.message.job} ({one.message.occasion})"
                    given_up.append(f"the {about} was not sent by channel {one.channel}: {problem}")
                else:
                    left.append(one)
        self.waiting = left
        return given_up


class Notifier:
    """Sends what is worth a notification, as long as the service runs."""

    def __init__(self, service: Service, home: Path, at_risk: Callable[[LiveJob], str]) -> None:
        self._service, self._home, self._at_risk = service, home, at_risk
        self._settings, self._read_at = Notifications(), -1.0
        self._outbox, self._said = Outbox(), Said()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geminid notifier", daemon=True)

    def start(self) -> None:
        """Begin."""
        known = _read_said(self._home / SAID)
        if known is None:  # of what happened before there were notifications, nothing is said
            known = messages_of(self._service.published.state, Said(), 0.0, lambda job: "")[1]
        self._said = known
        self._thread.start()

    def close(self) -> None:
        """End, after a last look."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            self._guarded_look()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._guarded_look()

    def _guarded_look(self) -> None:
        try:
            self._look()
        except Exception as problem:  # nothing here may end the service
            log.warning("notifications cannot be sent: %s", type(problem).__name__)

    def _look(self) -> None:
        self._refresh()
        published, settings = self._service.published, self._settings
        jobs = published.state.jobs
        found, said = messages_of(published.state, self._said, published.now_s, self._at_risk)
        for message in found:
            self._outbox.add(message, settings.channels_of(message, jobs[message.job].spec.notify))
        if said != self._said:
            self._said = said
            _write_said(self._home / SAID, said)
        for sentence in self._outbox.send_due(settings, self._service.clock.monotonic_s()):
            log.warning("%s", sentence)
            with contextlib.suppress(Exception):  # the service is ending
                self._service.operations.note("warning", sentence)

    def _refresh(self) -> None:
        """Read the settings again if their file has changed; mistakes in it are noted for the operator, once."""
        file = self._home / FILE
        changed_at = file.stat().st_mtime if file.exists() else 0.0
        if changed_at == self._read_at:
            return
        self._read_at = changed_at
        try:
            self._settings = read_notifications(file)
        except InvalidInput as problem:
            for one in problem.problems:
                self._service.operations.note("warning", f"{FILE}: {one}")


def _read_said(file: Path) -> Said | None:
    """What was said before; None if nothing was written down."""
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        occasions = {str(job_id): frozenset(map(str, given)) for job_id, given in plain["occasions"].items()}
        return Said(occasions, int(plain["submitted"]))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _write_said(file: Path, said: Said) -> None:
    occasions = {job_id: sorted(given) for job_id, given in said.occasions.items()}
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"occasions": occasions, "submitted": said.submitted}), encoding="utf-8")
    new.replace(file)
