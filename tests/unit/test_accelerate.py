"""Accelerate's Accelerator over a run: what it divides, gathers and refuses."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geminid.accelerate import Accelerator
from geminid.train.data import with_batch_size
from geminid.train.group_view import Layout
from geminid.train.integrations.accelerate import part_of


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("whole", [1, 2, 5, 6])
def test_parts_of_a_batch_are_equal_and_begin_with_all_of_it_in_order(whole, size):
    batch = torch.arange(whole)
    parts = [part_of(whole, rank, size)(batch) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1
    assert torch.cat(parts)[:whole].tolist() == batch.tolist()


def prepared(**options):
    accelerator, model = Accelerator(cpu=True, **options), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders = [DataLoader(TensorDataset(torch.arange(12.0)[:, None]), batch_size=size) for size in (2, 5)]
    return accelerator, *accelerator.prepare(model, optimizer, *loaders)


def test_batch_size_and_accumulation_make_the_initial_batch_plan():
    accelerator, model, optimizer, loader, test_loader = prepared(gradient_accumulation_steps=3)
    assert (len(loader), loader.batch_size, len(test_loader)) == (6, 2, 3)
    synchronised = []
    for _ in accelerator.epochs(1):
        for (x,) in loader:
            assert len(x) == 2
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
                synchronised.append(accelerator.sync_gradients)
                optimizer.step()
                optimizer.zero_grad()
        assert [len(x) for (x,) in test_loader] == [5, 5, 2]
    assert synchronised == [False, False, True] * 2
    assert accelerator.run.step == 2


def test_it_knows_its_place_and_gathers_over_workers(monkeypatch):
    accelerator, *_, test_loader = prepared()
    group = accelerator.run._session.group
    group.rank, group.layout = 1, Layout(2)
    accelerator._take_place()
    assert (accelerator.process_index, accelerator.num_processes, accelerator.is_main_process) == (1, 2, False)
    monkeypatch.setattr(accelerator.run, "gather", lambda value: [value, value])
    assert accelerator.gather(torch.tensor(3.0)).tolist() == [3.0, 3.0]
    assert accelerator.reduce(torch.tensor([1.0, 2.0]), "mean").tolist() == [1.0, 2.0]
    assert accelerator.reduce(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    batches = [(len(x), len(accelerator.gather_for_metrics(x))) for (x,) in test_loader]
    assert batches == [(3, 5), (3, 5), (1, 2)]
    group.rank, group.layout = 0, Layout(1)
    accelerator._take_place()


def test_what_it_cannot_do_is_told():
    accelerator, model, optimizer, *_ = prepared()
    with pytest.raises(RuntimeError, match="give it all models and optimizers at once"):
        accelerator.prepare(model, optimizer)
    with pytest.raises(ValueError, match="and the training loader in one call"):
        Accelerator(cpu=True).prepare(model)


def test_a_loader_with_another_batch_size_has_the_same_order_and_options():
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(data, batch_size=2, sampler=range(9, -1, -1), drop_last=True)
    larger = with_batch_size(loader, 4)
    assert [batch.tolist() for (batch,) in larger] == [[9, 8, 7, 6], [5, 4, 3, 2]]
    assert with_batch_size(loader, 2) is loader
    own = DataLoader(data, batch_sampler=[[0], [1]])
    assert with_batch_size(own, 4) is own
