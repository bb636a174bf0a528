"""No schedule is better than the bound, whatever the jobs; and where the best schedule can be found, it is close."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from effort import examples
from geminid.gputypes import LinkClass
from geminid.network import Path
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.profiles.measured import MeasuredTruth, Shape
from geminid.solve.bound import Instance, JobKind, jct_bound, makespan_bound
from geminid.solve.bound.lagrangian import Prices, lagrangian

#: A bound at any prices holds; few steps make many instances quick.
FEW_STEPS = 12


def random_kind(rng: np.random.Generator, capacity: np.ndarray, phases: int) -> JobKind:
    """Concave and other speed-ups, types that some kinds cannot use, phases that scale differently."""
    slots, types, rates = [], [], []
    usable = [t for t in range(len(capacity)) if rng.random() < 0.7] or [int(rng.integers(len(capacity)))]
    for gpu_type in usable:
        speed, bends = rng.uniform(0.3, 3.0), rng.uniform(0.2, 1.1, phases)
        for count in range(1, int(capacity[gpu_type]) + 1):
            slots.append(float(count))
            types.append(gpu_type)
            rates.append(speed * count**bends * rng.uniform(0.8, 1.0))
    by_phase = np.array(rates).T
    shares = rng.dirichlet(np.ones(phases))
    return JobKind(np.array(slots), np.array(types), by_phase / by_phase.max(axis=1, keepdims=True), shares)


def random_instance(seed: int, *, most_jobs: int, most_slots: int, phases: int = 3) -> Instance:
    rng = np.random.default_rng(seed)
    capacity = rng.integers(1, most_slots + 1, int(rng.integers(1, 3))).astype(float)
    kinds = tuple(random_kind(rng, capacity, int(rng.integers(1, phases + 1))) for _ in range(rng.integers(1, 4)))
    jobs = int(rng.integers(1, most_jobs + 1))
    together = rng.random() < 0.3
    return Instance(
        capacity=capacity,
        kinds=kinds,
        kind=rng.integers(0, len(kinds), jobs),
        arrival_s=np.zeros(jobs) if together else rng.uniform(0.0, 30.0, jobs),
        start_up_s=rng.choice([0.0, 2.0], jobs),
        isolated_s=rng.lognormal(2.0, 1.0, jobs),
    )


class Run:
    """One schedule: phases in order, capacities respected, decisions when a job arrives or a phase ends."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        kinds = [instance.kinds[k] for k in instance.kind]
        self.left = [kind.shares * size for kind, size in zip(kinds, instance.isolated_s, strict=True)]
        self.begin = instance.arrival_s + instance.start_up_s
        self.now = 0.0
        self.done: dict[int, float] = {}

    def active(self) -> list[int]:
        return [j for j in range(len(self.left)) if j not in self.done and self.begin[j] <= self.now + 1e-12]

    def phase(self, job: int) -> int:
        return int(np.flatnonzero(self.left[job] > 1e-12)[0])

    def advance(self, modes: dict[int, int]) -> None:
        """Run these modes until the next arrival or end of a phase."""
        rates = {j: float(self.kind(j).rates[self.phase(j), m]) for j, m in modes.items()}
        ends = [self.left[j][self.phase(j)] / rate for j, rate in rates.items() if rate > 0]
        arrivals = [b - self.now for b in self.begin if b > self.now + 1e-12]
        step = min([*ends, *arrivals])
        for j, rate in rates.items():
            phase = self.phase(j)
            self.left[j][phase] -= rate * step
            if self.left[j][phase] < 1e-9 * self.instance.isolated_s[j]:
                self.left[j][phase] = 0.0
            if not (self.left[j] > 1e-12).any():
                self.done[j] = self.now + step
        self.now += step

    def kind(self, job: int) -> JobKind:
        return self.instance.kinds[self.instance.kind[job]]

    def copy(self) -> Run:
        other = Run.__new__(Run)
        other.instance, other.begin, other.now = self.instance, self.begin, self.now
        other.left, other.done = [x.copy() for x in self.left], dict(self.done)
        return other

    @property
    def total_s(self) -> float:
        return sum(end - self.instance.arrival_s[j] for j, end in self.done.items())


def random_schedule(instance: Instance, rng: np.random.Generator) -> Run:
    """Short jobs first or any order; small, fast or random modes."""
    run = Run(instance)
    taste, in_order = rng.uniform(0.0, 1.0), rng.random() < 0.7
    while len(run.done) < len(run.left):
        jobs = run.active()
        jobs = sorted(jobs, key=lambda j: run.left[j].sum()) if in_order else list(rng.permutation(jobs))
        free, modes = instance.capacity.copy(), {}
        for job in jobs:
            kind = run.kind(job)
            fits = np.flatnonzero((kind.slots <= free[kind.gpu_type] + 1e-12) & (kind.rates[run.phase(job)] > 0))
            if len(fits):
                score = kind.rates[run.phase(job), fits] / kind.slots[fits] ** taste
                modes[job] = mode = int(fits[score.argmax()] if rng.random() < 0.9 else rng.choice(fits))
                free[kind.gpu_type[mode]] -= kind.slots[mode]
        run.advance(modes)
    return run


