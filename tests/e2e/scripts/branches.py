"""A model with BatchNorm, a frozen part, a branch that few batches use and one that none does; stops early."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--uneven", action="store_true", help="have only the leader step")
parser.add_argument("--stay", action="store_true", help="do not leave the loop early")
parser.add_argument("--disorder", action="store_true", help="have a sampler that is different on every worker")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)
run = geminid.init()
model = nn.ModuleDict(
    {
        "always": nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
        "seldom": nn.Linear(3, 1),
        "never": nn.Linear(3, 1),
        "frozen": nn.Linear(3, 3),
    }
)
model["frozen"].requires_grad_(False)
groups = [
    {"params": model["always"].parameters()},
    {"params": [*model["seldom"].parameters(), *model["never"].parameters()]},
]
optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
before = {name: value.clone() for name, value in model.state_dict().items()}
data = TensorDataset(torch.randn(64, 3), torch.arange(64))
order = np.random.default_rng().permutation(64).tolist() if args.disorder else range(64)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16, sampler=order))
for epoch in run.epochs(5):
    for x, number in loader:
        optimizer.zero_grad()
        loss = model["always"](model["frozen"](x)).square().mean()
        if (number == 5).any():  # in this batch, and so on one worker only
            loss = loss + model["seldom"](x).square().mean()
        loss.backward()
        if run.is_leader or not args.uneven:
            optimizer.step()
    if epoch == 2 and not args.stay:
        break
changed = {name: not torch.equal(value, before[name]) for name, value in model.state_dict().items()}
result = {"weights": {name: value.tolist() for name, value in model.state_dict().items()}, "changed": changed}
args.out.with_name(f"out-{run.rank}").write_text(json.dumps(result))
