"""Loops as people write them, with and without Geminid: their weights must be the same on any number of slots.

``gan`` has two models, optimisers and schedules; ``steps`` has no Dataset and steps of several batches; ``tokens`` has
samples of different lengths, and a loss that is an average over all tokens; ``parts`` divides its batches by itself;
``closure`` steps by a closure; ``outside`` leaves a model out of ``prepare``. ``bytes`` has an optimiser that keeps
8-bit numbers, and a convolution in the memory format ``channels_last``.
"""

import argparse
import contextlib
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geminid
from geminid.train.indexed import draw

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("style", choices=("gan", "steps", "tokens", "parts", "closure", "outside", "bytes"))
parser.add_argument("--plain", action="store_true", help="without Geminid")
parser.add_argument("--per-slot", type=int, help="accumulate over passes of at most this many samples")
parser.add_argument("--until", type=Path, help="until there is this file, wait in every step for a resize")

SAMPLES, BATCH, EPOCHS = 50, 12, 4


class Bytes(torch.optim.Optimizer):
    """Momentum of signs, kept in 8 bits: a stand-in for the 8-bit optimisers that need a GPU."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state["momentum"] = torch.full_like(one, 128, dtype=torch.uint8)
                assert state["momentum"].dtype == torch.uint8
                signs = torch.where(one.grad.abs() > 1e-4, one.grad.sign(), 0.0)
                kept = (state["momentum"].float() - 128) * 0.5 + signs * 32
                state["momentum"] = (kept.round() + 128).to(torch.uint8)
                one.sub_((state["momentum"].float() - 128) / 64 * group["lr"])


class Script:
    """What all styles have in common: data, models by name with their optimisers, and their weights in the end."""

    def __init__(self, args):
        self.args, self.run = args, None if args.plain else geminid.init()
        torch.manual_seed(7)
        self.x = torch.randn(SAMPLES, 3)
        self.seen = []

    def epochs(self):
        return range(EPOCHS) if self.run is None else self.run.epochs(EPOCHS)

    def loader(self):
        return DataLoader(TensorDataset(self.x, torch.arange(SAMPLES)), batch_size=BATCH)

    def prepare(self, model, optimizer, loader, **more):
        if self.run is None:
            return loader
        *_, loader = self.run.prepare(model, optimizer, loader, max_per_slot_batch=self.args.per_slot, **more)
        return loader

    def pause(self):
        until = self.args.until
        while until is not None and not until.exists() and self.run._agent.orders.form is None:
            time.sleep(0.02)

    def gan(self):
        models = {"g": nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)), "d": nn.Linear(3, 1)}
        optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.01) for name, model in models.items()}
        schedules = {name: torch.optim.lr_scheduler.StepLR(one, 3, 0.9) for name, one in optimizers.items()}
        loader = self.loader()
        if self.run is not None:
            *_, loader = self.run.prepare(
                models=models, optimizers=optimizers, loader=loader, lr_scheduler=schedules, scaling_rule="none"
            )
        g, d = models["g"], models["d"]
        for _ in self.epochs():
            for x, _numbers in loader:
                optimizers["d"].zero_grad()
                (d(x) - 1).square().mean().backward()
                d(g(x).detach()).square().mean().backward()
                optimizers["d"].step()
                optimizers["g"].zero_grad()
                (d(g(x.flip(1))) - 1).square().mean().backward()
                optimizers["g"].step()
                for schedule in schedules.values():
                    schedule.step()
                self.pause()
        return nn.ModuleDict(models)

    def steps(self):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def get_batch(indices):
            chosen = draw(indices, SAMPLES, seed=0)
            return self.x[chosen], chosen

        def step(number, batches):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + 0.1 * number)
            for x, _numbers in batches:
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            self.pause()

        if self.run is None:
            for number in range(30):
                step(number, [get_batch(range(number * BATCH, (number + 1) * BATCH))])
            return model
        self.run.prepare(model, optimizer, max_per_slot_batch=self.args.per_slot)
        for one in self.run.steps(total=30, batch_size=BATCH, get_batch=get_batch):
            assert one.number == self.run.step
            step(self.run.agree(one.number), one)
        return model

    def tokens(self):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = self.prepare(model, optimizer, self.loader())
        for _ in self.epochs():
            for x, numbers in loader:
                tokens = (numbers % 7).float()  # sample 0, 7, … has none
                optimizer.zero_grad()
                if self.run is not None:
                    self.run.weight(tokens.sum())
                ((model(x)[:, 0].square() * tokens).sum() / tokens.sum()).backward()
                optimizer.step()
                self.pause()
        return model

    def parts(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = self.prepare(model, optimizer, self.loader())
        for _ in self.epochs():
            for x, _numbers in loader:
                optimizer.zero_grad()
                with contextlib.nullcontext() if self.run is None else self.run.accumulate():
                    for part in x.split(2):  # as many as a worker's batch has
                        ((model(part) - 1).square().sum() / len(x)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                self.pause()
        return model

    def closure(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        loader = self.prepare(model, optimizer, self.loader())
        for _ in self.epochs():
            for x, _numbers in loader:

                def closure(x=x):
                    optimizer.zero_grad()
                    loss = (model(x) - 1).square().mean()
                    loss.backward()
                    return loss

                assert optimizer.step(closure).isfinite()
                self.pause()
        return model

    def bytes(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4, 1)).to(memory_format=torch.channels_last)
        optimizer = Bytes(model.parameters(), lr=0.05)
        loader = self.prepare(model, optimizer, self.loader())
        for _ in self.epochs():
            for x, _numbers in loader:
                optimizer.zero_grad()
                image = x[:, :, None, None].to(memory_format=torch.channels_last)
                (model(image) - 1).square().mean().backward()
                optimizer.step()
                self.pause()
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        return model

    def outside(self):
        model, critic, frozen = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 3)
        frozen.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = self.prepare(model, optimizer, self.loader())
        for _ in self.epochs():
            for x, _numbers in loader:
                optimizer.zero_grad()
                critic(frozen(model(x))).square().mean().backward()
                optimizer.step()
                self.pause()
        return model


def train(args):
    """Train; the run, if there is one, and the model."""
    script = Script(args)
    model = getattr(script, args.style)()
    return script.run, model


if __name__ == "__main__":
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run, model = train(arguments)
    if run is None or run.is_leader:
        weights = {name: value.flatten().tolist() for name, value in model.named_parameters()}
        arguments.out.write_text(json.dumps(weights))
