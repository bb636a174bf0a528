"""The course of training: samples, epochs and batches done, by which schedules advance and training ends."""

from __future__ import annotations

from geminid.train.settings import Settings
from geminid.train.trainstate import Position, TrainingState


class Course:
    """Counts steps into the state's position, and says what that comes to.

    ``epoch_samples`` is the length of the data, if it is known, and ``own_batch`` the loader's own batch size, which
    schedules are made for.
    """

    def __init__(self, state: TrainingState, settings: Settings, *, epoch_samples: int | None, own_batch: int) -> None:
        self._state, self._settings = state, settings
        self._epoch_samples, self._own_batch = epoch_samples, own_batch
        self.epochs_wanted: int | None = None
        #: The epochs whose data was last begun, and came to its end.
        self.data_begun = self.data_ended = -1

    @property
    def position(self) -> Position:
        """How far training is."""
        return self._state.position

    @property
    def _by_progress(self) -> bool:
        return self._settings.unit == "progress" and self._epoch_samples is not None

    def count(self, samples: int, efficiency: float) -> None:
        """A step of so many samples is over."""
        position = self.position
        position.cursor += samples
        position.samples += samples
        position.step += 1
        position.progress += samples * efficiency

    def end_epoch(self, epoch: int) -> None:
        """The loop's body for an epoch has ended, whether or not it saw all of the data."""
        position = self.position
        position.batches += self._batches_of(position.cursor)
        position.epoch, position.cursor = epoch + 1, 0

    def end_epoch_if_over(self) -> None:
        """What is saved now should not go on with an epoch that has no data left."""
        position, length = self.position, self._epoch_samples
        if self.data_ended == position.epoch or (length is not None and position.cursor >= length > 0):
            self.end_epoch(position.epoch)

    @property
    def work_is_done(self) -> bool:
        """Whether all epochs are over."""
        assert self.epochs_wanted is not None
        if self._by_progress:
            assert self._epoch_samples is not None
            return self.position.progress >= self.epochs_wanted * self._epoch_samples * (1 - 1e-9)
        return self.position.epoch >= self.epochs_wanted

    @property
    def ends_within_the_data(self) -> bool:
        """Whether training is over although there may be data left."""
        return self._settings.unit == "progress" and self.work_is_done

    def epochs_done(self) -> float:
        """Passes over the data, by samples or by useful samples."""
        position = self.position
        if self._epoch_samples is None:
            return float(position.epoch + (self.data_ended == position.epoch))
        return (position.progress if self._by_progress else position.samples) / self._epoch_samples

    def passes_due(self) -> float:
        """Steps that a schedule should have taken which is called after every loop over batches, left early or not."""
        if self._by_progress:
            return min(self.epochs_done(), float(self.epochs_wanted or 0))
        return self.position.epoch + float(self.data_begun == self.position.epoch)

    def batches_due(self) -> float:
        """Steps that a schedule should have taken which is called in the loop over batches of the loader's own size.

        By progress it ends when training does, although the last step makes more progress than was wanted.
        """
        if self._by_progress:
            assert self._epoch_samples is not None
            return self.passes_due() * self._batches_of(self._epoch_samples)
        return float(self.position.batches + self._batches_of(self.position.cursor))

    def _batches_of(self, samples: int) -> int:
        """Batches of the loader's own size, the last one perhaps a short one."""
        return -(-samples // self._own_batch)
