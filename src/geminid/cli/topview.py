"""The state of ``geminid top``: keys and answers of the service go in, a new state and what to do come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

#: By what the list can be sorted: the value of a job, and whether the largest is first.
SORTS: Mapping[str, tuple[str, bool]] = {
    "age": ("age_s", False),
    "name": ("name", False),
    "owner": ("owner", False),
    "phase": ("phase", False),
    "slots": ("slots", True),
    "done": ("done", True),
    "priority": ("priority", True),
}

#: What keys do, for the last line of the screen.
KEYS = "↑↓ select  enter details  s sort  / filter  a all  p pause  r resume  c cancel  q quit"


class Mode(Enum):
    """What the screen shows, and what keys mean."""

    LIST = auto()
    DETAILS = auto()
    FILTER = auto()
    CONFIRM = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """Something to ask of the service about a job: ``explain``, ``pause``, ``resume`` or ``cancel``; or to ``quit``."""

    what: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class TopView:
    """What ``geminid top`` shows."""

    jobs: tuple[Mapping[str, Any], ...] = ()
    selected: str = ""
    sort: str = "age"
    text: str = ""
    all: bool = False
    mode: Mode = Mode.LIST
    details: tuple[str, ...] = ()
    message: str = ""

    @property
    def shown(self) -> list[Mapping[str, Any]]:
        """The jobs of the list, in their order."""
        text = self.text.lower()
        chosen = [job for job in self.jobs if text in f"{job['id']} {job['name']} {job['owner']}".lower()]
        return sorted_jobs(chosen, self.sort)

    def with_jobs(self, jobs: Sequence[Mapping[str, Any]]) -> TopView:
        """With the jobs as the service says they are; the same one stays selected while it is there."""
        view = replace(self, jobs=tuple(jobs))
        return view if any(job["id"] == view.selected for job in view.shown) else view._select(0)

    def _select(self, position: int) -> TopView:
        shown = self.shown
        chosen = shown[min(max(position, 0), len(shown) - 1)]["id"] if shown else ""
        return replace(self, selected=chosen)

    @property
    def position(self) -> int:
        """The place of the selected job in the list."""
        return next((i for i, job in enumerate(self.shown) if job["id"] == self.selected), 0)

    def key(self, key: str) -> tuple[TopView, Request | None]:
        """After a key: ``up``, ``down``, ``enter``, ``escape``, ``backspace`` or a letter."""
        view = replace(self, message="")
        if self.mode is Mode.FILTER:
            return view._typed(key), None
        if self.mode is Mode.CONFIRM:
            view = replace(view, mode=Mode.LIST)
            return view, Request("cancel", self.selected) if key == "y" else None
        if self.mode is Mode.DETAILS and key in ("escape", "enter", "q"):
            return replace(view, mode=Mode.LIST, details=()), None
        match key:
            case "q" | "escape":
                return view, Request("quit")
            case "up" | "k" | "down" | "j":
                return view._select(self.position + (1 if key in ("down", "j") else -1)), None
            case "s":
                names = list(SORTS)
                return replace(view, sort=names[(names.index(self.sort) + 1) % len(names)]), None
            case "/":
                return replace(view, mode=Mode.FILTER), None
            case "a":
                return replace(view, all=not self.all), None
            case "c" if self.selected:
                return replace(view, mode=Mode.CONFIRM, message=f"cancel {self.selected}? y for yes"), None
            case "p" | "r" if self.selected:
                return view, Request({"p": "pause", "r": "resume"}[key], self.selected)
            case "enter" if self.selected:
                return replace(view, mode=Mode.DETAILS), Request("explain", self.selected)
        return view, None

    def _typed(self, key: str) -> TopView:
        """After a key while a filter is typed."""
        if key in ("enter", "escape"):
            view = replace(self, mode=Mode.LIST, text="" if key == "escape" else self.text)
        elif key == "backspace":
            view = replace(self, text=self.text[:-1])
        else:
            view = replace(self, text=self.text + key) if len(key) == 1 else self
        return view.with_jobs(view.jobs)


def sorted_jobs(jobs: Sequence[Mapping[str, Any]], by: str) -> list[Mapping[str, Any]]:
    """Jobs in an order of ``SORTS``; those without a value are last."""
    field, largest_first = SORTS[by]
    known = [job for job in jobs if job[field] is not None]
    return [
        *sorted(known, key=lambda job: job[field], reverse=largest_first),
        *(job for job in jobs if job[field] is None),
    ]
