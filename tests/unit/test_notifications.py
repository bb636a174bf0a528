"""Notifications: what is said when, where it goes, and what is tried again; no message has a secret."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from geminid.configuration import Placement
from geminid.fields import InvalidInput
from geminid.job import OCCASIONS, JobSpec
from geminid.serve import records as r
from geminid.serve.notify.channels import Hook, Mail, Notifications, NotSent, Rule, read_notifications
from geminid.serve.notify.messages import Message, Occasion, Said, messages_of
from geminid.serve.notify.notifier import FIRST_RETRY_S, MAX_ATTEMPTS, Outbox
from geminid.serve.state import ServiceState
from receivers import http_receiver, smtp_receiver

MESSAGE = Message(
    occasion=Occasion.FAILURE, job="j1", name="x", owner="ann", queue="q", phase="failed", text="has failed", at_s=1.0
)


def test_a_job_may_ask_for_every_occasion():
    assert set(OCCASIONS) == set(Occasion)


def test_everything_is_said_once_and_elements_are_not_mentioned():
    state, said, texts = ServiceState(), Said(), []

    def look(*records: r.Record, risk: str = "") -> list[str]:
        nonlocal said
        for record in records:
            state.apply_or_raise(state.seq + 1, float(state.seq), record)
        found, said = messages_of(state, said, 5.0, lambda job: risk)
        texts.extend(one.subject for one in found)
        return [f"{one.job} {one.occasion}" for one in found]

    def submitted(job_id: str, **fields) -> r.Record:
        spec = JobSpec.from_dict({"name": "x", "command": ["secret"], "env": {"KEY": "secret"}, **fields})
        return r.JobSubmitted(job_id=job_id, spec=spec, elastic=False)

    place = Placement.of({"n": [0]})
    starting = r.JobStarting(job_id="j1", placement=place)
    assert look(submitted("j1")) == []
    assert look(starting) == ["j1 start"]
    assert look(risk="may be missed: late") == ["j1 deadline"]
    assert look(r.TimeLimitNear(job_id="j1", left_s=9.0), risk="may be missed: late") == ["j1 time"]
    assert look(r.JobEnded(job_id="j1", how="failed", reason="why")) == ["j1 failure"]
    assert look() == []
    short = (submitted("j2"), r.JobStarting(job_id="j2", placement=place), r.JobEnded(job_id="j2", how="succeeded"))
    assert look(*short) == ["j2 start", "j2 end"]  # it began and ended between two looks
    array = (submitted("j3", array="0"), r.ArrayExpanded(job_id="j3", elements=[0]))
    start = r.JobStarting(job_id="j3_0", placement=place)
    assert look(*array, start, r.JobEnded(job_id="j3_0", how="succeeded")) == ["j3 start", "j3 end"]
    assert texts[0] == "geminid: j1 (x) has started"
    assert not any("secret" in text for text in texts)


FILE = """
channels:
  mail: {smtp: "localhost:2525", from: geminid@here, to: ["{owner}@here"], user: me, password: {file: PASSWORD}}
  team: {slack: "https://hooks.example.org/secret"}
  hook: {webhook: "http://127.0.0.1:1/x", headers: {Authorization: secret}}
rules:
  - {on: [failure, deadline], to: [team, mail], owner: ann}
  - {on: [failure], to: [team, hook], queue: other}
