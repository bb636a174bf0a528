"""The training library in one process: the same results as the plain loop, whatever the batch plan does."""

import atexit
import contextlib
import math
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import geminid
from geminid.supervise.protocol import Plan
from geminid.train import rng
from geminid.train.group_view import Layout
from geminid.train.trainstate import _sum_of_bits


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def toy(samples=50, seed=0):
    """Inputs and noisy targets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(
        x, x @ torch.randn(6, 1, generator=generator) + 0.3 * torch.randn(samples, 1, generator=generator)
    )


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def train(run, model, optimizer, loader, epochs, *, scaler=None, clip=0.5, schedule=None, each="batch"):
    """An ordinary loop, with everything that people put into one; the losses."""
    losses = []
    for _ in run.epochs(epochs) if run is not None else range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if schedule is not None and each == "batch":
                schedule.step()
            losses.append(loss.item())
        if schedule is not None and each == "epoch":
            schedule.step()
    return losses


def in_order(**options):
    """A run over data in its own order, with what it trains."""
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(toy(), batch_size=12)
    extra = {name: make(optimizer) for name, make in options.pop("make", {}).items()}
    _, _, elastic = run.prepare(model, optimizer, loader, **options, **extra)
    return run, model, optimizer, elastic, extra


def plain(**options):
    """The same without us."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    make = options.pop("make", {})
    extra = {name: build(optimizer) for name, build in make.items()}
    return model, optimizer, DataLoader(toy(), batch_size=12), extra


def close(one, other, tolerance=1e-6):
    return all(torch.allclose(a, b, atol=tolerance) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_plain_run_is_the_plain_loop():
    expected, optimizer, loader, _ = plain()
    losses = train(None, expected, optimizer, loader, 2)
    run, model, optimizer, elastic, _ = in_order()
    assert run.is_leader
    assert train(run, model, optimizer, elastic, 2) == losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert run.step == len(losses) == 10
    assert run.progress == 100


@pytest.mark.parametrize("per_slot", [1, 5, 6])
def test_accumulated_passes_make_the_same_steps_even_where_the_loop_clips_and_zeroes(per_slot):
    expected, optimizer, loader, _ = plain()
    train(None, expected, optimizer, loader, 3)
    run, model, optimizer, elastic, _ = in_order(max_per_slot_batch=per_slot)
    losses = train(run, model, optimizer, elastic, 3)
    assert len(losses) == 3 * (4 * math.ceil(12 / per_slot) + math.ceil(2 / per_slot))
    assert run.step == 15
    assert close(model, expected)


def test_a_gradient_scaler_works_the_same_under_accumulation():
    make = {"scaler": lambda optimizer: torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)}
    expected, optimizer, loader, extra = plain(make=make)
    train(None, expected, optimizer, loader, 3, **extra)
    scale = extra["scaler"].get_scale()
    run, model, optimizer, elastic, extra = in_order(make=make, max_per_slot_batch=5)
    train(run, model, optimizer, elastic, 3, **extra)
    assert close(model, expected)
    assert extra["scaler"].get_scale() == scale == 64.0 * 2**5


