"""Tables: whatever the width, numbers and headers stay whole and no text is lost."""

import io
import time

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geminid.cli import output
from geminid.cli.jobs import about_times, interval

HEADER = ["policy", "objective", "avg JCT", "GPU hours", "rescales/job", "makespan"]
ROWS = [
    ["max_min_fairness", "the smallest share of effective throughput", "[green]1.25 h[/]", "12,345,678", "0.5", "20 h"],
    ["fifo", "first come, first served", "11.75 h", "9,876", "–", "1,234.5 h"],
]


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(output, "console", Console(highlight=False, width=width))
    output.print_table("Policies and what they are for", HEADER, ROWS, text_columns=2)
    return capsys.readouterr().out.replace("\u00a0", " ").splitlines()


@pytest.mark.parametrize("width", [20, 40, 59, 60, 70, 80, 100, 150])
def test_nothing_is_cropped_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(width, monkeypatch, capsys)
    text = "\n".join(lines)
    assert all(cell_len(line) <= width for line in lines)
    assert "…" not in text
    for number in ("1.25 h", "12,345,678", "0.5", "20 h", "11.75 h", "9,876", "1,234.5 h"):
        assert number in text
    words = [*" ".join(HEADER).split(), *ROWS[0][1].split(), *ROWS[1][1].split(), "max_min_fairness", "fifo"]
    assert [word for word in words if word not in text] == []


def test_narrow_terminals_get_a_line_for_every_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(40, monkeypatch, capsys)
    assert lines[0] == "Policies and what they are for"
    assert {"policy: fifo", "avg JCT: 11.75 h", "GPU hours: 12,345,678"} <= set(lines)


def test_wide_terminals_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.count("│") == len(HEADER) + 1 for line in printed(100, monkeypatch, capsys))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_that_fits_looks_as_rich_draws_it(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*ROWS, [r"a\[b]", "12:30 :rocket: 文字", "1", "2", "3", "4"]]
    drawn = []
    for by_rich in (False, True):
        console = Console(highlight=False, width=150, force_terminal=terminal, file=io.StringIO())
        monkeypatch.setattr(output, "console", console)
        if by_rich:
            monkeypatch.setattr(output, "_print_whole", lambda *table: False)
        output.print_table("Policies", HEADER, rows, text_columns=2)
        title, *lines = Text.from_ansi(console.file.getvalue()).plain.splitlines()  # type: ignore[attr-defined]
        drawn.append((title.rstrip(), lines))
    assert drawn[0] == drawn[1]


def test_a_table_without_rows_or_with_an_empty_header_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("Nothing", ["", "number"], [])
    assert "number" in capsys.readouterr().out


def waiting(eta: dict | None, missing: str | None = None) -> dict:
    return {"now_s": 1000.0, "eta": eta, "eta_missing": missing}


def test_times_to_come_are_told_by_the_clock_of_the_service(monkeypatch):
    """This machine's may have been set since: by a day, back or forth."""
    eta = {"start_at_s": [1060.0, 1120.0], "finish_at_s": [1600.0, 1600.0], "guessed": True, "age_s": 1.0}
    for shift_s in (-86_400.0, 0.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda shift_s=shift_s: 1000.0 + shift_s)
        assert interval(waiting(eta), "start_at_s") == "1m 00s–2m 00s ?"
        assert interval(waiting(eta), "finish_at_s") == "10m 00s ?"
    assert not interval(waiting(None), "finish_at_s")


def test_times_to_come_that_are_old_or_missing_are_told_as_such():
    eta = {"start_at_s": None, "finish_at_s": [1060.0, 1120.0], "guessed": False, "age_s": 9.2}
    assert interval(waiting(None, "being computed"), "start_at_s") == "…"
    assert interval(waiting(None, "unknown"), "finish_at_s") == "unknown"
    assert about_times([waiting({**eta, "age_s": 1.0}), waiting(None, "unknown")]) == []
    told = about_times([waiting(eta), waiting(None, "being computed")])
    assert told[0] == "starts and ends are as foretold 9.0s ago"
    assert told[1].startswith("… is being computed")