for_jobs: [mail]
"""


def test_rules_and_wishes_of_jobs_choose_channels(tmp_path):
    (tmp_path / "password").write_text("secret\n")
    file = tmp_path / "notifications.yaml"
    file.write_text(FILE.replace("PASSWORD", str(tmp_path / "password")))
    with pytest.raises(InvalidInput, match="chmod 600"):
        read_notifications(file)
    file.chmod(0o600)
    found = read_notifications(file)
    assert found.channels_of(MESSAGE, ()) == ["team", "mail"]
    assert found.channels_of(MESSAGE, ("failure",)) == ["team", "mail"]
    assert found.channels["mail"].password == "secret"  # type: ignore[attr-defined]
    assert "secret" not in repr(found)
    other = Message(**{**_plain(MESSAGE), "owner": "bob", "queue": "other", "occasion": Occasion.END})
    assert found.channels_of(other, ()) == []
    assert found.channels_of(other, ("end",)) == ["mail"]
    assert read_notifications(tmp_path / "missing.yaml") == Notifications()


def _plain(message: Message) -> dict:
    return {name: getattr(message, name) for name in message.__dataclass_fields__}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("channels: {a: {smtp: x, slack: y}}", "exactly one of smtp, webhook and slack"),
        ("channels: {a: {slack: not-a-url-but-secret}}", "must be a URL"),
        ("channels: {a: {smtp: 'h:x', from: a, to: [b]}}", "must be the server"),
        ("channels: {a: {webhook: 'http://h/', headers: {A: {file: /missing}}}}", "must be a file that can be read"),
        ("rules: [{on: [never], to: []}]", "must be one of start, end, failure, deadline, time"),
        ("rules: [{on: [end], to: [nobody]}]", "must be one of the channels"),
        ("channel: {}", "not a known field"),
    ],
)
def test_mistakes_in_the_file_are_named_without_secrets(tmp_path, text, why):
    file = tmp_path / "notifications.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InvalidInput, match=why) as problem:
        read_notifications(file)
    assert "secret" not in str(problem.value)


@dataclass
class Flaky:
    """A channel that fails a given number of times."""

    failures: int
    final: bool = False
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise NotSent("it answered 503", final=self.final)
        self.sent.append(message)


def test_a_message_is_sent_again_later_and_given_up_in_the_end():
    flaky, dead, wrong = Flaky(2), Flaky(10**6), Flaky(1, final=True)
    settings = Notifications(channels={"flaky": flaky, "dead": dead, "wrong": wrong})
    outbox = Outbox()
    outbox.add(MESSAGE, ["flaky", "dead", "wrong", "gone"])
    (given_up,) = outbox.send_due(settings, 0.0)
    assert given_up == "the notification of j1 (failure) was not sent by channel wrong: it answered 503"
    assert outbox.send_due(settings, 0.0) == []
    assert flaky.failures == 1  # not again before its time
    outbox.send_due(settings, FIRST_RETRY_S)
    outbox.send_due(settings, 3 * FIRST_RETRY_S)
    assert flaky.sent == [MESSAGE]
    sentences = [one for i in range(MAX_ATTEMPTS) for one in outbox.send_due(settings, 10.0**4 * (i + 1))]
    assert len(sentences) == 1
    assert outbox.waiting == []


def test_hooks_post_documents_and_say_nothing_of_their_address():
    with http_receiver(statuses=(503,)) as (url, received):
        hook = Hook(url=url, headers={"Authorization": "secret"})
        with pytest.raises(NotSent, match=r"^127.0.0.1 answered 503$") as problem:
            hook.send(MESSAGE)
        assert not problem.value.final
        hook.send(MESSAGE)
        Hook(url=url, as_text=True).send(MESSAGE)
    assert received[1][0]["Authorization"] == "secret"
    assert received[1][1]["job"] == "j1"
    assert received[2][1] == {"text": "geminid: j1 (x) has failed"}
    with pytest.raises(NotSent, match=r"^127.0.0.1: ConnectError$"):
        Hook(url="http://127.0.0.1:1/secret").send(MESSAGE)


def test_mail_arrives_at_a_server():
    with smtp_receiver() as (port, received):
        Mail(host="127.0.0.1", port=port, sender="geminid@here", to=("{owner}@here",)).send(MESSAGE)
    (mail,) = received
    assert "Subject: geminid: j1 (x) has failed" in mail
    assert "To: ann@here" in mail
    with pytest.raises(NotSent, match="ConnectionRefusedError"):
        Mail(host="127.0.0.1", port=1, sender="a@b", to=("c@d",)).send(MESSAGE)


def test_rules_without_owner_and_queue_are_for_all():
    assert Rule(on=(Occasion.FAILURE,), to=("a",)).matches(MESSAGE)
    assert not Rule(on=(Occasion.END,), to=("a",)).matches(MESSAGE)
    assert not Rule(on=(Occasion.FAILURE,), to=("a",), owner="bob").matches(MESSAGE)
