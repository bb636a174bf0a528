"""What holds for all workloads: nothing is lost in writing, and nothing hostile gets through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.fields import InvalidInput, check_text
from geminid.job import Adaptivity
from geminid.policies.gavel.problem import MOST_WEIGHT
from geminid.sim.application import LossCurve
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import FORMATS, load_workload, write_native
from geminid.sim.workloads.generate import Arrivals, generate_workload
from geminid.sim.workloads.tables import TextFile

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
labels = st.text(min_size=1, max_size=20).map(str.strip).filter(lambda text: text and not check_text("", text))
amounts = st.floats(min_value=1e-9, max_value=1e10)
counts = st.integers(1, 10**15)
loss_curves = st.builds(
    lambda end, drop, steepness, exponential: LossCurve(
        start=end + drop, end=end, steepness=steepness, exponential=exponential
    ),
    end=st.floats(0.0, 1e3),
    drop=st.floats(1e-3, 1e3),
    steepness=st.floats(1e-6, 1e6),
    exponential=st.booleans(),
)


@st.composite
def trace_jobs(draw: st.DrawFn) -> TraceJob:
    opaque = draw(st.booleans())
    relative = draw(st.booleans())
    steps = None if opaque else draw(st.none() | counts)
    return TraceJob(
        name=draw(names),
        submit_s=draw(st.floats(0, 1e10) | st.integers(0, 10**6).map(float)),
        requested_slots=draw(st.integers(1, 1_000_000)),
        application=None if opaque else draw(labels),
        requested_batch=draw(st.none() | counts),
        adaptivity=Adaptivity.RIGID if opaque else draw(st.sampled_from(Adaptivity)),
        duration_s=draw(amounts) if opaque else None,
        steps=steps,
        weight=draw(st.just(1.0) | st.floats(min_value=0, exclude_min=True, max_value=MOST_WEIGHT)),
        slo_s=None if relative else draw(st.none() | amounts),
        slo_factor=draw(st.none() | amounts) if relative else None,
        owner=draw(st.just("") | labels),
        opportunistic=draw(st.booleans()),
        loss=draw(st.none() | loss_curves),
        plan=None if steps is None else draw(st.none() | names),
    )


workloads = st.builds(
    lambda name, jobs: Workload(name, tuple(sorted(jobs, key=lambda job: job.submit_s))),
    name=names,
    jobs=st.lists(trace_jobs(), min_size=1, max_size=5, unique_by=lambda job: job.name),
)


@given(workloads)
def test_every_workload_is_written_and_read_back_without_loss(workload: Workload) -> None:
    with TemporaryDirectory() as folder:
        for name in ("w.csv", "w.yaml"):
            path = Path(folder) / name
            write_native(workload, path)
            assert load_workload(path).jobs == workload.jobs
        assert load_workload(path).name == workload.name


headers = st.sampled_from([",".join(sorted(entry.columns)) for entry in FORMATS.values()])
cells = st.sampled_from(["", "0", "-1", "1e400", "nan", "2017-10-09", "9" * 5000, '"', "\x00", "x", "1"]) | st.text()
rows = st.lists(st.lists(cells, max_size=12).map(",".join), max_size=5).map("\n".join)
hostile = st.text() | st.builds("{}\n{}".format, headers, rows) | rows.map(lambda text: text.replace(",", "\t"))


def refusal(load: Callable[[], Workload]) -> InvalidInput | None:
    """What is said against a file, if anything; any other exception fails the test."""
    try:
        assert load().jobs
    except InvalidInput as error:
        return error
    return None


@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(["w.csv", "w.yaml", "w.trace", "w"]), hostile)
def test_hostile_text_is_read_or_refused_with_a_few_short_sentences(format: str, name: str, text: str) -> None:
    error = refusal(lambda: FORMATS[format].load(TextFile(name, text)))
    if error is not None:
        sentences = str(error).split("\n")
        assert 1 <= len(sentences) == len(error.problems) <= 21
        assert all(sentence.endswith(".") and len(sentence) < 500 for sentence in sentences)


@given(st.binary())
def test_hostile_bytes_are_read_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "w"
        path.write_bytes(data)
        error = refusal(lambda: load_workload(path))
        assert error is None or error.problems


@given(st.permutations(range(8)))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    lines = [f"j{i},{i * 10},bert,1,12" for i in range(8)]
    header = "name,time,application,num_replicas,batch_size"
    shuffled = FORMATS["pollux"].load(TextFile("w.csv", "\n".join([header, *(lines[i] for i in order)])))
    assert [job.name for job in shuffled.jobs] == [f"j{i}" for i in range(8)]


@settings(max_examples=examples(50))
@given(
    jobs=st.integers(1, 30),
    hours=st.floats(0.01, 400),
    seed=st.integers(0, 2**64),
    ratio=st.floats(1, 1e6),
    weekend=st.floats(1e-3, 10),
    start=st.floats(0, 168),
    peak=st.floats(0, 24),
)
def test_every_generated_workload_is_in_order_within_its_hours_and_loads_again(
    jobs: int, hours: float, seed: int, ratio: float, weekend: float, start: float, peak: float
) -> None:
    arrivals = Arrivals(day_night_ratio=ratio, weekend_factor=weekend, start_hour=start, peak_hour=peak)
    of_applications = generate_workload(jobs=jobs, hours=hours, seed=seed, arrivals=arrivals)
    opaque = generate_workload(jobs=jobs, hours=hours, seed=seed, arrivals=arrivals, applications=None)
    for workload in (of_applications, opaque):
        times = [job.submit_s for job in workload.jobs]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= hours * 3600 + 0.5
        with TemporaryDirectory() as folder:
            write_native(workload, Path(folder) / "w.csv")
            assert load_workload(Path(folder) / "w.csv").jobs == workload.jobs
