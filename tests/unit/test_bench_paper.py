"""The page and figures of ``geminid bench paper``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from geminid.bench.paper import ABLATION, COMPARISON, SENSITIVITY, PaperRow, change, interval_h, write
from geminid.cluster import Cluster
from geminid.sim.run import named_policy

ROW = PaperRow("ablation", "without", "geminid:q=1", 3, 3600.0, 1800.0, 5400.0, 9.0, 9.0, 0.1, 0.05, 0.15, 1.5)


def test_every_policy_and_cluster_exists() -> None:
    for case in (*COMPARISON, *ABLATION, *SENSITIVITY):
        Cluster.parse(case.cluster)
        for policy in case.policies:
            named_policy(policy)


def test_rows_are_written_with_their_intervals() -> None:
    assert interval_h(ROW) == "1.00 (0.50 to 1.50)"
    assert change(ROW) == "+10.0 % (+5.0 to +15.0)"
    assert change(replace(ROW, to_first=None)) == "–"


def test_files_hold_every_section(tmp_path: Path) -> None:
    page, *figures = write([ROW, replace(ROW, section="comparison", case="a < b")], tmp_path / "results")
    text = page.read_text(encoding="utf-8")
    assert "## Ablation" in text
    assert "| without | `geminid:q=1` | 1.00 (0.50 to 1.50) | +10.0 % (+5.0 to +15.0) | 1.50 |" in text
    assert [figure.name for figure in figures] == ["ablation.svg", "comparison.svg"]
    for figure in figures:
        ElementTree.fromstring(figure.read_text(encoding="utf-8"))
