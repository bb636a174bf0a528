"""Values by GPU type, where a type may go by several names or a single measured type may stand for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from geminid.gputypes import ALIASES
from geminid.sim.measurements import UNNAMED_TYPE

V = TypeVar("V")


class ByType(Mapping[str, V]):
    """A mapping from GPU types that understands aliases (``rtx`` and ``rtx2080ti`` are one type).

    ``otherwise`` is the answer for every type that is not named: Pollux measured a single type, and any name stands for
    it. Iterating gives the named types, and then UNNAMED_TYPE if there is such an answer.
    """

    def __init__(self, named: Mapping[str, V], otherwise: V | None = None) -> None:
        self._named = dict(named)
        self._found = dict(named)
        self._otherwise = otherwise

    def __getitem__(self, gpu_type: str) -> V:
        try:
            return self._found[gpu_type]
        except KeyError:
            value = self._look_up(gpu_type)
            self._found[gpu_type] = value
            return value

    def _look_up(self, gpu_type: str) -> V:
        wanted = _canonical(gpu_type)
        for name, value in self._named.items():
            if _canonical(name) == wanted:
                return value
        if self._otherwise is None:
            raise KeyError(gpu_type)
        return self._otherwise

    def __iter__(self) -> Iterator[str]:
        yield from self._named
        if self._otherwise is not None:
            yield UNNAMED_TYPE

    def __len__(self) -> int:
        return len(self._named) + (self._otherwise is not None)


def _canonical(gpu_type: str) -> str:
    return ALIASES.get(gpu_type.lower(), gpu_type.lower())
