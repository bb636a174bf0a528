"""What a worker does when time passes: tested in virtual time, without waiting."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geminid.goodput.batchplan import BatchLimits
from geminid.supervise.protocol import TUNE_S, Checkpointed, Form, Progress, Retune, SaveCheckpoint, Stop
from geminid.testing.clock import ManualClock
from geminid.train import peers, rendezvous
from geminid.train.activity import Activity
from geminid.train.agent import ORPHAN_GRACE_S, ORPHAN_S, Contact, NoSupervisor, OrphanAction
from geminid.train.data import data_of
from geminid.train.measuring_cost import BUDGET, LONGEST_INTERVAL, UNTIMED_MEASUREMENTS, MeasuringCost
from geminid.train.orders import Orders
from geminid.train.rendezvous import FORMING_S, Superseded, meet
from geminid.train.session import make_session
from geminid.train.settings import Settings


class RecordedAgent(NoSupervisor):
    """Records what is sent."""

    supervised = True

    def __init__(self, clock):
        super().__init__(clock)
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def kinds(self):
        kinds, self.sent = [type(message) for message in self.sent], []
        return kinds


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def session(clock, tmp_path):
    model = nn.Linear(1, 1)
    return make_session(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data_of(DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4), seed=0),
        limits=BatchLimits(initial=4, largest=4, smallest_per_slot=1, largest_per_slot=4),
        settings=Settings(checkpoint_every_s=60.0, scaling_rules=("none",)),
        agent=RecordedAgent(clock),
        checkpoints=tmp_path,
        reports=None,
        clock=clock,
    )


def test_a_worker_without_a_supervisor_trains_on_then_stops_and_is_ended_at_last(clock):
    contact = Contact(clock)
    clock.at_s += ORPHAN_S
    assert contact.action() is OrphanAction.WAIT
    clock.at_s += 1.0
    assert contact.action() is OrphanAction.STOP
    contact.seen()
    assert contact.action() is OrphanAction.WAIT
    contact.orphan_s = 5.0
    clock.at_s += 6.0
    assert contact.action() is OrphanAction.STOP
    clock.at_s += ORPHAN_GRACE_S
    assert contact.action() is OrphanAction.EXIT


def test_heartbeats_say_how_long_a_phase_has_shown_no_life(clock):
    activity = Activity(clock)
    activity.enter("training")
    clock.at_s += 7.0
    assert activity.heartbeat(3).phase_s == 7.0
    activity.show_life()
    clock.at_s += 2.0
    beat = activity.heartbeat(3)
    assert (beat.phase, beat.phase_s, beat.generation) == ("training", 2.0, 3)
    assert activity.enter("between") == 9.0


def test_orders_are_kept_until_they_are_carried_out():
    orders, old, new = Orders(), Form(2, ("a",), "file:/x"), Form(3, ("a", "b"), "file:/y", broken=True)
    orders.receive(new)
    orders.receive(old)
    assert orders.form == new
    assert orders.group_is_broken
    orders.generation = 3
    assert orders.form is None
    assert not orders.group_is_broken
    orders.receive(Retune(None))
    orders.receive(SaveCheckpoint())
    assert (orders.take_retune(), orders.take_retune()) == (Retune(None), None)
    assert (orders.take_save(), orders.take_save()) == (True, False)
    assert not orders.stop
    orders.receive(Stop(save=False))
    assert orders.stop
    assert not orders.save_before_stop
    assert orders.wait_for_form(60.0) is None  # it does not wait when it has to stop


def test_checkpoints_are_written_at_their_interval_or_when_ordered(session, clock):
    saver, agent = session.worker.saver, session.worker.agent
    saver.save_if_due()
    saver.wait()
    clock.at_s += 59.0
    saver.save_if_due()
    saver.wait()
    assert agent.kinds() == []
    clock.at_s += 1.0
    saver.save_if_due()
    saver.wait()
    assert agent.kinds() == [Checkpointed]
    agent.orders.receive(SaveCheckpoint())
    for _ in range(2):
        saver.save_if_due()
        saver.wait()
    assert agent.kinds() == [Checkpointed]


def test_the_last_checkpoint_is_tried_again_after_a_while(session, clock, monkeypatch):
    problems = [OSError(28, "No space left on device"), None]
    real = session.worker.saver._writer.folder.save

    def save(snapshot):
        if (problem := problems.pop(0)) is not None:
            raise problem
        return real(snapshot)

    monkeypatch.setattr(session.worker.saver._writer.folder, "save", save)
    session.worker.saver.save_last()
    assert clock.at_s == 1000.5
    assert session.worker.saver.save_kept() is None
    assert problems == []


def test_reports_and_looks_for_a_better_plan_come_at_their_intervals(session, clock, monkeypatch):
    looks = []
    monkeypatch.setattr(session.worker.state.tuner, "consider", lambda *_: looks.append(clock.at_s))
    session.worker.agent.report_s = 2.0
    for _ in range(12):
        clock.at_s += 1.0
        session.reporter.report_if_due()
    assert session.worker.agent.kinds() == [Progress] * 6
    assert looks == [1000.0 + TUNE_S, 1000.0 + 2 * TUNE_S]


class Endless:
    """A collective operation that never ends."""

    def __init__(self, clock):
        self.clock = clock

    def wait(self, timeout):
        self.clock.at_s += timeout.total_seconds()
        raise RuntimeError("timed out")

    def is_completed(self):
        return False


def test_an_operation_in_an_abandoned_group_is_given_up_and_others_are_waited_for(clock, monkeypatch):
    monkeypatch.setattr(peers.dist.distributed_c10d, "_get_default_group", lambda: None)
    with pytest.raises(RuntimeError, match="an operation in an abandoned group did not end"):
        peers.wait_for(Endless(clock), clock, abandoned=lambda: clock.at_s >= 4000.0)
    assert 4000.0 + peers.STUCK_S < clock.at_s < 4000.0 + 3 * peers.STUCK_S


def test_waiting_for_other_members_ends_with_a_newer_order(clock, tmp_path):
    form = Form(1, ("a", "b"), f"file:{tmp_path}/store")
    with pytest.raises(Superseded):
        meet(form, 0, clock, interrupted=lambda: clock.at_s > 1060.0)


def test_waiting_for_a_server_ends(clock, monkeypatch):
    def refuse(address, timeout):
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(rendezvous.socket, "create_connection", refuse)
    with pytest.raises(peers.PeersLost, match="no server listens at far:1: refused"):
        meet(Form(1, ("a", "b"), "tcp:far:1/1"), 1, clock, interrupted=lambda: False)
    assert FORMING_S < clock.at_s - 1000.0 < FORMING_S + 1.0


def test_measuring_is_as_rare_as_its_budget_asks_for(clock):
    cost = MeasuringCost(torch.device("cpu"), clock)
    for _ in range(UNTIMED_MEASUREMENTS):  # the first ones are slow, and do not count
        with cost.timed():
            clock.at_s += 60.0
        cost.count()
    assert cost.suitable_interval(1.0, pairs=False) is None
    with cost.timed():
        clock.at_s += 0.5
    cost.count()
    assert cost.suitable_interval(0.5 / BUDGET, pairs=False) == 1
    assert cost.suitable_interval(0.05 / BUDGET, pairs=False) == pytest.approx(10, abs=1)
    assert cost.suitable_interval(0.05 / BUDGET, pairs=True) == pytest.approx(20, abs=1)
    assert cost.suitable_interval(1e-6, pairs=False) == LONGEST_INTERVAL
