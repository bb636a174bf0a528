"""Several models, steps without a Dataset, work per step, tokens and closures: in one process."""

import atexit

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import geminid
from geminid.supervise.protocol import Plan
from geminid.train.optim import is_compiled
from geminid.train.outsiders import Outsiders
from geminid.train.several import load_optimizer


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def data(samples=24):
    return TensorDataset(torch.arange(float(samples))[:, None] / samples)


def prepared(per_slot=None, batch=8, **options):
    torch.manual_seed(1)
    run, model = geminid.init(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=batch)
    *_, loader = run.prepare(model, optimizer, loader, max_per_slot_batch=per_slot, **options)
    return run, model, optimizer, loader


def step(model, optimizer, x):
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


def moving_averages(per_slot, growth=1):
    """What ``run.ema``, torch's average and one's own, updated by ``on_step``, are after two epochs."""
    run, model, optimizer, loader = prepared(per_slot, max_batch_size=8 * growth, scaling_rule="none")
    if growth > 1:
        run._session.worker.state.tuner.pinned = Plan(per_slot or 8, growth - 1)
    ema = run.ema(model, 0.9)
    torchs = run.state("torchs", AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
    own, steps = run.state("own", {"weight": model.weight.item()}), []

    def update():
        steps.append(run.step)
        own["weight"] = 0.9 * own["weight"] + 0.1 * model.weight.item() if len(steps) > 1 else model.weight.item()

    run.on_step(update)
    for _ in run.epochs(2):
        for (x,) in loader:
            step(model, optimizer, x)
            torchs.update_parameters(model)
    assert steps == list(range(1, run.step + 1))
    return ema.module.weight.item(), torchs.module.weight.item(), own["weight"]


def test_moving_averages_are_updated_once_per_step_however_many_passes_it_has():
    expected = pytest.approx(moving_averages(None))
    assert moving_averages(3) == expected
    ema, torchs, own = moving_averages(None)
    assert ema == pytest.approx(torchs) == pytest.approx(own)


def test_a_moving_average_covers_the_same_number_of_samples_at_larger_batches():
    ema, torchs, _ = moving_averages(None, growth=3)  # two steps, of which torch's average takes the first whole
    _, model, optimizer, _ = prepared()
    weights = []
    for _ in range(2):
        step(model, optimizer, data().tensors[0])
        weights.append(model.weight.item())
    first, second = weights
    assert torchs == pytest.approx(0.9 * first + 0.1 * second)
    assert ema == pytest.approx(0.9**3 * first + (1 - 0.9**3) * second)


def test_functions_for_a_step_are_called_where_the_loop_is_left_in_it_and_not_for_skipped_steps():
    run, model, optimizer, loader = prepared()
    called = []
    run.on_step(lambda: called.append(run.step))
    for epoch in run.epochs(3):
        for number, (x,) in enumerate(loader):
            if epoch != 1:
                step(model, optimizer, x)
            if epoch == 2 and number == 1:
                break
        if epoch == 2:
            assert called == [1, 2, 3, 7, 8]


def steps_of(run, model, optimizer, *, total=6, batch_size=8, per_slot=None, get_batch=None, **options):
    run.prepare(model, optimizer, max_per_slot_batch=per_slot)
    return run.steps(total, batch_size, get_batch or (lambda indices: indices), **options)


def network():
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_steps_hand_out_every_number_once_and_resume_where_they_were(tmp_path):
    seen = []
    for until in (4, 10):
        run, (model, optimizer) = geminid.init(checkpoint_dir=tmp_path), network()
        for one in steps_of(run, model, optimizer, total=10, batch_size=8, per_slot=3):
            assert one.number == run.step
            for indices in one:
                assert len(indices) <= 3
                seen += indices
                model(torch.ones(1)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step == until:
                break
        run._script_end.end()
        atexit.unregister(run._script_end.end)
    assert seen == list(range(80))
    assert run.step == 10


def test_schedules_and_questions_work_in_a_loop_over_steps():
    run, (model, optimizer) = geminid.init(), network()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    run.prepare(model, optimizer, lr_scheduler=schedule)
    for one in run.steps(3, 4, lambda indices: torch.ones(len(indices), 1)):
        assert run.agree(one.number) == one.number
        for x in one:
            with pytest.raises(RuntimeError, match="before its loop over batches"):
                run.agree(1)
            model(x).mean().backward()
        optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 ** (one.number + 1))
    assert run.step == 3


def test_what_a_batch_is_made_of_depends_on_its_samples_alone(capsys):
    run = geminid.init(seed=3)
    drawn = run.draw(range(100, 200), 50)
    assert drawn.tolist() == [int(run.draw([number], 50)) for number in range(100, 200)]
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < 50
    assert len(set(drawn.tolist())) > 30
    assert drawn.tolist() != geminid.init(seed=4).draw(range(100, 200), 50).tolist()

    def trained(get_batch):
        run, (model, optimizer) = geminid.init(), network()
        for one in steps_of(run, model, optimizer, get_batch=get_batch):
            for x in one:
                model(x).mean().backward()
            optimizer.step()
        return capsys.readouterr().err

    assert "get_batch drew from a global random generator" in trained(lambda indices: torch.rand(len(indices), 1))
    assert trained(lambda indices: torch.ones(len(indices), 1)) == ""


def test_misuse_of_steps_is_told_in_one_sentence():
    run, (model, optimizer) = geminid.init(), network()
    with pytest.raises(RuntimeError, match="has not been called"):
        run.steps(1, 1, list)
    run.prepare(model, optimizer)
    with pytest.raises(RuntimeError, match=r"was given no loader: give it one, or use run\.steps"):
        next(run.epochs(1))
    with pytest.raises(ValueError, match="total is 0: it must be a whole number of at least 1"):
        run.steps(0, 1, list)
    with pytest.raises(RuntimeError, match="used to their end"):
        list(run.steps(3, 4, list))
    with pytest.raises(RuntimeError, match="has been called already"):
        run.steps(3, 4, list)
    run, model, optimizer, _ = prepared()
    with pytest.raises(RuntimeError, match="was given a loader"):
        run.steps(3, 4, list)
    run, (model, optimizer) = geminid.init(), network()
    with pytest.raises(RuntimeError, match="without a break"):
        [next(iter(one)) for one in steps_of(run, model, optimizer, per_slot=2)]


def halves(**more):
    models = {"g": nn.Linear(1, 1), "d": nn.Linear(1, 1)}
    optimizers = {"g": torch.optim.SGD(models["g"].parameters(), lr=0.1)}
    optimizers["d"] = torch.optim.Adam(models["d"].parameters(), lr=0.1)
    return {"models": models, "optimizers": optimizers, "loader": DataLoader(data(), batch_size=8), **more}


def test_several_models_are_saved_and_restored_by_name(tmp_path):
    def trained(epochs, folder, **more):
        torch.manual_seed(2)
        run, parts = geminid.init(checkpoint_dir=folder), halves(**more)
        *_, loader = run.prepare(**parts)
        for _ in run.epochs(epochs):
            for (x,) in loader:
                for name, model in parts["models"].items():
                    step(model, parts["optimizers"][name], x)
        atexit.unregister(run._script_end.end)
        assert run._session.step.current.choice.factors == (1.0, 1.0)
        return [value.item() for model in parts["models"].values() for value in model.parameters()]

    expected = trained(3, tmp_path / "whole")
    trained(2, tmp_path / "resumed")
    assert trained(3, tmp_path / "resumed") == pytest.approx(expected)
    one = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="the model has changed since"):
        trained(3, tmp_path / "whole", models={"g": one}, optimizers={"g": torch.optim.SGD(one.parameters(), lr=1.0)})


