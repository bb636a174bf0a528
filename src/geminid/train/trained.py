"""Which of an optimiser's parameters are trained; scripts freeze and unfreeze them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class TrainedParameters:
    """The parameters that were trained when ``update`` was last called (``current``), and the others (``frozen``).

    A parameter whose ``requires_grad`` the body of the loop switches off and on counts as trained: ``switched`` holds
    the numbers of those, which all workers must have alike.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], switched: set[int] | None = None) -> None:
        self.all = list(parameters)
        self._switched = switched if switched is not None else set()
        self._are_trained: list[bool] = []
        self.current: list[nn.Parameter] = []
        self.frozen: list[nn.Parameter] = []
        self.update()

    def update(self) -> bool:
        """Look which parameters are trained now; whether that has changed."""
        are_trained = [one.requires_grad or number in self._switched for number, one in enumerate(self.all)]
        if are_trained == self._are_trained:
            return False
        self._are_trained = are_trained
        self.current = [one for one, trained in zip(self.all, are_trained, strict=True) if trained]
        self.frozen = [one for one, trained in zip(self.all, are_trained, strict=True) if not trained]
        return True

    def note_switched(self) -> None:
        """Remember the parameters that the body of the loop has switched since ``update``."""
        for number, parameter in enumerate(self.all):
            if self._are_trained[number] != parameter.requires_grad:
                self._switched.add(number)
