"""How far training is: samples, epochs and batches done, by which schedules advance and training ends."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.train.settings import Unit


@dataclass(slots=True)
class Position:
    """How far training is: samples consumed of this epoch's order and of all epochs, steps, and useful samples.

    ``batches`` is how many batches of the loader's own size the epochs before this one had: what schedules count.
    """

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    progress: float = 0.0
    batches: int = 0


class TrainingProgress:
    """Counts steps into the position, and derives from it what is due.

    ``epoch_samples`` is the length of the data, if known, and ``own_batch`` the loader's own batch size, which
    schedules are made for. ``training`` says whether the loop over epochs is under way, ``in_loop`` whether the loop
    over batches is, and ``between_steps`` whether a loop over steps is where no batch of the next step has been used.
    ``data_begun`` and ``data_ended`` are the last epochs whose data was begun, and read to its end.
    """

    def __init__(self, *, epoch_samples: int | None, own_batch: int) -> None:
        self.epoch_samples, self._own_batch = epoch_samples, own_batch
        self.position = Position()
        self._epochs = 0
        self.unit: Unit = "samples"
        self.training = self.in_loop = self.between_steps = False
        self.data_begun = self.data_ended = -1

    def begin(self, epochs: int, unit: Unit) -> None:
        """Train for this many epochs, counted in ``unit``."""
        self._epochs, self.unit, self.training = epochs, unit, True

    @property
    def work_samples(self) -> int | None:
        """Samples in all epochs, if known."""
        return self.epoch_samples * self._epochs if self.epoch_samples is not None else None

    def count(self, samples: int, efficiency: float) -> None:
        """A step over this many samples is done."""
        position = self.position
        position.cursor += samples
        position.samples += samples
        position.step += 1
        position.progress += samples * efficiency

    def end_epoch(self, epoch: int) -> None:
        """The loop's body for an epoch has ended, whether or not it used all of the data."""
        position = self.position
        position.batches += self._batches_of(position.cursor)
        position.epoch, position.cursor = epoch + 1, 0

    def end_epoch_if_over(self) -> None:
        """Before saving: training must not resume in an epoch that has no data left."""
        position, length = self.position, self.epoch_samples
        if self.data_ended == position.epoch or (length is not None and position.cursor >= length > 0):
            self.end_epoch(position.epoch)

    @property
    def work_is_done(self) -> bool:
        """Whether all epochs are over."""
        work = self.work_samples
        if self._by_progress and work is not None:
            return self.position.progress >= work * (1 - 1e-9)
        return self.position.epoch >= self._epochs

    @property
    def ends_within_the_data(self) -> bool:
        """Whether training is over although there may be data left."""
        return self.unit == "progress" and self.work_is_done

    @property
    def epochs_done(self) -> float:
        """Passes over the data, by samples or by useful samples."""
        position = self.position
        if self.epoch_samples is None:
            return float(position.epoch + (self.data_ended == position.epoch))
        return (position.progress if self._by_progress else position.samples) / self.epoch_samples

    @property
    def batches_done(self) -> int:
        """Batches of the loader's own size in the samples so far."""
        return self.position.batches + self._batches_of(self.position.cursor)

    @property
    def schedule_steps_due(self) -> float:
        """Steps that a learning-rate schedule should have taken by now.

        In the loop over batches that is one per batch of the loader's own size, outside of it one per loop, left early
        or not. By progress the schedule ends when training does, although the last step exceeds the work.
        """
        position = self.position
        if self._by_progress and self.epoch_samples is not None:
            epochs = min(self.epochs_done, float(self._epochs))
            return epochs * self._batches_of(self.epoch_samples) if self.in_loop else epochs
        if self.in_loop:
            return float(self.batches_done)
        return position.epoch + float(self.data_begun == position.epoch)

    @property
    def _by_progress(self) -> bool:
        return self.unit == "progress" and self.epoch_samples is not None

    def _batches_of(self, samples: int) -> int:
        """Batches of the loader's own size; the last one may be short."""
        return -(-samples // self._own_batch)
