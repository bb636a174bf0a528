"""Tables: whatever the width, every row is one line, and what is left out is named."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
ORDER_OF_IMPORTANCE = ["policy", "objective", "avg JCT", "GPU hours", "rescales/job", "makespan"]


def printed(width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(output, "console", Console(highlight=False, width=width or 80))
    monkeypatch.setenv("COLUMNS", str(width)) if width else monkeypatch.delenv("COLUMNS", raising=False)
    output.print_table("Policies and what they are for", HEADER, ROWS, text_columns=2)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 59, 60, 70, 80, 100, 150, 200])
def test_every_row_is_one_line_and_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(width, monkeypatch, capsys)
    assert all(cell_len(line) <= width for line in lines)
    below = lines[next(i for i, line in enumerate(lines) if line.startswith("─")) + 1 :]
    names = [line.split()[0].rstrip("…") for line in below[: len(ROWS)]]
    assert all(row[0].startswith(name) and len(name) > 3 for name, row in zip(names, ROWS, strict=True))
    assert below[len(ROWS)] == "" or below[len(ROWS)].startswith("not shown here: ")


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_columns_that_are_left_out_are_named_and_the_least_important_go_first(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(printed(width, monkeypatch, capsys))
    left_out = text.partition("not shown here: ")[2].partition(" (--wide shows all)")[0]
    names = left_out.split(", ") if left_out else []
    assert names == ORDER_OF_IMPORTANCE[len(ORDER_OF_IMPORTANCE) - len(names) :]
    for name, first, second in zip(HEADER, *ROWS, strict=True):
        if name not in (*names, "policy", "objective"):
            assert Text.from_markup(first).plain in text
            assert second in text


def test_wide_prints_everything_whatever_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output._remember_wide(True)
    try:
        text = "\n".join(printed(40, monkeypatch, capsys))
    finally:
        output._remember_wide(False)
    assert "…" not in text
    assert "not shown" not in text
    cells = (Text.from_markup(cell).plain for row in (HEADER, *ROWS) for cell in row)
    assert [cell for cell in cells if cell not in text] == []


def test_files_and_pipes_get_tables_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert max(map(cell_len, printed(None, monkeypatch, capsys))) <= 80


def test_very_narrow_terminals_get_a_line_for_every_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(39, monkeypatch, capsys)
    assert lines[0] == "Policies and what they are for"
    assert {"policy: fifo", "avg JCT: 11.75 h", "GPU hours: 12,345,678"} <= set(lines)


columns_with_cells = st.lists(
    st.tuples(
        st.builds(
            output.Column,
            st.sampled_from(["job", "avg JCT", "a header of many words", ""]),
            st.integers(0, 4),
            st.booleans(),
            st.none() | st.integers(1, 30),
        ),
        st.integers(0, 90),
    ),
    min_size=1,
    max_size=12,
)


@given(columns_with_cells, st.integers(40, 200))
def test_whatever_the_columns_the_table_fits_and_keeps_what_must_stay(cells, width):
    columns, longest = [column for column, _ in cells], [length for _, length in cells]
    widths = output.fit_columns(columns, longest, width)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= width
    assert list(widths) == sorted(widths)
    assert {i for i, column in enumerate(columns) if column.drop == 0} <= set(widths)
    left_out = [columns[i].drop for i in range(len(columns)) if i not in widths and longest[i]]
    assert min(left_out, default=9) >= max(columns[i].drop for i in widths)
    if left_out:  # nothing is lost while there is an empty column that could go
        assert [i for i in widths if columns[i].drop and not longest[i]] == []


@given(columns_with_cells, st.integers(40, 199))
def test_more_room_shows_no_less(cells, width):
    columns, longest = [column for column, _ in cells], [length for _, length in cells]
    narrow, wide = (output.fit_columns(columns, longest, room) for room in (width, width + 1))
    assert set(narrow) <= set(wide)


def test_a_cell_stays_a_cell_whatever_it_contains():
    drawn, _ = output.draw_table(
        [output.Column("name", text=True), output.Column("n")], [[r"a\[b]", "1"], ["12:30 文字\nand more", "2"]], 80
    )
    assert drawn.plain.splitlines()[2:] == ["a[b]                 1", "12:30 文字 and more  2"]


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
    assert told[0] == "starts and ends are from a forecast of 9.0s ago"
    assert told[1].startswith("… is being computed")
