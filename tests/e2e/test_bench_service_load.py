"""The load test itself, with a small load: what it counts, and what it says. How fast answers come is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from geminid.bench.service_load import COMMAND, QUEUE, STATUS, SUBMIT, Answers, Load, LoadResult
from geminid.bench.service_starts import Starts


def test_a_small_load_is_counted_in_full():
    small = (
        "--submissions",
        "120",
        "--seconds",
        "3",
        "--followers",
        "5",
        "--queued",
        "300",
        "--counting",
        "3",
        "--json",
    )
    command = [sys.executable, "-m", "geminid", "bench", "service", *small]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    rows = {row["request"]: row for row in json.loads(done.stdout)}
    assert list(rows) == [SUBMIT, QUEUE, COMMAND, STATUS]
    assert rows[SUBMIT]["count"] == 120
    assert rows[QUEUE]["count"] > 0
    assert rows[COMMAND]["count"] >= 2
    assert not [row for row in rows.values() if row["failed"]], done.stderr
    assert (rows[QUEUE]["jobs"], rows[QUEUE]["followers_complete"]) == (121, 5)
    starts = {one["kind"]: one for one in rows[QUEUE]["starts"]}
    assert starts.keys() == {"equal", "mixed", "many-owner", "many-queue"}
    assert all((one["queued"], one["started"] > 0) == (300, True) for one in starts.values())
    assert done.returncode == bool(rows[QUEUE]["missed"])


def test_what_was_missed_is_told():
    well = Answers(request=COMMAND, count=9, failed=0, median_s=0.4, p99_s=0.9, longest_s=0.9)
    met = LoadResult(
        answers=(well,),
        jobs=10,
        seconds=3.1,
        followers=2,
        followers_complete=2,
        lines=9,
        command_cpu_s=0.3,
        wanted=Load(seconds=3.0),
    )
    assert met.missed == []
    late = replace(well, request=QUEUE, longest_s=1.25, failed=3)
    bad = replace(met, answers=(well, late), seconds=4.0, followers_complete=1)
    assert bad.delays == ["queue took 1.25 s once (goal: under 1 s)", "the submissions took 4 s (goal: 3 s)"]
    assert bad.failures == ["3 of 9 times queue failed", "1 followers did not hear all lines"]
    assert bad.missed == [*bad.delays, *bad.failures]
    slow = Starts(kind="mixed", queued=9000, started=12, seconds=10.0, decision_ms=1.0)
    assert slow.missed == ["1.2 jobs a second started with 9,000 mixed ones queued (goal: 5)"]
    assert replace(slow, started=50).missed == []
    assert replace(met, answers=(replace(well, request=STATUS, longest_s=2.0),)).missed == []
