"""Steps of several passes: what their loop is told, what belongs to a step, and several backward() for one batch."""

import math
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import geminid

PER_PASS = "the body of the loop over batches runs once per pass"
NOT_TRAINED_ON = "which are not trained on"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Numbers(IterableDataset):
    """A stream that knows how long it is."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(torch.arange(float(self.count))[:, None])


def prepared(samples=24, batch=8, per_slot=None, stream=False, kind=torch.optim.Adam, **options):
    """A run with a model of two halves."""
    torch.manual_seed(1)
    run, model = geminid.init(), nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    optimizer = kind(model.parameters(), lr=0.1)
    data = Numbers(samples) if stream else TensorDataset(torch.arange(float(samples))[:, None])
    _, _, loader = run.prepare(
        model, optimizer, DataLoader(data, batch_size=batch), max_per_slot_batch=per_slot, **options
    )
    return run, model, optimizer, loader


def train(model, optimizer, batch, half="a"):
    optimizer.zero_grad()
    model[half](batch if isinstance(batch, torch.Tensor) else batch[0]).square().mean().backward()
    optimizer.step()


def to_the_end(loader):
    yield from loader


def by_zip(loader):
    for _, batch in zip(range(len(loader)), loader):  # noqa: B905
        yield batch


def by_zip_the_other_way_round(loader):
    for batch, _ in zip(loader, range(len(loader))):  # noqa: B905
        yield batch


def by_next(loader):
    batches = iter(loader)
    for _ in range(len(loader)):
        yield next(batches)


def by_counting(loader):
    for number, batch in enumerate(loader):
        yield batch
        if number + 1 == len(loader):
            break


def a_few(loader):
    return islice(loader, 2)


def a_few_more(loader):
    return islice(loader, len(loader) + 1)


TRUSTING = [by_zip, by_zip_the_other_way_round, by_next, by_counting, lambda loader: islice(loader, len(loader))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loop", TRUSTING)
def test_a_loop_that_ends_where_len_says_is_warned_once_of_the_samples_that_it_leaves(capsys, loop, stream):
    run, model, optimizer, loader = prepared(per_slot=3, stream=stream)
    assert len(loader) == 3
    for _ in run.epochs(3):
        for batch in loop(loader):
            train(model, optimizer, batch)
    told = capsys.readouterr().err
    assert told.count(NOT_TRAINED_ON) == 1
    assert "use the loader to its end" in told
    assert run.step == 3
    if not stream:
        assert "after len(loader) = 3 of them, with 16 samples of the epoch left" in told


@pytest.mark.parametrize(
    ("loop", "per_slot"),
    [(to_the_end, 3), (a_few, 3), (a_few_more, 3), (a_few, None), *((loop, None) for loop in TRUSTING)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_that_leaves_nothing_or_leaves_on_purpose_is_not_warned(capsys, loop, per_slot, stream):
    run, model, optimizer, loader = prepared(per_slot=per_slot, stream=stream)
    for _ in run.epochs(2):
        for batch in loop(loader):
            train(model, optimizer, batch)
    assert NOT_TRAINED_ON not in capsys.readouterr().err


def test_the_loop_is_told_once_that_it_runs_per_pass_and_knows_when_a_step_was_taken(capsys):
    run, model, optimizer, loader = prepared(per_slot=3)
    seen, average = [], model["a"].weight.detach().clone()
    assert not run.stepped
    for _ in run.epochs(2):
        for batch in loader:
            before = run.step
            train(model, optimizer, batch)
            seen.append(run.stepped)
            assert run.stepped == (run.step == before + 1)
            if run.stepped:
                average.lerp_(model["a"].weight.detach(), 0.5)
    assert seen == [False, False, True] * 6
    assert capsys.readouterr().err.count(PER_PASS) == 1
    run, model, optimizer, loader = prepared()
    expected = model["a"].weight.detach().clone()
    for _ in run.epochs(2):
        for batch in loader:
            train(model, optimizer, batch)
            expected.lerp_(model["a"].weight.detach(), 0.5)
    assert torch.allclose(average, expected, atol=1e-6)  # a moving average per step, whatever the passes are
    assert PER_PASS not in capsys.readouterr().err


def test_a_step_that_a_loss_scaler_skips_was_not_taken():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    run, model, optimizer, loader = prepared(samples=8, scaler=scaler)
    for epoch in run.epochs(3):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model["a"](x).mean() * (float("inf") if epoch == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert run.stepped == (epoch != 1)


def test_a_second_step_for_one_batch_is_warned_of_where_a_step_has_several_passes(capsys):
    for per_slot, warnings in ((None, 0), (3, 1)):
        run, model, optimizer, loader = prepared(per_slot=per_slot)
        for _ in run.epochs(2):
            for batch in loader:
                train(model, optimizer, batch, "a")
                train(model, optimizer, batch, "b")
        assert run.step == 6
        assert capsys.readouterr().err.count("optimizer.step() is called several times for one batch") == warnings


def test_of_two_workers_the_one_that_has_stepped_more_often_with_a_batch_is_further():
    """What survivors compare when somebody is lost between two steps with one batch."""
    run, model, optimizer, loader = prepared()
    ages = []
    for _ in run.epochs(2):
        for batch in loader:
            for half in ("a", "b"):
                train(model, optimizer, batch, half)
                ages.append(run._session.worker.state.age)
    assert ages == sorted(set(ages))
    assert len(ages) == 12


def test_a_backward_that_only_some_passes_have_is_told_with_what_to_do():
    def as_if_passes_were_steps():
        run, model, optimizer, loader = prepared(per_slot=3)
        for _ in run.epochs(1):
            for number, (x,) in enumerate(loader):
                optimizer.zero_grad()
                model["a"](x).mean().backward()
                if number % 16 == 0:  # a penalty now and then
                    model["b"](x).mean().backward()
                optimizer.step()

    with pytest.raises(RuntimeError, match=r"called 2 times for one part of a step and 1 times .*decide by run.step"):
        as_if_passes_were_steps()
    run, model, optimizer, loader = prepared(per_slot=3)
    before = model["b"].weight.item()
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model["a"](x).mean().backward()
            if run.step % 16 == 0:
                model["b"](x).mean().backward()
            optimizer.step()
    assert model["b"].weight.item() == pytest.approx(before - 0.1)  # one step of Adam, and no momentum after it


def test_the_noise_is_that_of_the_first_backward(monkeypatch):
    monkeypatch.setattr("geminid.train.measuring_cost.BUDGET", math.inf)  # measure every step, however slow
    scales = []
    for halves in (("a",), ("a", "b")):
        run, model, optimizer, loader = prepared(samples=64, per_slot=2, kind=torch.optim.SGD)
        for _ in run.epochs(3):
            for (x,) in loader:
                optimizer.zero_grad()
                for half in halves:
                    model[half](x / 64).square().mean().backward()
                optimizer.step()
        scales.append(run.noise_scale)
    assert scales[0] is not None
    assert scales[0] == pytest.approx(scales[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_means_the_same_under_accumulation(reentrant):
    """With reentrant checkpointing, PyTorch runs a backward of its own for every part of the model."""
    weights = []
    for per_slot in (None, 3):
        run, model, optimizer, loader = prepared(per_slot=per_slot)
        for _ in run.epochs(2):
            for (x,) in loader:
                optimizer.zero_grad()
                x.requires_grad_(True)
                middle = checkpoint(model["a"], x, use_reentrant=reentrant)
                checkpoint(model["b"], middle, use_reentrant=reentrant).square().mean().backward()
                optimizer.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*weights, strict=True))