def test_a_step_that_overflows_is_skipped_and_left_out_of_the_statistics():
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=10), scaler=scaler, max_per_slot_batch=5)
    for _ in run.epochs(1):
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y) * (math.inf if number == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**9
    assert run.step == 5
    assert run.progress == 40
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert math.isfinite(run.noise_scale)


@pytest.mark.parametrize("each", ["batch", "epoch"])
def test_schedules_advance_by_samples_however_the_steps_are_made(each):
    def exponential(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    make = {"schedule": exponential}
    expected, optimizer, loader, extra = plain(make=make)
    train(None, expected, optimizer, loader, 2, each=each, **extra)
    rate = optimizer.param_groups[0]["lr"]
    run, model, optimizer, elastic, extra = in_order(make={"lr_scheduler": exponential}, max_per_slot_batch=5)
    train(run, model, optimizer, elastic, 2, each=each, schedule=extra["lr_scheduler"])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert close(model, expected)


def test_schedules_end_with_the_data_where_batches_do_not_divide_it():
    run, model, optimizer, loader, extra = in_order(  # 50 samples: five batches an epoch, the last one of two
        make={"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=15)},
        max_batch_size=24,
        max_per_slot_batch=24,
    )
    pinned(run, Plan(20, 0))
    train(run, model, optimizer, loader, 3, schedule=extra["lr_scheduler"])
    assert run.step == 9
    assert extra["lr_scheduler"].last_epoch == 15


def test_schedules_by_progress_end_when_training_does():
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=3 * 29)
    data = DataLoader(toy(200), batch_size=7)
    _, _, loader = run.prepare(model, optimizer, data, max_batch_size=40, lr_scheduler=schedule)
    pinned(run, Plan(5, 7))
    for _ in run.epochs(3, by="progress"):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
    assert run.progress > 600
    assert schedule.last_epoch == 3 * 29


def test_schedules_by_epoch_count_those_that_were_left_early():
    run, model, optimizer, loader, extra = in_order(
        make={"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}
    )
    rates = []
    for _ in run.epochs(3):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            break
        extra["lr_scheduler"].step()
        rates += extra["lr_scheduler"].get_last_lr()
    assert rates == [0.05, 0.025, 0.0125]


def test_a_schedule_steps_right_after_the_step_it_follows():
    run, model, optimizer, loader, extra = in_order(
        make={"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}
    )
    for _ in run.epochs(1):
        for number, (x, y) in enumerate(loader):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            extra["lr_scheduler"].step()
            assert run.step == number + 1
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 ** (number + 1))


@pytest.mark.parametrize(
    ("rule", "factor"), [("linear", 4.0), ("square_root", 2.0), ("none", 1.0), ("adascale", None), ("legw", 2.0)]
)
def test_learning_rates_follow_the_batch_size_by_their_rule(rule, factor):
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _, _, loader = run.prepare(
        model, optimizer, DataLoader(toy(200), batch_size=5), max_batch_size=20, scaling_rule=rule, warmup_epochs=0.1
    )
    pinned(run, Plan(5, 3))
    for _ in run.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == 0.01  # the user's own is never touched
    assert run.step == 20
    measured = run.learning_rate_factors[0]
    if factor is None:
        assert 1.0 < measured < 4.0
        assert run.progress < 400
    else:
        assert measured == pytest.approx(factor)


def pinned(run, plan):
    """Fix the batch plan, as a scheduler's order does."""
    run._session.worker.state.tuner.pinned = plan


def test_the_noise_scale_is_that_of_theory(monkeypatch):
    """Loss a·(w + ξ)·w with known signal and noise: the gradient of a sample is a + ξ, its covariance known."""
    monkeypatch.setattr("geminid.train.measuring_cost.BUDGET", math.inf)  # measure every step, however short
    dimensions, deviation, batch = 20, 3.0, 8
    generator = torch.Generator().manual_seed(1)
    x = 1.0 + deviation * torch.randn(12_000, dimensions, generator=generator)
    truth = dimensions * deviation**2 / dimensions  # tr Σ / |g|², in samples

    def noise_scale(**options):
        run = geminid.init()
        model = nn.Linear(dimensions, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        _, _, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(x), batch_size=batch), **options)
        for _ in run.epochs(1):
            for (inputs,) in loader:
                optimizer.zero_grad()
                model(inputs).mean().backward()
                optimizer.step()
        return run.noise_scale

    # One estimate of g² scatters by 0.7 of itself, an average over some 1,100 by 2 %: 9 % is four times that.
    assert noise_scale(max_per_slot_batch=4) == pytest.approx(truth, rel=0.09)
    assert noise_scale() == pytest.approx(truth, rel=0.09)


def test_adam_is_measured_in_its_own_metric():
    run = geminid.init()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(400), batch_size=8), max_per_slot_batch=4)
    train(run, model, optimizer, loader, 1, clip=math.inf)
    squares = [(state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8 for state in optimizer.state.values()]
    size = sum(square.numel() for square in squares)
    estimate = run._session.worker.state.meter.estimate
    # Preconditioned gradients have entries of about one in absolute value, whatever the loss is scaled by.
    total = float(estimate.squared_gradients.sum() + estimate.variances.sum())
    assert 0.2 * size < total < 5 * size


class Noisy(Dataset):
    """A dataset that augments at random."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.tensor(index), torch.rand(1)


def seen(loader, epochs=2, *, seed=4, plan=None, draw=False, **options):
    """What a run sees, by epoch; its loop may draw random numbers too."""
    run = geminid.init(seed=seed)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, elastic = run.prepare(model, optimizer, loader, **options)
    if plan is not None:
        pinned(run, plan)
    epochs_seen = []
    for _ in run.epochs(epochs):
        here = []
        for batch in elastic:
            model(torch.ones(1)).sum().backward()
            optimizer.step()
            here.append(batch)
            if draw:
                torch.rand(3)
        epochs_seen.append(here)
    return epochs_seen


def flat(epoch):
    return [tuple(float(part[i]) for part in batch) for batch in epoch for i in range(len(batch[0]))]


def test_order_and_augmentation_depend_on_seed_epoch_and_sample_alone():
    torch.manual_seed(1)
    one = seen(DataLoader(Noisy(), batch_size=8, shuffle=True))
    torch.manual_seed(2)
    other = seen(DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2), max_per_slot_batch=3)
    for epoch in range(2):
        assert flat(one[epoch]) == flat(other[epoch])
        assert sorted(index for index, _ in flat(one[epoch])) == list(range(30))
    assert flat(one[0]) != flat(one[1])


def test_seeds_are_mixed_alike_one_by_one_and_together():
    indices = [0, 1, 17, 2**40, 2**62]
    assert rng.mixed_with_each((3, 5), indices) == [rng.mixed(3, 5, index) for index in indices]


class Sometimes(Dataset):
    """A dataset that draws from another generator for some samples only, and keeps account of its calls."""

    def __init__(self):
        self.calls = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.calls += 1
        draws = {11: random.random, 22: np.random.standard_normal, 33: lambda: float(torch.rand(()))}
        return index, draws.get(index, lambda: 0.0)()


def test_a_generator_that_a_dataset_seldom_draws_from_is_seeded_all_the_same():
    states = []
    for batch in (4, 40):
        np.random.seed(batch)  # noqa: NPY002
        np.random.standard_normal()  # noqa: NPY002 (numpy has the next one ready)
        data, before = Sometimes(), rng.CpuStates()
        states.append(flat(seen(DataLoader(data, batch_size=batch), 1, seed=6)[0]))
        assert before.restore_changed() <= {
            "torch"
        }  # the script's own are as they were, but for initialising the model
        assert data.calls == 40 + (3 * 4 if batch == 4 else 40)
    assert states[0] == states[1]
    assert len({value for _, value in states[0]}) == 4


def test_collate_functions_samplers_subsets_and_drop_last_mean_what_they_mean():
    collated = seen(DataLoader(Noisy(), batch_size=7, collate_fn=lambda samples: [int(i) for i, _ in samples]), 1)[0]
    assert [len(batch) for batch in collated] == [7, 7, 7, 7, 2]
    assert [i for batch in collated for i in batch] == list(range(30))
    dropped = seen(DataLoader(Noisy(), batch_size=7, drop_last=True, shuffle=True), 1)[0]
    assert len(flat(dropped)) == 28
    part = seen(DataLoader(Subset(Noisy(), [3, 5, 7]), batch_size=2), 1)[0]
    assert [index for index, _ in flat(part)] == [3, 5, 7]
    sampler = WeightedRandomSampler([1.0, 0.0, 2.0], 40)
    weighted = seen(DataLoader(Subset(Noisy(), [1, 2, 3]), batch_size=8, sampler=sampler))
    assert {index for index, _ in flat(weighted[0])} == {1.0, 3.0}
    assert flat(weighted[0]) != flat(weighted[1])


class Shuffled:
    """A sampler that draws from Python's global generator."""

    def __len__(self):
        return 30

    def __iter__(self):
        order = list(range(30))
        random.shuffle(order)
        return iter(order)


def test_samplers_of_ones_own_are_seeded_too():
    random.seed(1)
    one = seen(DataLoader(Noisy(), batch_size=8, sampler=Shuffled()))
    random.seed(2)
    before = random.getstate()
    other = seen(DataLoader(Noisy(), batch_size=8, sampler=Shuffled()))
    assert [flat(epoch) for epoch in one] == [flat(epoch) for epoch in other]
    assert flat(one[0]) != flat(one[1])
    assert random.getstate() == before


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(23))


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_come_in_their_own_order(workers):
    loader = DataLoader(Stream(), batch_size=5, num_workers=workers)
    epochs = seen(loader, 2, max_per_slot_batch=3)
    assert [batch.tolist() for batch in epochs[0]] == [batch.tolist() for batch in epochs[1]]
    assert [int(i) for batch in epochs[0] for i in batch] == list(range(23))


