"""Things that workers must do together, and what some of them do alone; every worker writes what it ends with."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--thaw", type=int, default=-1, help="train the first layer from this epoch on")
parser.add_argument("--within", action="store_true", help="unfreeze it in the middle of the epoch's second step")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--until-size", type=int, default=0, help="let no epoch but the first end before there are so many")
parser.add_argument("--plateau", action="store_true", help="have only the leader reduce its learning rate")
parser.add_argument("--leave", type=int, default=-1, help="have only this worker leave the loop over batches")
parser.add_argument("--quit", type=int, default=-1, help="have only this worker leave the loop over epochs")
parser.add_argument("--stop", type=int, default=-1, help="have the leader decide to stop after this epoch")
parser.add_argument("--agree-alone", action="store_true", help="have only the leader ask all to agree")
parser.add_argument("--die", action="store_true", help="have the first leader die before it decides anything")
parser.add_argument("--tamper", type=float, default=1.0, help="have only the leader multiply its weights by this")
parser.add_argument("--second", action="store_true", help="train a layer with an optimizer that is not prepared")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)
run = geminid.init()
model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
model[0].requires_grad_(args.thaw < 0)
optimizer = torch.optim.Adam(model[1:].parameters() if args.second else model.parameters(), lr=0.01)
second = torch.optim.Adam(model[0].parameters(), lr=0.01 if args.second else 0.0)
before = model[0].weight.tolist()
x = torch.randn(67, 3)  # the last three are too few for two workers, because of the BatchNorm
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
counted = run.state("counted", {"steps": 0, "epochs": []})
statistics, size = [], 0
model, optimizer, loader = run.prepare(model, optimizer, loader, lr_scheduler=schedule)
for epoch in run.epochs(args.epochs):
    if epoch == args.thaw and not args.within:
        model[0].requires_grad_(True)
    for step, (inputs, wanted) in enumerate(loader):
        if run.size != size:
            size, statistics = run.size, model[1].running_mean.tolist()
        if epoch == args.thaw and args.within and step == 1:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        if args.second:
            second.step()
        counted["steps"] += run.is_leader
        run.report(rank=run.rank, **({"led": 7.0} if run.is_leader else {}))
        time.sleep(0.02)
        if epoch > args.thaw and run.size < args.until_size:
            time.sleep(0.2)
        if run.rank == args.leave and step == 1:
            break
    if run.is_leader:
        counted["epochs"].append(epoch)
        if epoch == 1:
            torch._foreach_mul_([parameter.data for parameter in model.parameters()], args.tamper)
    if run.is_leader or not args.plateau:
        schedule.step(1.0)
    died = args.out.with_name("died")
    if args.die and run.is_leader and run.size == 2 and not died.exists():
        died.touch()
        os._exit(9)
    if run.rank == args.quit and epoch == 1:
        break
    wish = {"stop": epoch == args.stop and run.is_leader, "rank": run.rank}
    together = run.gather({"rank": run.rank, "text": "x" * run.rank}) if args.stop >= 0 else []
    if args.agree_alone and run.is_leader:
        run.agree(1)
    if args.stop >= 0 and run.agree(wish) == {"stop": True, "rank": 0}:
        break
result = {
    "together": together,
    "weights": [parameter.tolist() for parameter in model.parameters()],
    "step": run.step,
    "epoch": epoch,
    "counted": counted,
    "statistics": statistics,
    "noise": run.noise_scale,
    "thawed": model[0].weight.tolist() != before,
}
args.out.with_name(f"out-{run.rank}").write_text(json.dumps(result))
