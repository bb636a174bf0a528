"""What the commands say of deadlines that cannot be met, and of what waiting jobs need."""

from __future__ import annotations

import json

from live import Live

#: A command that others of its name are compared with, and that takes a few seconds.
SLOW = ("--name", "slow", "--slots", "1")


def test_a_deadline_that_cannot_be_met_is_told_by_every_command():
    with Live(1) as live:
        assert live.run("submit", *SLOW, "--", "sleep", "4").returncode == 0
        assert live.run("wait", "j1").returncode == 0
        tried = live.run("submit", *SLOW, "--deadline", "1s", "--dry-run", "--", "sleep", "4").stdout
        assert "its deadline cannot be met" in tried
        assert "earliest finish: " in tried
        assert "→ submit it with a later deadline" in tried
        in_time = live.run("submit", *SLOW, "--deadline", "1h", "--dry-run", "--", "sleep", "4").stdout
        assert "deadline" not in in_time
        unknown = live.run("submit", "--name", "new", "--deadline", "30s", "--dry-run", "--", "sleep", "1").stdout
        assert "its deadline cannot be judged: how long it takes is not known" in unknown
        starts = json.loads(live.run("submit", *SLOW, "--deadline", "1s", "--json", "--", "sleep", "4").stdout)
        assert starts["deadline"]["verdict"] in ("cannot be met", "was missed"), "also of a job that starts at once"
        assert live.run("wait", starts["id"]).returncode == 0
        assert live.run("submit", *SLOW, "--", "sleep", "60").returncode == 0  # it has the only slot
        late = json.loads(live.run("submit", *SLOW, "--deadline", "1s", "--json", "--", "sleep", "4").stdout)
        told = live.json("show", late["id"])["deadline"]
        assert told["verdict"] in ("cannot be met", "was missed")
        assert late["deadline"]["due_at_s"] == told["due_at_s"]
        queue = live.run("queue", "--wide").stdout
        assert f"{late['id']}: its deadline" in queue
        assert "needs 1" in queue
        explained = live.json("explain", late["id"])
        assert any(number.startswith("its deadline") for number in explained["numbers"])
        shown = " ".join(live.run("show", late["id"]).stdout.split())
        assert "needs: 1 slot; 0 of 1 in service are free" in shown
        assert live.json("show", late["id"])["needs"] == {"slots": 1, "gpu_types": [], "free": 0, "in_service": 1}


def test_gpus_are_called_slots_here(tmp_path):
    with Live(1) as live:
        told = live.run("submit", "--gpus", "2", "--", "true")
        assert (told.returncode, "must be --slots 2" in told.stderr) == (2, True)
        (tmp_path / "job.yaml").write_text("name: a\ncommand: [true]\ngpus: 2\n", encoding="utf-8")
        told = live.run("submit", tmp_path / "job.yaml")
        assert (told.returncode, "did you mean slots?" in told.stderr) == (2, True)


def test_nothing_false_is_said_of_a_deadline_behind_a_command_of_unknown_length():
    with Live(1) as live:
        holder = live.run("submit", "--", "sleep", "8").stdout.split()[1]
        told = live.run("submit", "--name", "after", "--deadline", "5s", "--", "true").stdout
        assert "its deadline may be missed" in told
        assert f"how long {holder} will hold them is not known" in told
        assert "priority" not in told, "nobody goes before a plain command that runs"
        assert "priority" not in live.run("explain", "after").stdout.split("→", 1)[-1]
        assert live.run("wait", "after").returncode == 0
