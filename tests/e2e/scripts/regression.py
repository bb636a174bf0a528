"""An ordinary training script, with momentum, clipping and a schedule; its weights go to a file at the end."""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--per-slot", type=int)
parser.add_argument("--max-batch", type=int)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after every pass")
parser.add_argument("--hurry", type=Path, help="do not sleep any more once there is this file")
parser.add_argument("--scaled", action="store_true")


def task():
    """Data, model, optimiser and schedule, the same everywhere."""
    torch.manual_seed(7)
    x = torch.randn(98, 5)
    data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return data, model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


if __name__ == "__main__":
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, model, optimizer, schedule = task()
    run = geminid.init(seed=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=4, enabled=args.scaled)
    model, optimizer, loader = run.prepare(
        model,
        optimizer,
        DataLoader(data, batch_size=16, shuffle=True, num_workers=args.workers),
        lr_scheduler=schedule,
        scaler=scaler,
        max_per_slot_batch=args.per_slot,
        max_batch_size=args.max_batch,
    )
    for _ in run.epochs(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if args.hurry is None or not args.hurry.exists():
                time.sleep(args.pause)
        schedule.step()
    weights = [parameter.tolist() for parameter in model.parameters()]
    result = {"weights": weights, "lr": optimizer.param_groups[0]["lr"], "step": run.step, "scale": scaler.get_scale()}
    args.out.with_name(f"out-{run.rank}").write_text(json.dumps(result))
    if run.is_leader:
        args.out.write_text(json.dumps(result))
