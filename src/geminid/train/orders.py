"""The supervisor's orders, kept from their arrival until the training thread carries them out between two steps."""

from __future__ import annotations

import threading

from geminid.supervise.protocol import Form, FromSupervisor, Retune, SaveCheckpoint, Stop


class Orders:
    """What this worker has been ordered to do and has not done yet. Without a supervisor there are no orders.

    ``generation`` is the group's generation that this worker is in; orders to form an older one are obsolete.
    ``terminated`` says that the process received SIGTERM, which is an order to stop as well.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.terminated = False
        self._form: Form | None = None
        self._retune: Retune | None = None
        self._save = False
        self._stop: Stop | None = None
        self._changed = threading.Condition()

    def receive(self, order: FromSupervisor) -> None:
        """Keep an order, unless a newer one of its kind has arrived before."""
        with self._changed:
            match order:
                case Form():
                    if self._form is None or order.generation > self._form.generation:
                        self._form = order
                case Retune():
                    self._retune = order
                case SaveCheckpoint():
                    self._save = True
                case Stop():
                    self._stop = order
            self._changed.notify_all()

    @property
    def form(self) -> Form | None:
        """The newest order to form a generation later than the current one."""
        form = self._form
        return form if form is not None and form.generation > self.generation else None

    @property
    def group_is_broken(self) -> bool:
        """Whether the supervisor reports that the current generation has lost a member."""
        form = self.form
        return form is not None and form.broken

    @property
    def stop(self) -> bool:
        """Whether this worker has to stop."""
        return self.terminated or self._stop is not None

    @property
    def save_before_stop(self) -> bool:
        """Whether to write a checkpoint before stopping."""
        return self._stop is None or self._stop.save

    def wait_for_form(self, timeout_s: float) -> Form | None:
        """Wait for an order to form a generation, or to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.form is not None or self._stop is not None, timeout_s)
        return self.form

    def take_retune(self) -> Retune | None:
        """The newest order about the batch plan; it is returned once."""
        taken, self._retune = self._retune, None
        return taken

    def take_save(self) -> bool:
        """Whether a checkpoint was ordered since the last call."""
        taken, self._save = self._save, False
        return taken