class Drawn(IterableDataset):
    """A stream that shuffles and augments, from all global generators."""

    def __iter__(self):
        order = torch.randperm(23).tolist()
        random.shuffle(order)
        for index in order:
            yield torch.tensor(index), torch.tensor(np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize("workers", [0, 1])
def test_what_streams_draw_depends_on_seed_and_epoch_alone(workers):
    torch.manual_seed(1)
    one = seen(DataLoader(Drawn(), batch_size=5, num_workers=workers))
    torch.manual_seed(2)
    other = seen(DataLoader(Drawn(), batch_size=5, num_workers=workers), max_per_slot_batch=2, draw=True)
    assert [flat(epoch) for epoch in one] == [flat(epoch) for epoch in other]
    assert sorted(index for index, _ in flat(one[0])) == list(range(23))
    assert flat(one[0]) != flat(one[1])
    assert flat(seen(DataLoader(Drawn(), batch_size=5, num_workers=workers), 1, seed=5)[0]) != flat(one[0])


def test_streams_drop_what_fills_no_batch_and_start_their_process_as_asked():
    plain = DataLoader(Stream(), batch_size=5, drop_last=True)
    assert [int(i) for batch in seen(plain, 1)[0] for i in batch] == list(range(20))
    odd = seen(plain, 1, max_batch_size=23, max_per_slot_batch=23, plan=Plan(23, 0))[0]
    assert [len(batch) for batch in odd] == [20]

    def told(worker):
        raise ValueError(f"this is loader process {worker}")

    with pytest.raises(ValueError, match="this is loader process 0"):
        seen(DataLoader(Stream(), batch_size=5, num_workers=1, worker_init_fn=told, timeout=60), 1)


class Arrays(IterableDataset):
    def __iter__(self):
        return iter([(np.zeros(2), 1), (np.ones(2), 2)])


def test_collate_functions_get_the_samples_of_a_stream_as_they_are():
    kinds = seen(DataLoader(Arrays(), batch_size=2, collate_fn=lambda some: [type(part) for part in some[0]]), 1)
    assert kinds == [[[np.ndarray, int]]]


@pytest.mark.parametrize("data", [toy(20), Stream()])
def test_what_collate_functions_draw_depends_on_seed_epoch_and_position_alone(data):
    def noisy(samples):
        return torch.rand(1).item()

    torch.manual_seed(1)
    one = seen(DataLoader(data, batch_size=4, collate_fn=noisy))
    torch.manual_seed(2)
    assert seen(DataLoader(data, batch_size=4, collate_fn=noisy, num_workers=1)) == one
    assert len({number for epoch in one for number in epoch}) == 2 * len(one[0])
    finer = seen(DataLoader(data, batch_size=4, collate_fn=noisy), max_per_slot_batch=2)
    assert finer[0][0] == one[0][0]  # a pass that begins at the same position
    assert len(set(finer[0])) == len(finer[0])
    assert seen(DataLoader(data, batch_size=4, collate_fn=noisy), 1, seed=5)[0][0] != one[0][0]


class Interrupted(Exception):
    pass


def test_a_run_that_was_interrupted_anywhere_ends_as_if_it_had_not_been(tmp_path):
    def dropout_run(folder, stop_after=None):
        torch.manual_seed(5)
        run = geminid.init(checkpoint_dir=folder, checkpoint_every_s=1e-9)
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
        _, _, loader = run.prepare(
            model,
            optimizer,
            DataLoader(toy(), batch_size=12, shuffle=True),
            lr_scheduler=schedule,
            max_per_slot_batch=7,
        )
        history = run.state("history", {"losses": []})
        for _ in run.epochs(3):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                history["losses"].append(loss.item())
                if run.step == stop_after:
                    run._session.worker.saver.wait()
                    raise Interrupted
        return history["losses"], [parameter.tolist() for parameter in model.parameters()]

    expected = dropout_run(tmp_path / "whole")
    for stop_after in (4, 7, 13):
        with pytest.raises(Interrupted):
            dropout_run(tmp_path / "pieces", stop_after)
    losses, weights = dropout_run(tmp_path / "pieces")
    assert weights == expected[1]
    assert losses == expected[0]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_training_by_progress_goes_on_until_it_has_made_it():
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(200), batch_size=5), max_batch_size=40)
    pinned(run, Plan(5, 7))
    samples = 0
    for _ in run.epochs(3, by="progress"):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            samples += len(x)
    assert 600 <= run.progress < 640
    assert samples > 600


