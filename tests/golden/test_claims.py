"""The benches of claims and of whole decisions: what they print is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from geminid.bench import claims, decisions, fidelity
from geminid.cli.main import app
from requirements import PEERS


def test_whole_decisions_are_measured_for_every_policy() -> None:
    rows = decisions.run(jobs=30, cluster="v100:4x8", progress=lambda _: None)
    assert [row.policy for row in rows if row.policy != "dally, all starved"] == list(decisions.POLICIES)
    assert len(rows) == len(decisions.POLICIES) + 1  # and the case in which Dally preempts
    assert all(row.slots == 32 and row.first_s > 0 and row.later_s > 0 for row in rows)


def test_what_a_job_loses_beside_others_is_counted_over_the_time_it_works() -> None:
    rows = list(claims.antman_losses())
    (most, mean, _, *changes), (unchecked, *_) = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert most.within
    assert 0.0 < mean.ours <= most.ours <= 3.0
    assert unchecked.ours > most.ours
    assert unchecked.within is None
    run_median, run_worst, jct_median, jct_worst = (row.ours for row in changes)
    assert 0.0 < run_median <= run_worst <= 3.0  # seconds on slots grow as speeds fall, and placements do not change
    assert run_median <= jct_median <= jct_worst <= 50.0  # those who wait, wait for everybody before them
    assert "each of which ends a little later" in " ".join(claims.notes(rows))


@pytest.mark.needs_peers(claims.SHOCKWAVE_TRACE)
def test_shockwaves_table_is_repeated_with_what_was_published_beside_it() -> None:
    rows = list(claims.claims(PEERS, "shockwave", lambda _: None))
    assert [row.published for row in rows[:8]] == [24197.4, 9958.5, 1.784, 5.0] * 2
    assert [row.published for row in rows[8:]] == [32367.4, 12574.3, 1.854, 51.67]
    assert {row.policy for row in rows[8:]} == {"gandiva_fair"}
    assert all(row.ours is None for row in rows[8:])
    said = " ".join(claims.notes(rows))
    for part in (
        "static regimes",
        "more than the published 5.0 %",
        "k=1e-4 is our choice",
        "Gandiva-Fair is not among",
    ):
        assert part in said
    makespan, jct, worst, unfair = (row.ours or 0.0 for row in rows[:4])
    assert makespan == pytest.approx(24197.4, rel=0.05)
    assert jct == pytest.approx(9958.5, rel=0.2)
    assert worst < 1.784
    assert unfair < 20.0


def test_policies_without_published_schedules_have_none() -> None:
    assert not fidelity.has(PEERS, "antman")
    assert fidelity.has(PEERS, "gandiva")


def test_where_nothing_is_judged_the_bench_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def figures(within: bool | None) -> Callable[..., list[claims.Claim]]:
        return lambda *_: [claims.Claim("shockwave", "some jobs", "makespan", 1.0, None, "s", within)]

    command = ["bench", "fidelity", "--policy", "shockwave", "--peers", str(tmp_path)]
    monkeypatch.setattr(claims, "claims", figures(None))
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "nothing is judged" in result.output
    assert "met:" not in result.output
    assert "–" in result.output
    monkeypatch.setattr(claims, "claims", figures(True))
    assert "(1 of 1)" in CliRunner().invoke(app, command).output
