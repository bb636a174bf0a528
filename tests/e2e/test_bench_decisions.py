"""The benchmarks of the solver and of the policy: what they print is measured, and baselines are not measured twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geminid.bench import quality, sharing, solver
from geminid.bench.quality import Case
from geminid.fields import InvalidInput
from geminid.job import Adaptivity


def test_the_solver_is_measured_beside_the_integer_program() -> None:
    rows = solver.run(sizes=((64, 20, 2), (128, 40, 2)), seed=1, ilp_limit_s=10.0, progress=lambda _: None)
    assert [(row.slots, row.jobs, row.types) for row in rows] == [(64, 20, 2), (128, 40, 2)]
    for row in rows:
        assert 0.0 <= row.gap <= 0.01
        assert row.seconds > 0
        assert row.ilp_value_ratio == pytest.approx(1.0, abs=0.011)
        assert row.moved_by_placement < row.jobs


def tiny_cases() -> list[Case]:
    return [Case("built-in", f"day-{load}", "fifo", "v100:2x4", load=load) for load in (0.04, 0.05)]


def test_quality_compares_with_the_baseline_and_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quality, "cases", tiny_cases)
    kept = tmp_path / "kept.json"

    def run(policy: str, **changes: object) -> list[quality.QualityRow]:
        arguments: dict[str, object] = {"only": [], "wrong_estimates": False, "baselines": kept, "seed": 0}
        return quality.run(tmp_path, policy=policy, progress=lambda _: None, **(arguments | changes))  # type: ignore[arg-type]

    rows = run("fifo")
    assert [row.workload for row in rows] == ["day-0.04", "day-0.05", "mean of 2"] * 2
    assert all(row.avg_jct == 0.0 for row in rows if row.way == "equal cost")
    saved = json.loads(kept.read_text())
    assert set(saved) == {"fifo on day-0.04, seed 0", "fifo on day-0.05, seed 0"}
    saved["fifo on day-0.04, seed 0"]["avg_jct_s"] *= 2
    kept.write_text(json.dumps(saved))
    again = run("fifo", only=["day-0.04"])
    assert again[0].avg_jct == pytest.approx(-0.5)
    ours = run("geminid", only=["day-0.04"], wrong_estimates=True)
    assert len(ours) == 5
    live, alone = run("geminid", only=["day-0.05"], alone=True)[1:]
    assert alone.avg_jct_s <= live.avg_jct_s, "who has the cluster to itself is done first"
    assert (alone.makespan, alone.worst_ftf) == (None, None)
    drawn_anew = run("fifo", only=["day-0.04"], resamples=1, workers=2)
    assert [row.workload for row in drawn_anew] == ["day-0.04", "day-0.04~1"] * 2
    assert drawn_anew[0].avg_jct_s != drawn_anew[1].avg_jct_s
    with pytest.raises(InvalidInput, match="must be one of"):
        run("fifo", only=["nothing"])
    kept.write_text("[")
    with pytest.raises(InvalidInput, match="earlier run"):
        run("fifo")


def test_sharing_is_compared_with_none() -> None:
    rows = sharing.run(clusters=["h200:1x4"], kinds=[Adaptivity.RIGID], seeds=[1], jobs=12)
    assert [(row.jobs, row.cluster) for row in rows] == [("rigid", "h200:1x4")]
    assert rows[0].alone_avg_jct_s > 0
    assert rows[0].avg_jct == rows[0].worst_avg_jct < 0