class Branches(nn.Module):
    """Uses one of its branches or the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.branches = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, x):
        return self.branches[int(x[0, 0] > 0)](x)


def test_clipping_sees_whole_steps_whichever_parts_of_the_model_a_pass_uses():
    """First steps without accumulation, then with it: the same as one backward over each step's passes."""
    expected, model = Branches(), Branches()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    data = DataLoader(toy(48), batch_size=3)
    for group in zip(*[iter(data)] * 4, strict=True):
        optimizer.zero_grad()
        (sum(nn.functional.mse_loss(expected(x), y) for x, y in group) / 4).backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.3)
        optimizer.step()
    run = geminid.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(48), batch_size=12), max_per_slot_batch=3)
    hooks = run._session.step.gradients.hooks
    for _ in run.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            assert hooks.count == 4
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    assert close(model, expected)


@pytest.mark.parametrize(
    ("batch", "options", "fewest"),
    [
        (8, {}, 2),
        (8, {"min_per_slot_batch": 1}, 1),
        (8, {"min_per_slot_batch": 4}, 2),
        (8, {"max_per_slot_batch": 1}, 1),
        (1, {}, 1),
    ],
)
def test_models_with_batch_norm_get_two_samples_a_slot_unless_told_otherwise(batch, options, fewest):
    run, model = geminid.init(), nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(toy(), batch_size=batch), **options)
    session = run._session
    assert session.worker.limits.smallest_per_slot == options.get("min_per_slot_batch", fewest)
    for size in (2, 3):
        session.group.layout = Layout(size)
        assert session.step.sampler.share(0, size * fewest, Plan(8), rank=0).alone is False
        assert session.step.sampler.share(0, size * fewest - 1, Plan(8), rank=0).alone is True


