"""What the service's state makes of what jobs tell: crashes, checkpoints that are gone, batches."""

from __future__ import annotations

import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState

PLACE = Placement.of({"local": [0, 1, 2]})


class Story:
    """A state with one job, which hears of it second after second."""

    def __init__(self, *, elastic: bool = True, **fields: object) -> None:
        self.state, self.seq = ServiceState(), 0
        spec = JobSpec.from_dict({"name": "x", "command": ["x"], "owner": "ann", **fields})
        self.hear(r.JobSubmitted(job_id="j1", spec=spec, elastic=elastic))

    def hear(self, *records: r.Record) -> LiveJob:
        for record in records:
            self.seq += 1
            self.state.apply(self.seq, float(self.seq), record)
        return self.state.jobs["j1"]

    def start(self, **formed: object) -> LiveJob:
        if self.state.jobs["j1"].phase is JobPhase.PENDING:
            self.hear(r.Planned(targets={"j1": PLACE}), r.JobStarting(job_id="j1", placement=PLACE))
        return self.hear(r.JobFormed(job_id="j1", placement=PLACE, **formed))  # type: ignore[arg-type]

    def train(self, samples: int, *, per_slot_batch: int = 16, passes: int = 1) -> LiveJob:
        return self.hear(
            r.JobProgressed(
                job_id="j1",
                progress=float(samples),
                samples=samples,
                step=samples,
                epoch=0,
                slots=3,
                nodes=1,
                per_slot_batch=per_slot_batch,
                accumulation_steps=passes - 1,
            )
        )

    def save(self, samples: int) -> LiveJob:
        return self.hear(r.JobCheckpointed(job_id="j1", samples=samples))


@pytest.mark.parametrize(
    ("saved", "restored", "told"),
    [
        (400, 400, "training on 3 slots from its last checkpoint"),
        (400, 100, "training on 3 slots from an older checkpoint: the last could not be used"),
        (400, 0, "training on 3 slots from the beginning: no checkpoint was used"),
        (0, 0, "training on 3 slots from the beginning: nothing was saved"),
    ],
)
def test_it_is_told_from_where_a_job_that_lost_all_workers_goes_on(saved: int, restored: int, told: str) -> None:
    story = Story()
    assert story.start(restored=True, samples=0).story[-1].text == "training on 3 slots"
    story.train(500)
    if saved:
        story.save(saved)
    after = story.start(restored=True, samples=restored)
    assert after.story[-1].text == told
    assert after.samples == restored
    assert after.state.progress_samples == pytest.approx(restored)
    assert story.train(restored + 10).samples == restored + 10


def test_failures_after_progress_are_the_first_again_and_others_add_up() -> None:
    story = Story(max_retries=1)
    story.start(restored=True, samples=0)
    for samples in (100, 200, 300, 400):
        story.train(samples)
        story.save(samples)
        assert story.start(restored=True, samples=samples).phase is JobPhase.RUNNING
    assert story.state.jobs["j1"].state.failures == 4
    given_up = story.start(restored=True, samples=400)  # nothing new since
    assert given_up.phase is JobPhase.FAILED
    assert given_up.state.failures == 5


def test_a_plain_command_has_its_retries_once() -> None:
    story = Story(elastic=False, slots=3, max_retries=1)
    waits_s = []
    for _ in range(2):
        story.start()
        ended = story.hear(r.JobEnded(job_id="j1", how="crashed", reason="it ended with code 1"))
        waits_s.append(ended.held_until_s - story.seq)
    assert ended.phase is JobPhase.FAILED
    assert waits_s == [1.0, 2.0]


@pytest.mark.parametrize(
    "asked",
    [
        [r.JobChanged(job_id="j1", by="ann", min_slots=1)],
        [r.JobWished(job_id="j1", wish=w, by="ann") for w in ("pause", "run")],
    ],
)
def test_a_job_that_waits_for_its_next_try_is_tried_at_once_if_its_owner_says_so(asked: list[r.Record]) -> None:
    story = Story(min_slots=3, max_slots=3)
    story.start(restored=True, samples=0)
    story.hear(r.JobHeld(job_id="j1", for_s=30.0, reason="far away", placement=Placement.of({"local": [0]})))
    waits = story.hear(r.JobStopping(job_id="j1", reason="far away"), r.JobEnded(job_id="j1", how="stopped"))
    assert (waits.phase, waits.target, waits.state.failures) == (JobPhase.PENDING, None, 0)
    assert waits.held_until_s > story.seq
    assert "it waits for 30 s: far away" in [line.text for line in waits.story]
    after = story.hear(*asked)
    assert (after.phase, after.held_until_s) == (JobPhase.PENDING, 0.0)


def test_a_batch_is_never_told_to_be_larger_than_the_largest() -> None:
    """64 samples over three slots are 22, 21 and 21."""
    story = Story()
    story.start(restored=True, samples=0)
    limits = {"initial_batch": 64, "largest_batch": 64, "smallest_per_slot": 1, "largest_per_slot": 64}
    story.hear(r.JobReady(job_id="j1", parameter_count=1, **limits))
    story.train(100)
    told = story.train(200, per_slot_batch=11, passes=2)
    assert told.story[-1].text == "re-tuned: batch 64 (11 a slot × 2 passes)"


def test_a_pause_longer_than_a_job_has_run_is_not_believed():
    story = Story()
    story.start()
    assert story.start(pause_s=1.0).pauses_s == (1.0,)
    job = story.start(pause_s=2e12)
    assert job.pauses_s == (1.0,)
    assert job.story[-1].pause_s is None
