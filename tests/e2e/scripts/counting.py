"""A training script whose model counts how often each sample has taken part in it.

Parameter i goes down by exactly one whenever sample i is part of an optimiser step, however that step is divided over
workers and passes: after E epochs every entry must be −E, through all rescales, crashes and restarts. No worker may
have an epoch without batches.

With ``--lineage`` the model carries the name of its version, next to its weights. Every worker writes down, before a
step, which version the step begins with, which one it makes, and the samples that it adds: so the samples that the last
version descends from can be followed back, whatever was lost, repeated or restored meanwhile.
"""

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import geminid

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--samples", type=int, default=100)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-batch", type=int)
parser.add_argument("--max-per-slot", type=int)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--until", type=Path, help="do not pause any more once this file exists")
parser.add_argument("--every", type=float, default=60.0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--stream", action="store_true", help="an iterable dataset, with a collate function of its own")
parser.add_argument("--hang", choices=("before", "forward", "after"), help="where a worker hangs, once")
parser.add_argument("--hanging", type=int, default=1, help="which worker")
parser.add_argument("--stuck", action="store_true", help="have one process hang before it begins, once")
parser.add_argument("--evaluate", type=float, default=0.0, help="seconds that the leader takes after each epoch")
parser.add_argument("--lively", action="store_true", help="have it call the model meanwhile")
parser.add_argument("--conclude", type=float, default=0.0, help="seconds that the leader takes at the end")
parser.add_argument("--die", action="store_true", help="have the leader die at the end, once")
parser.add_argument("--leave-after", type=int, help="leave the loop over epochs after this one")
parser.add_argument("--agree", action="store_true", help="have all agree on something after each epoch")
parser.add_argument("--record", action="store_true", help="write down which samples every worker saw")
parser.add_argument("--lineage", action="store_true", help="write down what every version of the model descends from")
parser.add_argument("--attempt", type=int, default=1, help="which supervisor this is under, for --lineage")
parser.add_argument("--where", action="store_true", help="print which rank is on which node")
parser.add_argument("--clock", action="store_true", help="write down when every worker ended its steps")
parser.add_argument("--talk", action="store_true", help="print a line in every step")
args = parser.parse_args()


class Stream(IterableDataset):
    """The samples in an order that it draws."""

    def __iter__(self):
        return iter(torch.randperm(args.samples).tolist())


def first_time(name):
    """Whether this has not happened yet, in any process."""
    try:
        args.out.with_name(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hang_once():
    """Hang for good, in an idle loop, if this is that worker, in its tenth step, and nobody has yet."""
    if run.rank == args.hanging and run.step > 10 and first_time("hung"):
        while True:
            time.sleep(0.01)


torch.set_num_threads(1)
if args.stuck and os.environ["GEMINID_WORKER"] == "w2" and first_time("stuck"):
    time.sleep(3600.0)
run = geminid.init(seed=3, checkpoint_every_s=args.every)


class Counter(torch.nn.Embedding):
    """Hangs where it is told to."""

    def forward(self, index):
        if args.hang == "forward":
            hang_once()
        return super().forward(index)


model = Counter(args.samples, 1).to(run.device)
if args.lineage:
    model.register_buffer("version", torch.zeros((), dtype=torch.int64))
    versions = os.open(args.out.with_name(f"lineage-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
if args.stream:
    loader = DataLoader(
        Stream(), batch_size=args.batch, num_workers=args.workers, collate_fn=lambda some: (torch.tensor(some),)
    )
else:
    data = TensorDataset(torch.arange(args.samples))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=args.workers)
model, optimizer, loader = run.prepare(
    model, optimizer, loader, max_batch_size=args.max_batch, max_per_slot_batch=args.max_per_slot, scaling_rule="none"
)
seen = run.state("seen", {"steps": 0})
record = args.out.with_name(f"record-{os.getpid()}").open("a") if args.record else None
clock = args.out.with_name(f"{args.out.name}-clock-{os.getpid()}").open("a") if args.clock else None
rank = None


def next_version():
    """The name of what the step under way makes: another one when it is tried again by another group."""
    text = f"{model.version.item()} {run.step} {args.attempt} {run._session.group.generation}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


for epoch in run.epochs(args.epochs):
    passes = 0
    for (index,) in loader:
        passes += 1
        optimizer.zero_grad()
        version = next_version() if args.lineage else None
        if args.lineage and not run._session.step.idle:  # in one write, before the step can have an effect
            line = " ".join(map(str, (version, model.version.item(), epoch, *index.tolist())))
            os.write(versions, f"{line}\n".encode())
        if args.hang == "before":
            hang_once()
        loss = model(index.to(run.device)).mean() * loader.step_samples
        loss.backward()
        optimizer.step()
        if args.lineage and run.stepped:
            model.version.fill_(version)
        if args.hang == "after":
            hang_once()
        seen["steps"] += 1
        run.report(loss=loss, epoch=epoch, ratio=float("nan"))
        if record is not None:
            print(epoch, *index.tolist(), file=record, flush=True)
        if args.where and run.rank != rank:
            rank = run.rank
            print("rank", rank, "on", os.environ["GEMINID_NODE"], flush=True)
        if clock is not None:
            print(time.time(), file=clock, flush=True)
        if args.talk:
            print("step", run.step, "of epoch", epoch, flush=True)
        time.sleep(0.0 if args.until is not None and args.until.exists() else args.pause)
    assert passes > 0, "an epoch without batches"
    if run.is_leader and args.evaluate:  # with gradients that are nobody else's
        model(torch.arange(3, device=run.device)).sum().backward()
        for _ in range(20):
            time.sleep(args.evaluate / 20)
            if args.lively:
                model(torch.arange(3, device=run.device))
    if args.agree:
        assert run.agree({"rank": run.rank}) == {"rank": 0}
    if args.leave_after is not None and epoch >= args.leave_after:
        break
if run.is_leader:
    time.sleep(args.conclude)
    if args.die and first_time("died"):
        os.kill(os.getpid(), signal.SIGKILL)
    counts = model.weight.detach().flatten().tolist()
    if args.lineage:
        args.out.with_name("version").write_text(str(model.version.item()))
    args.out.write_text(f"{min(counts)} {max(counts)} {sum(counts)} {run.step} {run.progress}")
