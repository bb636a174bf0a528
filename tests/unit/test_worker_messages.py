"""The worker protocol on the wire: strict, plain JSON, and nobody gets in without the token."""

import pickle
import re

import pytest

from geminid.supervise import protocol
from geminid.supervise.channel import Address, admitted
from geminid.supervise.protocol import (
    Form,
    Hello,
    Plan,
    Progress,
    ProtocolError,
    Retune,
    Stop,
    credible_metrics,
    decode,
    encode,
)

EXAMPLES = [
    Hello(token="t", worker="w1", pid=7),
    protocol.Ready(
        initial_batch=8, largest_batch=64, smallest_per_slot=1, largest_per_slot=8, parameter_count=10, work_samples=5
    ),
    protocol.Joined(generation=1, rank=0, size=2, step=3, resumed_at_s=1.5),
    protocol.FirstStep(generation=1, ended_at_s=2.0),
    protocol.Lost(generation=1, reason="gone"),
    protocol.Leaving(generation=2),
    protocol.Heartbeat(generation=1, step=4, phase="training", phase_s=0.25),
    Progress(
        generation=1,
        step=4,
        epoch=0,
        samples=32,
        progress=31.5,
        size=2,
        plan=Plan(4),
        total_batch=8,
        metrics={"loss": 1.0},
    ),
    protocol.Checkpointed(step=1, samples=8, path="/x", size_bytes=9, seconds=0.1, pause_s=0.01),
    protocol.Finished(step=9, samples=72),
    protocol.Finished(step=9, samples=72, cut_short=True),
    protocol.Failed(reason="ValueError"),
    protocol.Welcome(heartbeat_s=0.5, orphan_s=60.0),
    protocol.Refused(job="j1"),
    Form(generation=2, members=("w1", "w2"), rendezvous="file:/x/2", plan=Plan(4, 1)),
    Retune(plan=None),
    protocol.SaveCheckpoint(),
    Stop(save=False),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_arrives(message):
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"kind": "spawn"}', "Invalid value 'spawn' - at `$.kind`"),
        (b'{"kind": ["stop"]}', "Expected `str` - at `$.kind`"),
        (b'{"kind": "stop", "save": 1}', "Expected `bool`, got `int` - at `$.save`"),
        (b'{"kind": "stop", "now": true}', "unknown field `now`"),
        (b'{"kind": "leaving"}', "missing required field `generation`"),
        (b'{"kind": "leaving", "generation": true}', "Expected `int`, got `bool` - at `$.generation`"),
        (b'{"kind": "leaving", "generation": -1}', "Expected `int` >= 0 - at `$.generation`"),
        (b'{"kind": "leaving", "generation": 9007199254740993}', "Expected `int` <= 9007199254740992"),
        (b'{"kind": "leaving", "generation": 1, "stopped_at_s": 1e13}', "Expected `float` <= 1000000000000.0"),
        (b'{"kind": "retune", "plan": {"per_slot_batch": "4"}}', "at `$.plan.per_slot_batch`"),
        (b'{"kind": "retune", "plan": {"per_slot_batch": 0}}', "Expected `int` >= 1 - at `$.plan.per_slot_batch`"),
        (b'{"kind": "firststep", "generation": 1, "ended_at_s": NaN}', "not JSON"),
        (b'{"kind": "firststep", "generation": 1, "ended_at_s": 1e999}', "Number out of range - at `$.ended_at_s`"),
        (b'{"kind": "form", "generation": 1, "members": [1], "rendezvous": "x"}', "at `$.members[0]`"),
        (b'{"kind": "failed", "reason": "' + b"x" * 65_537 + b'"}', "Expected `str` of length <= 65536"),
        (pickle.dumps(Stop()), "not JSON"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b" " * (protocol.LONGEST_LINE_BYTES + 1), "longer than"),
    ],
)
def test_anything_else_is_refused(line, complaint):
    with pytest.raises(ProtocolError, match=re.escape(complaint)):
        decode(line)


def test_absurd_metrics_are_left_out():
    metrics = {"good": 1, "text": "x", "huge": 10**400, "n" * 100: 2.0}
    assert credible_metrics(metrics) == {"good": 1.0, "n" * 64: 2.0}
    assert len(credible_metrics({str(i): i for i in range(1000)})) == protocol.MOST_METRICS


def test_metrics_that_are_not_finite_are_told_by_name_in_valid_json():
    metrics = credible_metrics({"loss": float("nan"), "up": float("inf"), "down": -float("inf")})
    assert metrics == {"loss": "nan", "up": "inf", "down": "-inf"}
    report = Progress(
        generation=1, step=1, epoch=0, samples=8, progress=8.0, size=1, plan=Plan(8), total_batch=8, metrics=metrics
    )
    assert decode(encode(report)) == report
    with pytest.raises(ProtocolError, match=r"Invalid enum value 'soon' - at `\$\.metrics"):
        decode(encode(report).replace(b'"nan"', b'"soon"'))


def test_only_the_token_opens_the_door():
    assert admitted(Hello(token="secret", worker="w1", pid=1), "secret").worker == "w1"
    with pytest.raises(ProtocolError, match="token is wrong"):
        admitted(Hello(token="guess", worker="w1", pid=1), "secret")
    with pytest.raises(ProtocolError, match="version 99"):
        admitted(Hello(token="secret", worker="w1", pid=1, version=99), "secret")
    with pytest.raises(ProtocolError, match="not a hello"):
        admitted(Stop(), "secret")


def test_what_earlier_versions_did_not_know_is_not_sent_unless_it_is_needed():
    assert b"hold" not in encode(Form(generation=2, members=("w1",), rendezvous="file:/x/2"))
    assert b"hold" not in encode(protocol.Failed(reason="x"))
    assert b'"hold":true' in encode(protocol.Failed(reason="x", hold=True))


def test_what_a_worker_of_the_last_version_sends_is_understood():
    """As written by the codec before msgspec: running jobs are taken over."""
    before = {
        b'{"kind":"hello","token":"t","worker":"w1","pid":7,"version":1,"generation":3}': Hello(
            token="t", worker="w1", pid=7, generation=3
        ),
        b'{"kind":"heartbeat","generation":1,"step":4,"phase":"training","phase_s":0.25,"usual_s":null}': (
            protocol.Heartbeat(generation=1, step=4, phase="training", phase_s=0.25)
        ),
        b'{"kind":"form","generation":2,"members":["w1","w2"],"rendezvous":"file:/x/2",'
        b'"plan":{"per_slot_batch":4,"accumulation_steps":1},"broken":false}': Form(
            generation=2, members=("w1", "w2"), rendezvous="file:/x/2", plan=Plan(4, 1)
        ),
    }
    for line, message in before.items():
        assert decode(line) == message


def test_a_socket_file_is_open_to_its_owner_only(tmp_path):
    listener, address = Address(path=str(tmp_path / "control")).listen()
    assert (tmp_path / "control").stat().st_mode & 0o077 == 0
    assert Address.parse(str(address)) == address
    listener.close()
    with pytest.raises(ValueError, match="must be unix:/path or tcp:host:port"):
        Address.parse("http://x")
