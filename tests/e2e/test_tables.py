"""Tables of real commands at 60, 80 and 200 columns: one line for each row, never wider than the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from live import Live
from rich.cells import cell_len
from rich.console import Console

from geminid.cli import demo, output

LONG = "a-name-as-long-as-names-may-be-in-this-service-and-not-shorter"
POLICIES = "fifo,las,max_min_fairness_water_filling_perf"


@pytest.fixture(scope="module")
def live():
    with Live(slots=2) as running:
        first = running.submit("sleep", "600", name=LONG)
        for number in range(3):
            running.submit("sleep", "600", name=f"waiting-{number}", min_slots=2, max_slots=2)
        running.until(first, lambda job: job["phase"] == "running")
        assert running.run("quota", "queue", "default", "2", "--borrow").returncode == 0
        assert running.run("token", "somebody-with-a-rather-long-name", "--days", "3").returncode == 0
        yield running


def tables(text: str) -> list[list[str]]:
    """The rows of every table in what a command printed."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("─"):
            found.append([])
            inside = True
        elif not line or line.startswith("not shown here"):
            inside = False
        elif inside:
            found[-1].append(line)
    return found


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    ("command", "firsts"),
    [
        ("queue", ["j1", "j2", "j3", "j4"]),
        ("nodes", ["local/0", "local/1"]),
        ("quota", ["queue"]),
        ("usage", None),
        ("replay", None),
        ("policies", None),
        ("workloads", ["small", "day", "busy-day", "scale"]),
        (f"simulate --workload small --load 0.1 --policy {POLICIES}", POLICIES.split(",")),
    ],
)
def test_every_row_is_one_line_and_no_line_is_too_long(live, width, command, firsts, monkeypatch):
    monkeypatch.setitem(live.env, "COLUMNS", str(width))
    shown = live.run(*command.split())
    assert shown.returncode == 0, shown.stderr
    assert [line for line in shown.stdout.splitlines() if cell_len(line) > width] == []
    rows = tables(shown.stdout)[0]
    if firsts is None:
        listed, field = {
            "policies": lambda: (live.json("policies"), "name"),
            "usage": lambda: (live.json("usage"), "owner"),
            "replay": lambda: (live.json("replay")["jobs"], "id"),
        }[command]()
        firsts = [row[field] for row in listed]
    first_words = [row.split()[0].partition("…")[0] for row in rows]
    assert len(first_words) == len(firsts)
    assert all(full.startswith(word) for word, full in zip(first_words, firsts, strict=True))


def test_phases_and_whole_identifiers_stay_and_wide_shows_what_was_left_out(live, monkeypatch):
    monkeypatch.setitem(live.env, "COLUMNS", "60")
    narrow, wide = live.run("queue").stdout, live.run("queue", "--wide").stdout
    assert "running" in narrow
    assert "pending" in narrow
    assert LONG not in narrow
    assert f"{LONG[:9]}" in narrow
    assert "…" in narrow
    assert "(--wide shows all)" in " ".join(narrow.split())
    assert LONG in wide
    assert "resizes" in wide
    assert "not shown" not in wide


def test_a_pipe_gets_80_columns(live, monkeypatch):
    monkeypatch.delitem(live.env, "COLUMNS", raising=False)
    assert max(map(cell_len, live.run("queue").stdout.splitlines())) <= 80


def test_every_command_that_prints_a_table_can_print_all_of_it():
    from typer.main import get_command

    from geminid.cli.main import app

    folder = Path(output.__file__).parent
    with_tables = {path.stem for path in folder.glob("*.py") if "print_table(" in path.read_text()} - {"output"}
    commands = dict(get_command(app).commands)
    commands |= {f"bench {name}": command for name, command in commands.pop("bench").commands.items()}
    printing = {
        name: command
        for name, command in commands.items()
        if command.callback.__module__.rpartition(".")[2] in with_tables
    }
    silent = ["submit", "show", "logs", "wait", "cancel", "pause", "resume", "set", "drain", "cordon", "events"]
    lacking = [n for n, c in printing.items() if "wide" not in {p.name for p in c.params} and n not in silent]
    assert lacking == []


def test_the_end_of_the_demo_fits(monkeypatch, capsys):
    job = {
        "id": "j12", "name": "recommender", "phase": "succeeded", "jct_s": 112.5, "gpu_s": 230.4, "most_slots": 4,
        "rescales": 11, "pauses_s": [0.05, 0.125], "samples": 1_234_567, "work_samples": 1_234_567.0,
        "metrics": {"loss": 0.1234},
    }  # fmt: skip
    result = {"jobs": [job], "pauses_s": [], "resizes": 11, "killed": None, "seconds": 1, "decisions": 2, "slots": 4}
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(output, "console", Console(highlight=False, width=width))
        monkeypatch.setattr(demo, "console", output.console)
        demo._print(result)
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if cell_len(line) > width] == []
        (row,) = tables("\n".join(lines))[0]
        assert row.startswith("j12 recommender  succeeded  112.5 s")
