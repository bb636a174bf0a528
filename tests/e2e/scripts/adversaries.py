"""A generator and a discriminator in one model with one optimiser; with ``--plain`` the same loop without Geminid.

Every ``backward()`` uses a part of the model only. Whatever it does not use must stay as it is, although the optimiser
has momentum for it.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--plain", action="store_true", help="without Geminid")
parser.add_argument("--adam", action="store_true", help="instead of SGD with momentum")
parser.add_argument("--loop", choices=("alternating", "both", "together"), default="alternating")
parser.add_argument("--apart", action="store_true", help="have losses that do not depend on the other half's weights")
parser.add_argument("--per-slot", type=int, help="accumulate over passes of so many samples")
parser.add_argument("--zeros", action="store_true", help="set gradients to zero instead of None")
parser.add_argument("--scaled", action="store_true", help="with a loss scaler whose scale changes")
parser.add_argument("--until", type=Path, help="pause in every pass until there is this file")
parser.add_argument("--manual", action="store_true", help="set gradients without backward()")


def halves():
    """The model: two halves, a part that few samples use, one that none does and one that is frozen."""
    torch.manual_seed(7)
    parts = {"g": nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)), "d": nn.Linear(3, 1)}
    model = nn.ModuleDict({**parts, "seldom": nn.Linear(3, 1), "never": nn.Linear(3, 1), "frozen": nn.Linear(3, 3)})
    model["frozen"].requires_grad_(False)
    return model


def loss_of_discriminator(model, x, number, args):
    """It tells inputs from what the generator makes of them; a few samples use one more layer."""
    made = x.flip(1) if args.apart else model["g"](x).detach()
    loss = (model["d"](model["frozen"](x)) - 1).square().mean() + model["d"](made).square().mean()
    rare = (number % 16 == 5).float()
    if rare.any():  # one sample of few batches, and so on one worker only
        loss = loss + (model["seldom"](x).square() * rare[:, None]).mean()
    return loss


def loss_of_generator(model, x, args):
    """What the discriminator makes of what it made."""
    made = model["g"](x)
    return (made - x.flip(1)).square().mean() if args.apart else (model["d"](made) - 1).square().mean()


class Loop:
    """What the body of the loop does."""

    def __init__(self, model, optimizer, scaler, args):
        self.model, self.optimizer, self.scaler, self.args = model, optimizer, scaler, args
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def zero(self):
        self.optimizer.zero_grad(set_to_none=not self.args.zeros)

    def backward(self, loss):
        if self.args.manual:
            trained = [parameter for parameter in self.parameters if parameter.requires_grad]
            gradients = torch.autograd.grad(self.scaler.scale(loss), trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = gradient
        else:
            self.scaler.scale(loss).backward()

    def step(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def of_discriminator(self, x, number):
        self.backward(loss_of_discriminator(self.model, x, number, self.args))

    def of_generator(self, x):
        self.model["d"].requires_grad_(False)
        self.backward(loss_of_generator(self.model, x, self.args))

    def body(self, step, x, number):
        """One pass of a step."""
        self.model["d"].requires_grad_(True)
        if self.args.loop == "alternating":
            self.zero()
            if step % 3:
                self.of_generator(x)
            else:
                self.of_discriminator(x, number)
            self.step()
            return
        self.zero()
        self.of_discriminator(x, number)
        if self.args.loop == "both":
            self.step()
            self.zero()
        self.of_generator(x)
        self.step()


def train(args):
    """Train; the run, if there is one, and the model."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(x, torch.arange(50)), batch_size=12)
    model = halves()
    if args.adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3, enabled=args.scaled)
    loop = Loop(model, optimizer, scaler, args)
    if args.plain:
        steps = itertools.count()
        for _ in range(4):
            for batch in loader:
                loop.body(next(steps), *batch)
        return None, model
    run = geminid.init()
    _, _, loader = run.prepare(model, optimizer, loader, scaler=scaler, max_per_slot_batch=args.per_slot)
    for _ in run.epochs(4):
        for batch in loader:
            loop.body(run.step, *batch)
            assert model["never"].weight.grad is None, "nobody has used it"
            time.sleep(0.0 if args.until is None or args.until.exists() else 0.1)
    return run, model


if __name__ == "__main__":
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run, model = train(arguments)
    weights = {name: value.tolist() for name, value in model.named_parameters()}
    if run is None or run.is_leader:
        arguments.out.write_text(json.dumps(weights))