@pytest.mark.parametrize("part", range(8))
def test_no_schedule_is_better(part: int) -> None:
    count = examples(300)
    for seed in range(part * count, (part + 1) * count):
        instance = random_instance(seed, most_jobs=6, most_slots=5)
        rng = np.random.default_rng(seed)
        runs = [random_schedule(instance, rng) for _ in range(4)]
        assert jct_bound(instance, steps=FEW_STEPS) <= min(run.total_s for run in runs), seed
        assert makespan_bound(instance) <= min(run.now for run in runs), seed


def test_any_prices_give_a_bound() -> None:
    for seed in range(examples(300)):
        instance = random_instance(seed, most_jobs=6, most_slots=5)
        rng = np.random.default_rng(seed)
        edges = np.concatenate([[0.0], np.sort(rng.uniform(0.0, 80.0, rng.integers(1, 30)))])
        prices = rng.exponential(rng.choice([0.01, 0.1, 1.0]), (len(instance.capacity), len(edges) - 1))
        levels = np.concatenate([np.zeros((1, len(prices))), rng.exponential(0.2, (8, len(prices)))])
        value = lagrangian(instance, Prices(edges, prices), levels).value_s
        assert value <= min(random_schedule(instance, rng).total_s for _ in range(4)) * (1 + 1e-9), seed


def decisions(run: Run) -> Iterator[dict[int, int]]:
    """Every way to give active jobs modes within the capacities, that leaves no slot on which a job could run."""
    jobs = run.active()
    options = [[None, *np.flatnonzero(run.kind(j).rates[run.phase(j)] > 0).tolist()] for j in jobs]
    for chosen in itertools.product(*options):
        free = run.instance.capacity.copy()
        for job, mode in zip(jobs, chosen, strict=True):
            if mode is not None:
                free[run.kind(job).gpu_type[mode]] -= run.kind(job).slots[mode]
        if free.min() >= 0 and (any(m is not None for m in chosen) or not jobs):
            yield {j: m for j, m in zip(jobs, chosen, strict=True) if m is not None}


def best_total_s(run: Run, best: float = np.inf) -> float:
    """The least sum of completion times over all decisions at arrivals and ends of phases."""
    if len(run.done) == len(run.left):
        return run.total_s
    waiting = sum(max(run.now - run.instance.arrival_s[j], 0.0) for j in range(len(run.left)) if j not in run.done)
    if run.total_s + waiting >= best:
        return best
    for modes in decisions(run):
        later = run.copy()
        later.advance(modes)
        best = min(best, best_total_s(later, best))
    return best


def test_it_is_close_to_the_best_schedule_of_tiny_instances() -> None:
    parts = []
    for seed in range(examples(60)):
        instance = random_instance(seed, most_jobs=3, most_slots=2, phases=1)
        best = best_total_s(Run(instance))
        value = jct_bound(instance)
        assert value <= best * (1 + 1e-9)
        parts.append(value / best)
    assert np.median(parts) >= 0.85
    assert min(parts) >= 0.5


BATCHES = (1, 8, 13, 32, 40, 128)


def placements(nodes: list[int], slots: int) -> set[tuple[int, ...]]:
    """Every way to place so many slots on these nodes, in the order of the nodes."""
    found = set()
    for each in itertools.product(*(range(size + 1) for size in nodes)):
        if sum(each) == slots:
            found.add(tuple(count for count in each if count))
    return found


def random_measurements(rng: np.random.Generator) -> MeasuredTruth:
    """Times of some placements and shapes, in which larger jobs are not always slower."""

    def times(batch: int) -> tuple[float, float]:
        pass_s = float(rng.uniform(0.01, 0.05) + 0.001 * batch)
        return pass_s, pass_s + float(rng.uniform(0.0, 0.1))

    some = [(1,), (2,), (3,), (1, 1), (2, 1), (2, 2), (1, 2, 1), (4,), (4, 4), (2, 2, 2)]
    chosen = [some[0], *(placement for placement in some[1:] if rng.random() < 0.6)]
    rows = [((placement, batch), times(batch)) for placement in chosen for batch in (8, 32, 64)]
    shapes = [(Shape(nodes, 2 * nodes, batch), times(batch)) for nodes in (2, 4) for batch in (8, 64)]
    across = [(((1, 1), batch), times(batch)) for batch in (8, 32)] if rng.random() < 0.5 else []
    return MeasuredTruth(rows, shapes, {LinkClass.ZONE: MeasuredTruth(across)} if across else None)


@pytest.mark.parametrize("measured", [True, False])
def test_step_times_of_all_placements_leave_none_out(measured: bool) -> None:
    built_in = list(built_in_applications().values())
    for seed in range(examples(60)):
        rng = np.random.default_rng(seed)
        nodes = rng.integers(1, 5, int(rng.integers(1, 5))).tolist()
        truth = random_measurements(rng) if measured else built_in[seed % len(built_in)].truth["v100"]
        path = Path(rng.choice([LinkClass.RACK, LinkClass.ZONE]), float(rng.choice([1.0, 0.5, 3.0])))
        for slots in range(1, min(sum(nodes), 8) + 1):
            all_times = np.array(list(truth.all_step_times(nodes, slots, BATCHES, path)))
            for placement in placements(nodes, slots):
                times = np.array([truth.step_times_over(placement, batch, path) for batch in BATCHES]).T
                assert np.isclose(all_times, times, rtol=1e-9).all(axis=(1, 2)).any(), (seed, nodes, placement)
