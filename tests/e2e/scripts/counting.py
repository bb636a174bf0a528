"""A training script whose model counts how often each sample has taken part in it.

Parameter i goes down by exactly one whenever sample i is part of an optimiser step, however that step is divided over
workers and passes: after E epochs every entry must be −E, through all rescales, crashes and restarts.
"""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--samples", type=int, default=100)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-batch", type=int)
parser.add_argument("--max-per-slot", type=int)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--every", type=float, default=60.0)
args = parser.parse_args()

torch.set_num_threads(1)
run = geminid.init(seed=3, checkpoint_every_s=args.every)
model = torch.nn.Embedding(args.samples, 1)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(TensorDataset(torch.arange(args.samples)), batch_size=args.batch, shuffle=True)
model, optimizer, loader = run.prepare(
    model, optimizer, loader, max_batch_size=args.max_batch, max_per_slot_batch=args.max_per_slot, scaling_rule="none"
)
seen = run.state("seen", {"steps": 0})
for epoch in run.epochs(args.epochs):
    for (index,) in loader:
        optimizer.zero_grad()
        loss = model(index).mean() * loader.step_samples
        loss.backward()
        optimizer.step()
        seen["steps"] += 1
        run.report(loss=loss, epoch=epoch)
        time.sleep(args.pause)
if run.is_leader:
    counts = model.weight.detach().flatten().tolist()
    args.out.write_text(f"{min(counts)} {max(counts)} {sum(counts)} {run.step} {run.progress}")
