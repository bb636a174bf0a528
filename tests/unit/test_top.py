"""``geminid top``: what keys do, and which jobs are shown in which order."""

from __future__ import annotations

import pytest

from geminid.cli.topview import SORTS, Mode, Request, TopView, sorted_jobs


def job(number: int, **fields):
    plain = {"id": f"j{number}", "name": f"name{number}", "owner": "ann", "phase": "running", "priority": 0}
    return {**plain, "age_s": 100.0 - number, "slots": number, "done": None, **fields}


@pytest.fixture
def view() -> TopView:
    return TopView().with_jobs([job(1), job(2, owner="bob"), job(3, done=0.5)])


def pressed(view: TopView, *keys: str) -> tuple[TopView, list[Request]]:
    requests = []
    for key in keys:
        view, request = view.key(key)
        requests += [] if request is None else [request]
    return view, requests


def ids(view: TopView) -> list[str]:
    return [one["id"] for one in view.shown]


def test_the_selection_moves_within_the_list_and_stays_with_its_job(view):
    assert (ids(view), view.selected) == (["j3", "j2", "j1"], "j3")
    moved, _ = pressed(view, "down", "j", "down")
    assert moved.selected == "j1"
    assert pressed(moved, "up", "k", "k")[0].selected == "j3"
    later = moved.with_jobs([job(4), *moved.jobs])
    assert later.selected == "j1"
    assert later.with_jobs([job(2)]).selected == "j2"
    assert later.with_jobs([]).selected == ""


def test_sorting_goes_through_all_orders_and_values_that_are_missing_come_last(view):
    seen = {view.sort}
    for _ in SORTS:
        view, _ = pressed(view, "s")
        seen.add(view.sort)
    assert seen == set(SORTS)
    assert [one["id"] for one in sorted_jobs(view.jobs, "slots")] == ["j3", "j2", "j1"]
    assert [one["id"] for one in sorted_jobs(view.jobs, "done")] == ["j3", "j1", "j2"]


def test_a_filter_is_typed_and_given_up(view):
    typed, requests = pressed(view, "/", "b", "o", "x", "backspace", "b")
    assert (typed.mode, typed.text, ids(typed), typed.selected, requests) == (Mode.FILTER, "bob", ["j2"], "j2", [])
    kept, _ = pressed(typed, "enter")
    assert (kept.mode, ids(kept)) == (Mode.LIST, ["j2"])
    assert ids(pressed(typed, "escape")[0]) == ["j3", "j2", "j1"]
    assert pressed(typed, "q")[1] == []  # a letter like any other


def test_jobs_are_changed_and_cancelled_only_after_a_yes(view):
    assert pressed(view, "p", "down", "r")[1] == [Request("pause", "j3"), Request("resume", "j2")]
    assert pressed(view, "c")[0].message == "cancel j3? y for yes"
    assert pressed(view, "c", "y")[1] == [Request("cancel", "j3")]
    assert pressed(view, "c", "n")[1] == []
    assert pressed(view.with_jobs([]), "c", "p", "r", "enter")[1] == []


def test_details_open_and_close_and_q_ends(view):
    opened, requests = pressed(view, "enter")
    assert (opened.mode, requests) == (Mode.DETAILS, [Request("explain", "j3")])
    closed, requests = pressed(opened, "q")
    assert (closed.mode, requests) == (Mode.LIST, [])
    assert pressed(view, "q")[1] == [Request("quit")]
    assert pressed(view, "a")[0].all
    assert pressed(view, "x") == (view, [])