def test_every_optimizer_has_its_own_rule_and_the_learning_rates_of_its_groups():
    run, parts = geminid.init(), halves()
    run.prepare(**parts)
    assert run._settings.scaling_rules == ("adascale", "adamscale")


def test_what_several_models_may_not_be_is_told():
    def refused(kind, match, **more):
        with pytest.raises(kind, match=match):
            geminid.init().prepare(**halves(**more))

    one = nn.Linear(1, 1)
    twice = {name: torch.optim.SGD(one.parameters(), lr=0.1) for name in "ab"}
    refused(ValueError, "the optimizer 'b' has a parameter that another one has too", optimizers=twice)
    refused(TypeError, "or several by name", model=one)
    refused(TypeError, "models must be a dict with at least one entry", models={})
    refused(TypeError, "optimizers has 'g': Linear, which is not a Optimizer", optimizers={"g": one})
    refused(ValueError, "models has a name that cannot be used", models={"a.b": one})
    with pytest.raises(TypeError, match="needs a model and an optimizer"):
        geminid.init().prepare(one)


def test_the_gradient_is_an_average_over_tokens_in_any_number_of_passes():
    def trained(per_slot):
        run, model, optimizer, loader = prepared(per_slot)
        for _ in run.epochs(1):
            for (x,) in loader:
                tokens = (x[:, 0] * 24).round() % 5
                optimizer.zero_grad()
                run.weight(tokens.sum())
                loss = (model(x)[:, 0].square() * tokens).sum() / tokens.sum()  # NaN where there are none
                loss.backward()
                optimizer.step()
        return [value.item() for value in model.parameters()]

    assert trained(3) == pytest.approx(trained(None))
    assert trained(1) == pytest.approx(trained(None))


