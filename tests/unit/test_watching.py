"""What a worker says it is doing, and what counts as a sign of life."""

import copy
import pickle
import threading
import time

import pytest
import torch

from geminid.testing.clock import ManualClock
from geminid.train.activity import Activity
from geminid.train.group_view import GroupView
from geminid.train.watching import UsualTime, Watch


class Recorded(Activity):
    """Remembers the phases, and the signs of life as the phase that they are in."""

    def __init__(self):
        self.clock = ManualClock()
        super().__init__(self.clock)
        self.phases = []

    def enter(self, phase):
        self.phases.append(phase)
        return super().enter(phase)

    def show_life(self):
        self.phases.append(self.phase)
        super().show_life()


@pytest.fixture
def model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    torch.optim.SGD(model.parameters(), lr=0.1)  # whoever trains has one, and with it the compiler is there
    return model


@pytest.fixture
def watched(model):
    activity = Recorded()
    watch = Watch(activity, GroupView())
    watch.in_pass = True
    watch.begin(model)
    watch.enter("training")
    activity.phases.clear()
    yield watch, activity
    watch.end()


def test_a_call_of_the_model_is_training_only_in_a_pass_in_training_mode_and_with_gradients(watched, model):
    watch, activity = watched
    x = torch.ones(1, 3)
    model(x)
    assert [phase for phase in activity.phases if phase != "training"] == ["forward"]
    activity.phases.clear()
    with torch.no_grad():
        model(x)
    model.eval()(x)
    watch.in_pass = False
    model.train()(x)
    assert set(activity.phases) == {"training"}  # signs of life, each time


def test_a_failure_in_forward_is_not_taken_for_a_forward_that_goes_on(watched, model):
    _, activity = watched
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 4))
    assert "forward" in activity.phases
    assert activity.phases[-1] == "training"


def test_a_model_that_is_watched_can_be_copied_and_pickled_and_is_left_as_it_was(watched, model):
    watch, activity = watched
    average = copy.deepcopy(model).eval()
    stored = pickle.loads(pickle.dumps(model))
    stored(torch.ones(1, 3))
    assert activity.phases == []
    average(torch.ones(1, 3))
    assert activity.phases == ["training", "training"]
    watch.end()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_watched_model_compiles_whole_and_compiling_is_known(watched, model):
    watch, activity = watched
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    watch.enter("training")
    compiled(torch.ones(1, 3))
    assert "compiling" in activity.phases
    assert activity.phases[-1] == "training"
    activity.phases.clear()
    compiled(torch.ones(1, 3))
    assert activity.phases == []


def test_reading_and_writing_files_is_a_sign_of_life(watched, tmp_path):
    _, activity = watched
    activity.before_heartbeat()
    activity.phases.clear()
    activity.before_heartbeat()
    assert activity.phases == []
    (tmp_path / "saved").write_bytes(bytes(1 << 20))
    activity.before_heartbeat()
    assert activity.phases == ["training"]


class Sleeper(torch.nn.Module):
    """Does nothing for a while."""

    def forward(self, seconds):
        time.sleep(seconds)


def test_what_a_script_does_with_pytorch_is_a_sign_of_life_unless_it_stands_still(watched):
    """Seen from another thread, as the agent does."""
    _, activity = watched
    other = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50)))
    over = threading.Event()

    def beat():
        while not over.wait(0.01):
            activity.before_heartbeat()

    def signs(action):
        activity.phases.clear()
        over.clear()
        watcher = threading.Thread(target=beat)
        watcher.start()
        action()
        over.set()
        watcher.join()
        return len(activity.phases)

    def evaluate():
        deadline_s = time.monotonic() + 60.0
        while len(activity.phases) <= 5 and time.monotonic() < deadline_s:
            other(torch.ones(1, 8))

    assert signs(evaluate) > 5
    assert signs(lambda: time.sleep(0.3)) <= 1  # what comes before may have been one
    assert signs(lambda: Sleeper()(0.3)) <= 2


def test_the_usual_time_is_the_longest_of_parts_of_a_pass_after_the_first_few():
    usual = UsualTime()
    for seconds in (9.0, 9.0, 9.0, 9.0):
        usual.add(seconds)
        usual.end_pass()
    assert usual.seconds is None
    for seconds in (0.1, 0.3, 0.2):
        usual.add(seconds)
    usual.end_pass()
    assert usual.seconds == 0.3
    usual.expect(4.0)
    usual.expect(0.5)
    assert usual.seconds == pytest.approx(1.2)


def test_waiting_and_what_the_leader_does_besides_are_not_usual(watched):
    watch, activity = watched
    for _ in range(6):
        for phase, seconds in (("loading", 1.0), ("training", 50.0), ("synchronising", 70.0), ("stepping", 2.0)):
            watch.enter(phase)
            activity.clock.at_s += seconds
        watch.enter("between")
        watch.end_pass()
    assert activity.usual_s == 2.0