def test_batch_norm_is_warned_of_when_the_batch_on_a_slot_changes(capsys):
    run = geminid.init()
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(200), batch_size=8), max_batch_size=32)
    sizes = []
    for _ in run.epochs(1):
        for number, (x, y) in enumerate(loader):
            pinned_soon = {5: Plan(8, 1), 11: Plan(4, 3)}.get(number)
            if pinned_soon is not None:
                pinned(run, pinned_soon)
                run._session.step.chooser.plan = pinned_soon
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            sizes.append(len(x))
    assert {8, 4} <= set(sizes)
    told = capsys.readouterr().err
    assert told.count("the batch on one slot changes from 8 to 4 samples") == 1


def test_gradients_outside_of_the_loop_over_batches_are_the_scripts_own():
    run, model, optimizer, loader, _ = in_order(max_per_slot_batch=4)
    x, y = toy().tensors
    for _ in run.epochs(2):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        own = [parameter.grad.clone() for parameter in model.parameters()]
        expected = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(own, expected, strict=True))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()  # after training, everything is as it was without us
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert run.step == 10


class Explodes(torch.autograd.Function):
    """Passes its input on, and fails in backward."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("out of memory")


def test_a_backward_that_failed_and_was_caught_spoils_nothing_later():
    run, model, optimizer, loader, _ = in_order(max_per_slot_batch=6)
    seen, x, y = [], *toy().tensors
    for _ in run.epochs(1):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            if number == 1:
                with pytest.raises(RuntimeError, match="out of memory"):
                    model[1:](Explodes.apply(model[0](batch[0]))).sum().backward()
                continue
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            if number == 3:  # the second step is whole: its gradient is that of samples 12 to 24
                seen = [parameter.grad.clone() for parameter in model.parameters()]
                loss = nn.functional.mse_loss(model(x[12:24]), y[12:24])
                expected = torch.autograd.grad(loss, list(model.parameters()))
                assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(seen, expected, strict=True))
            optimizer.step()
    assert seen


def test_a_loop_that_accumulates_by_itself_is_warned(capsys):
    run, model, optimizer, loader, _ = in_order()
    for _ in run.epochs(1):
        for number, (x, y) in enumerate(loader):
            nn.functional.mse_loss(model(x), y).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert capsys.readouterr().err.count("Do not accumulate gradients in the loop") == 1


def test_two_backward_passes_for_one_batch_add_up():
    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for x, y in DataLoader(toy(), batch_size=10):
        optimizer.zero_grad()
        (2 * nn.functional.mse_loss(expected(x), y)).backward()
        optimizer.step()
    run = geminid.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=10))
    for _ in run.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            for _ in range(2):
                nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert close(model, expected)


def test_compiled_models_train_the_same():
    expected, optimizer, loader, _ = plain()
    train(None, expected, optimizer, loader, 1)
    run = geminid.init()
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1, momentum=0.9)
    _, _, elastic = run.prepare(compiled, optimizer, DataLoader(toy(), batch_size=12), max_per_slot_batch=6)
    train(run, compiled, optimizer, elastic, 1)
    assert close(model, expected)


def refused(match, kind=ValueError, model=None, loader=None, **options):
    model = network() if model is None else model
    run = geminid.init()
    with pytest.raises(kind, match=match):
        run.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(toy(), batch_size=12) if loader is None else loader,
            **options,
        )


def test_what_cannot_work_is_refused_with_what_to_do_instead():
    refused("DataParallel: pass the plain module", TypeError, model=nn.DataParallel(network()))
    refused("sparse gradients are not supported", model=nn.Embedding(3, 2, sparse=True))
    refused("must be a torch.utils.data.DataLoader, not a list", TypeError, loader=[1, 2])
    refused("max_batch_size is 4: it must be at least the loader's batch_size, 12", max_batch_size=4)
    refused("max_batch_size is '64': it must be a whole number of at least 1", max_batch_size="64")
    refused("max_per_slot_batch is 0: it must be a whole number of at least 1", max_per_slot_batch=0)
    refused("min_per_slot_batch is 9: it must be at most 4", min_per_slot_batch=9, max_per_slot_batch=4)
    refused("min_per_slot_batch is 13: it must be at most 12", min_per_slot_batch=13)
    refused("warmup_epochs is -1: it must be a non-negative number", warmup_epochs=-1)
    refused("the scaler is a str: it must be a torch.amp.GradScaler", TypeError, scaler="yes")
    refused("the lr_scheduler is a list: it must be one schedule", TypeError, lr_scheduler=[])
    refused("scaling_rule is 'cubic': it must be one of auto, adascale", scaling_rule="cubic")
    refused("has no batch_size", loader=DataLoader(toy(), batch_size=None))
    sampler = torch.utils.data.DistributedSampler(toy(), num_replicas=2, rank=0)
    refused("leave it out, the data is divided by geminid", loader=DataLoader(toy(), batch_size=2, sampler=sampler))
    with pytest.raises(ValueError, match="checkpoint_every_s is 0"):
        geminid.init(checkpoint_every_s=0)


def test_what_could_not_be_saved_is_told_before_training(tmp_path):
    def begun(**state):
        run = geminid.init(checkpoint_dir=tmp_path)
        model = network()
        loader = DataLoader(toy(), batch_size=12)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        run.state("mine", state)
        next(run.epochs(1))

    with pytest.raises(TypeError, match=r"run\.state\('mine'\)/x is a object, which cannot be saved"):
        begun(x=object())
    with pytest.raises(TypeError, match=r"'mine'\)/y is a tensor of torch\.complex128, which cannot be saved"):
        begun(y=torch.zeros(2, dtype=torch.complex128))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["note"] = object()
    with pytest.raises(TypeError, match="state/optimizer/param_groups/0/note is a object, which cannot be saved"):
        geminid.init(checkpoint_dir=tmp_path).prepare(model, optimizer, DataLoader(toy(), batch_size=12))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Odd(torch.optim.SGD):
    """Has a state that cannot be saved, from some step on."""

    def __init__(self, parameters, first):
        super().__init__(parameters, lr=0.1)
        self._first, self._taken = first, 0

    def step(self):
        super().step()
        self._taken += 1
        if self._taken == self._first:
            self.state[self.param_groups[0]["params"][0]]["odd"] = object()


@pytest.mark.parametrize("first", [1, 3])
def test_an_optimizers_state_that_cannot_be_saved_is_told_after_its_first_step_or_warned_of(tmp_path, capsys, first):
    run, model = geminid.init(checkpoint_dir=tmp_path, checkpoint_every_s=1e-9), network()
    model, optimizer, loader = run.prepare(model, Odd(model.parameters(), first), DataLoader(toy(), batch_size=12))
    if first == 1:
        with pytest.raises(TypeError, match="state/optimizer/state/0/odd is a object, which cannot be saved"):
            train(run, model, optimizer, loader, 2)
        assert run.step == 1
    else:
        train(run, model, optimizer, loader, 2)
        assert "no checkpoint was written: state/optimizer/state/0/odd is a object" in capsys.readouterr().err
        assert run.step == 2 * len(loader)
    atexit.unregister(run._script_end.end)  # it would end this process with an error, for what was not saved
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_state_that_cannot_be_saved_any_more_is_left_out_and_nothing_else_is_lost(tmp_path, capsys):
    def trained(epochs, odd):
        run, model = geminid.init(checkpoint_dir=tmp_path, checkpoint_every_s=1e-9), network()
        kept, other = run.state("kept", {"epochs": 0}), run.state("other", {"epochs": 0})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=12))
        for _ in run.epochs(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            kept["epochs"] += 1
            other["epochs"] += 1
            if odd:
                other["odd"] = object()
        return run, kept, other

    trained(2, True)
    problems = capsys.readouterr().err
    assert problems.count("run.state('other')/odd is a object, which cannot be saved") == 1
    assert "it is left out of checkpoints" in problems
    run, kept, other = trained(3, False)
    assert "run.state('other') is not in the saved state" in capsys.readouterr().err
    assert (kept["epochs"], other["epochs"]) == (3, 1)
    assert run.step == 3 * -(-len(toy()) // 12)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_no_epoch_is_empty_whenever_training_is_interrupted(tmp_path):
    """Although it saves at every boundary, and is killed in the last step of an epoch, or right after it."""
    for place in ("step", "end"):
        seen = []
        for first in (True, False):
            run = geminid.init(checkpoint_dir=tmp_path / place, checkpoint_every_s=1e-9)
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=25))
            with contextlib.suppress(KeyError):
                for epoch in run.epochs(3):
                    batches = 0
                    for x, y in loader:
                        optimizer.zero_grad()
                        nn.functional.mse_loss(model(x), y).backward()
                        optimizer.step()
                        run._session.worker.saver.wait()
                        batches += 1
                        if first and place == "step" and run.step == 4:
                            raise KeyError
                    seen.append((epoch, batches))
                    if first and place == "end" and epoch == 1:
                        raise KeyError
            atexit.unregister(run._script_end.end)  # as if it had been killed
        assert all(batches > 0 for _, batches in seen)
        assert run.step == 6
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_parameters_that_are_not_the_models_are_saved_too(tmp_path):
    def trained(epochs):
        run, model = geminid.init(checkpoint_dir=tmp_path), network()
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)
        model, optimizer, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=25))
        for _ in run.epochs(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                (nn.functional.mse_loss(model(x), y) + weight.sum()).backward()
                optimizer.step()
        return weight.item()

    assert trained(2) == pytest.approx(-0.4)
    assert trained(3) == pytest.approx(-0.6)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def one_step(folder, model, optimizer=None):
    run = geminid.init(checkpoint_dir=folder)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(toy(), batch_size=50))
    for _ in run.epochs(1):
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


def test_a_checkpoint_of_another_model_is_named_with_the_difference(tmp_path):
    model = network()
    one_step(tmp_path, model)
    groups = [{"params": list(part.parameters())} for part in (model[0], model[2])]
    for other, problem in (
        ((nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 1)),), r"0\.weight has the shape \[9, 3\] and had \["),
        ((nn.Sequential(*network(), nn.Linear(1, 1)),), r"3\.weight is new"),
        ((nn.Sequential(nn.Linear(3, 1)),), "0.weight has the shape"),
        (
            (model, torch.optim.SGD(groups, lr=0.1)),
            "the optimizer has changed since: loaded state dict has a different",
        ),
    ):
        match = (
            rf"checkpoint-00000001\.safetensors cannot be used: the (model|optimizer) has changed since: .*{problem}"
        )
        with pytest.raises(ValueError, match=match.replace(".*the optimizer has changed since: ", "")):
            one_step(tmp_path, *other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_the_code_of_weights_differs_with_any_bit_of_theirs_wherever_they_lie(dtype):
    base = torch.randn(1 + 5 * 3).to(dtype)
    apart, within = base[1:].clone().reshape(5, 3), base[1:].reshape(5, 3)  # the same, at another address
    assert _sum_of_bits(apart) == _sum_of_bits(within)
    for number in range(apart.numel()):
        changed = apart.clone()
        changed.view(-1).view(torch.uint8)[number * changed.element_size()] ^= 1
        assert _sum_of_bits(changed) != _sum_of_bits(apart)
    assert _sum_of_bits(torch.tensor(1.5)) != _sum_of_bits(torch.tensor(1.25))


def test_what_would_make_workers_differ_is_told(monkeypatch, capsys):
    run, model = geminid.init(), network()
    loader = DataLoader(toy(), batch_size=25)
    _, _, loader = run.prepare(model, torch.optim.SGD(model[0].parameters(), lr=0.1), loader)
    told = "parameters of the model require gradients but are not the optimizer's (2, the first is 2.weight)"
    assert told in capsys.readouterr().err
    for _ in run.epochs(1):
        for _ in loader:
            with pytest.raises(RuntimeError, match="the loader is in use already"):
                next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 4: a launcher such as torchrun has started this process"):
        geminid.init()


def test_misuse_is_told_in_one_sentence():
    run, model, optimizer, loader, _ = in_order()
    with pytest.raises(RuntimeError, match=r"inside of 'for epoch in run\.epochs"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="has been called already"):
        run.prepare(model, optimizer, DataLoader(toy(), batch_size=12))
    with pytest.raises(TypeError, match="the state 'x' is a int"):
        run.state("x", 1)
    with pytest.raises(TypeError, match="the optimizer is LBFGS, which evaluates the model several times in a step"):
        geminid.init().prepare(model, torch.optim.LBFGS(model.parameters()), DataLoader(toy(), batch_size=12))
    with pytest.raises(ValueError, match=r"add_param_group\(\) was called after run\.prepare"):
        optimizer.add_param_group({"params": []})
    with pytest.raises(ValueError, match=r"the number of epochs is 2\.5: it must be a whole number of at least 0"):
        next(run.epochs(2.5))
    with pytest.raises(RuntimeError, match=r"run.prepare\(\) has not been called"):
        list(geminid.init().epochs(1))
    with pytest.raises(RuntimeError, match=r"run\.agree\(\) must be called inside of"):
        run.agree(1)
    for _ in run.epochs(1):
        for _ in loader:
            with pytest.raises(RuntimeError, match="after its loop over batches"):
                run.agree(1)
        assert run.agree({"stop": (1, 2)}) == {"stop": [1, 2]}
        assert run.gather({"found": (1, 2)}) == [{"found": [1, 2]}]
        with pytest.raises(RuntimeError, match="use it once in an epoch"):
            next(iter(loader))
    with pytest.raises(RuntimeError, match="a run has one loop over epochs"):
        list(run.epochs(2))


def test_leaving_the_loop_over_batches_early_ends_the_epoch():
    run, model, optimizer, loader, _ = in_order()
    epochs = []
    for epoch in run.epochs(3):
        epochs.append(epoch)
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            break
    assert epochs == [0, 1, 2]
    assert run.step == 3


def test_a_script_that_stopped_at_the_end_of_an_epoch_goes_on_with_the_next(tmp_path):
    """Whichever way the end was reached, and also where only reading tells that a stream has ended."""

    def trained(folder, data, how):
        run, model = geminid.init(checkpoint_dir=folder), nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _, _, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12))
        seen = []
        for epoch in run.epochs(9):
            batches = 0
            for _ in loader:
                model(torch.ones(1)).sum().backward()
                optimizer.step()
                batches += 1
                if how == "break" and batches == 2:
                    break
            seen.append((epoch, batches))
            break
        run._script_end.end()
        atexit.unregister(run._script_end.end)
        return seen

    for number, (data, how) in enumerate(((toy(23), "end"), (toy(23), "break"), (Stream(), "end"))):
        assert [trained(tmp_path / str(number), data, how) for _ in range(3)] == [[(0, 2)], [(1, 2)], [(2, 2)]]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_reports_go_to_a_file_where_there_is_no_scheduler(tmp_path, monkeypatch):
    from geminid.supervise.protocol import decode

    monkeypatch.setenv("GEMINID_REPORTS", str(tmp_path / "reports"))
    run, model, optimizer, loader, _ = in_order()
    for _ in run.epochs(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            run.report(loss=loss, bad=math.nan)
    last = decode((tmp_path / "reports").read_bytes().splitlines()[-1])
    assert last.samples == 100
    assert set(last.metrics) == {"loss", "bad"}
    assert last.metrics["bad"] == "nan"
    assert Path(os.environ["GEMINID_REPORTS"]).exists()


def test_sharded_models_are_refused():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = network()
        fully_shard(model)
        refused(r"sharded \(FSDP\): only models that fit on one slot", TypeError, model=model)
        refused("wrapped in DistributedDataParallel", TypeError, model=nn.parallel.DistributedDataParallel(network()))
    finally:
        dist.destroy_process_group()
