"""Where notifications go: the file ``notifications.yaml`` of a home, and the channels and rules in it.

The file has secrets (passwords, addresses of hooks): only its owner may read it, and no message names them.
"""

from __future__ import annotations

import smtplib
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from geminid.fields import InvalidInput, Problem, Reader, read_value
from geminid.serve.notify.messages import Message, Occasion
from geminid.sim.files import read_data

#: The file in a service's home.
FILE = "notifications.yaml"

#: Time in which a channel must take a message, in seconds.
SEND_TIMEOUT_S = 10.0


class NotSent(Exception):
    """A message could not be sent; one sentence says why, without secrets. ``final``: trying again is of no use."""

    def __init__(self, sentence: str, *, final: bool = False) -> None:
        super().__init__(sentence)
        self.final = final


class Channel(Protocol):
    """A way to send messages."""

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            NotSent: it could not be sent.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Mail through an SMTP server. ``{owner}`` in an address is the owner of the job."""

    host: str
    port: int
    sender: str
    to: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    starttls: bool = False

    def send(self, message: Message) -> None:
        """Send a message by mail."""
        mail = EmailMessage()
        mail["Subject"] = message.subject[:200]
        mail["From"] = self.sender
        mail["To"] = ", ".join(address.replace("{owner}", message.owner) for address in self.to)
        mail.set_content(f"{message.subject}\nowner: {message.owner}, queue: {message.queue}\n")
        try:
            with smtplib.SMTP(self.host, self.port, timeout=SEND_TIMEOUT_S) as server:
                if self.starttls:
                    server.starttls(context=ssl.create_default_context())
                if self.user:
                    server.login(self.user, self.password)
                server.send_message(mail)
        except smtplib.SMTPResponseException as problem:
            final = problem.smtp_code >= 500
            raise NotSent(f"{self.host} answered {problem.smtp_code}", final=final) from None
        except (OSError, smtplib.SMTPException, ValueError) as problem:
            raise NotSent(f"{self.host}:{self.port}: {type(problem).__name__}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A JSON document for a URL: the fields of the message, or ``{"text": …}`` as Slack and others understand it."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    as_text: bool = False

    def send(self, message: Message) -> None:
        """Post a message."""
        import httpx

        body = {"text": message.subject} if self.as_text else asdict(message)
        host = urlsplit(self.url).hostname
        try:
            answer = httpx.post(self.url, json=body, headers=dict(self.headers), timeout=SEND_TIMEOUT_S)
        except (httpx.HTTPError, ValueError) as problem:
            raise NotSent(f"{host}: {type(problem).__name__}") from None
        if answer.status_code >= 300:
            final = 300 <= answer.status_code < 500 and answer.status_code not in (408, 425, 429)
            raise NotSent(f"{host} answered {answer.status_code}", final=final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which messages go to which channels; without an owner or queue, those of all."""

    on: tuple[Occasion, ...]
    to: tuple[str, ...]
    owner: str = ""
    queue: str = ""

    def matches(self, message: Message) -> bool:
        """Whether a message is to be sent by this rule."""
        of_owner, of_queue = self.owner in ("", message.owner), self.queue in ("", message.queue)
        return message.occasion in self.on and of_owner and of_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """The channels, the rules, and the channels for jobs that ask for notifications themselves (``--notify``)."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    for_jobs: tuple[str, ...] = ()

    def channels_of(self, message: Message, asked: tuple[str, ...]) -> list[str]:
        """The channels that a message goes to; ``asked`` are the occasions that its job names."""
        names = [name for rule in self.rules if rule.matches(message) for name in rule.to]
        names += self.for_jobs if message.occasion.value in asked else ()
        return list(dict.fromkeys(names))


def read_notifications(file: Path) -> Notifications:
    """The notifications of a file; none if there is no such file.

    Raises:
        InvalidInput: with all mistakes, without secrets; or others can read the file.
    """
    if not file.exists():
        return Notifications()
    if (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
        expected = f"must be readable by its owner alone, since it has secrets: chmod 600 {file}"
        raise InvalidInput([Problem(file.name, f"mode {mode:04o}", expected)])
    return read_value(read_data(file), _read)


def _read(reader: Reader) -> Notifications | None:
    def make() -> Notifications:
        channels = {
            name: channel
            for name, one in reader.nested_by_name("channels").items()
            if (channel := _read_channel(one)) is not None
        }
        rules = [rule for one in reader.nested_list("rules") if (rule := _read_rule(one)) is not None]
        made = Notifications(channels=channels, rules=tuple(rules), for_jobs=reader.texts("for_jobs", ()))
        for name in sorted({name for rule in rules for name in rule.to} | set(made.for_jobs)):
            if name not in channels:
                reader.report("to", name, "must be one of the channels of the file")
        return made

    return reader.attempt(make)


def _read_channel(reader: Reader) -> Channel | None:
    kinds = [kind for kind in ("smtp", "webhook", "slack") if reader.raw(kind) is not None]
    if len(kinds) != 1:
        reader.report("", "", "must have exactly one of smtp, webhook and slack")
        return None
    return reader.attempt(lambda: _read_mail(reader) if kinds == ["smtp"] else _read_hook(reader, kinds[0]))


def _read_mail(reader: Reader) -> Mail:
    host, _, port = reader.text("smtp").partition(":")
    if not host or (port and not port.isdigit()):
        reader.report("smtp", reader.raw("smtp"), "must be the server, such as smtp.example.org:587")
        port = ""
    return Mail(
        host=host,
        port=int(port or 25),
        sender=reader.text("from"),
        to=reader.texts("to"),
        user=reader.text("user", ""),
        password=_secret(reader, "password"),
        starttls=reader.boolean("starttls", False),
    )


def _read_hook(reader: Reader, kind: str) -> Hook:
    url = _secret(reader, kind)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        reader.report(kind, "", "must be a URL that begins with https:// or http://")
    headers = reader.nested("headers")
    values = {} if headers is None else {name: _secret(headers, name) for name in headers.names()}
    return Hook(url=url, headers=values, as_text=kind == "slack")


def _secret(reader: Reader, field: str) -> str:
    """A text that no message shows: the value itself, or the content of a file, ``{file: /path}``."""
    value = reader.raw(field)
    if isinstance(value, Mapping) and set(value) == {"file"}:
        try:
            return Path(str(value["file"])).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            reader.report(f"{field}.file", str(value["file"]), "must be a file that can be read")
            return ""
    if value is not None and not isinstance(value, str):
        reader.report(field, "", "must be a text, or {file: /path/of/a/file}")
    return value if isinstance(value, str) else ""


def _read_rule(reader: Reader) -> Rule | None:
    def make() -> Rule:
        return Rule(
            on=tuple(_occasions(reader)),
            to=reader.texts("to"),
            owner=reader.text("owner", ""),
            queue=reader.text("queue", ""),
        )

    return reader.attempt(make)


def _occasions(reader: Reader) -> Iterator[Occasion]:
    for text in reader.texts("on"):
        if text in set(Occasion):
            yield Occasion(text)
        else:
            reader.report("on", text, f"must be one of {', '.join(Occasion)}")