@pytest.mark.parametrize("weighed", [0, 1])
def test_weights_are_given_before_backward_and_in_every_pass(weighed):
    run, model, _, loader = prepared(4)
    run.weight(3)  # outside of passes it means nothing
    with pytest.raises(ValueError, match="the weight is -1"):
        run.weight(-1)
    for _ in run.epochs(1):
        for number, (x,) in enumerate(loader):
            if number % 2 == weighed:
                run.weight(1)
                run.weight(2)
            if number == 1:
                with pytest.raises(RuntimeError, match=r"was called in 1 of 2 passes of a step: call it in every pass"):
                    model(x).mean().backward()
                return
            model(x).mean().backward()
            with pytest.raises(RuntimeError, match=r"must be called before backward"):
                run.weight(2)


def test_only_modules_that_collect_gradients_are_outsiders(capsys):
    model, critic, frozen, before = (nn.Linear(1, 1) for _ in range(4))
    frozen.requires_grad_(False)
    before(torch.ones(1)).backward()  # trained in an earlier part of the script
    outsiders = Outsiders(model.parameters())
    outsiders.begin_group()
    outsiders.begin_step()
    frozen(model(torch.ones(1))).backward()
    outsiders.check(several_workers=True)
    critic(model(torch.ones(1))).backward()
    outsiders.check(several_workers=False)
    outsiders.check(several_workers=False)
    assert capsys.readouterr().err.count("a Linear was not given to run.prepare()") == 1
    with pytest.raises(RuntimeError, match=r"freeze it with requires_grad_\(False\)"):
        outsiders.check(several_workers=True)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_fused_and_foreach_optimizers_train_as_plain_ones_and_resume(tmp_path, options):
    def trained(epochs, folder, **options):
        torch.manual_seed(3)
        run, model = geminid.init(checkpoint_dir=folder), nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        *_, loader = run.prepare(model, optimizer, DataLoader(data(), batch_size=8), max_per_slot_batch=3)
        for _ in run.epochs(epochs):
            for (x,) in loader:
                step(model, optimizer, x)
        atexit.unregister(run._script_end.end)
        return [value.item() for value in model.parameters()]

    expected = pytest.approx(trained(3, tmp_path / "plain"), abs=1e-6)
    trained(2, tmp_path / "resumed", **options)
    assert trained(3, tmp_path / "resumed", **options) == expected


def test_an_optimizers_state_keeps_its_types():
    parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    kept = {"bits": torch.tensor([3, 250], dtype=torch.uint8), "exact": torch.tensor([1 + 2.0**-20, 1.0])}
    optimizer.state[parameter].update(kept)
    other = torch.optim.SGD([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], lr=0.1)
    load_optimizer(other, optimizer.state_dict())
    (restored,) = other.state.values()
    assert all(
        torch.equal(restored[name], value) and restored[name].dtype == value.dtype for name, value in kept.items()
    )


def test_models_compiled_in_place_are_given_batches_of_few_sizes():
    model = nn.Sequential(nn.Linear(1, 1))
    assert not is_compiled(model)
    model[0].compile(backend="eager")
    assert is_compiled(model)
    assert is_compiled(torch.compile(nn.Linear(1, 1), backend="eager"))
