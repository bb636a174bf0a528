"""A script for Accelerate, as its documentation has it; with ``--plain`` it is Accelerate's own."""

import argparse
import json
import time
from pathlib import Path

import torch
from accelerate.tracking import GeneralTracker
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--plain", action="store_true", help="without Geminid")
parser.add_argument("--until", type=Path, help="until there is this file, wait in every step for a resize")
args = parser.parse_args()
if args.plain:
    from accelerate import Accelerator
else:
    from geminid.accelerate import Accelerator


class Recorder(GeneralTracker):
    """Writes down which steps are logged."""

    name, requires_logging_directory = "recorder", False
    tracker = None

    def store_init_configuration(self, values):
        pass

    def log(self, values, step, **more):
        with args.out.with_name("logged").open("a") as lines:
            lines.write(f"{step}\n")


torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=Recorder())
accelerator.init_trackers("a project")
torch.manual_seed(7)
x = torch.randn(48, 3)
data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(48))
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader, test_loader = DataLoader(data, batch_size=6), DataLoader(data, batch_size=10)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * 4)
model, optimizer, loader, test_loader, schedule = accelerator.prepare(model, optimizer, loader, test_loader, schedule)
errors = []
for epoch in range(3) if args.plain else accelerator.epochs(3):
    for inputs, targets, _ in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if accelerator.sync_gradients and not args.plain:
                accelerator.log({"loss": loss.item()}, step=accelerator.run.step)
            optimizer.zero_grad()
        waits = args.until is not None and accelerator.sync_gradients
        while waits and not args.until.exists() and accelerator.run._agent.orders.form is None:
            time.sleep(0.02)
    squares, seen = [], []
    for inputs, targets, numbers in test_loader:
        with torch.no_grad():
            error = (model(inputs) - targets).square()
        gathered, which = accelerator.gather_for_metrics((error, numbers))
        squares.append(gathered)
        seen += which.tolist()
    assert seen == list(range(48)), "every sample is evaluated once, in order"
    errors.append(torch.cat(squares).mean().item())
    accelerator.wait_for_everyone()
    accelerator.print("epoch", epoch, "is over")
result = {"weights": [value.flatten().tolist() for value in model.parameters()], "error": errors[-1]}
if accelerator.is_main_process:
    args.out.write_text(json.dumps(result))
