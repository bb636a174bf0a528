"""The page and figures of ``geminid bench paper``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from geminid.bench.paper import SECTIONS, Case, PaperRow, change, interval_h, run, table, write
from geminid.cluster import Cluster
from geminid.sim.run import named_policy
from geminid.sim.settings import Settings

ROW = PaperRow("ablation", "without", "geminid:q=1", 3, 3600.0, 1800.0, 5400.0, 9.0, 9.0, 0.1, 0.05, 0.15, 1.5)


def test_every_policy_and_cluster_exists() -> None:
    for case in (case for cases in SECTIONS.values() for case in cases):
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
    assert "| without | `geminid:q=1` | 1.00 (0.50 to 1.50) | +10.0 % (+5.0 to +15.0) | 1.50× |" in text
    assert [figure.name for figure in figures] == ["results-ablation.svg", "results-comparison.svg"]
    for figure in figures:
        ElementTree.fromstring(figure.read_text(encoding="utf-8"))


def test_worlds_are_compared_with_the_first_of_their_section() -> None:
    worlds = (
        Case(name="dear", policies=("fifo",), settings=Settings(rescale_s=300.0)),
        Case(name="free", policies=("fifo",), settings=Settings(rescale_s=0.0)),
    )
    dear, free = run({"knowledge": worlds}, seeds=(0, 1), scale=0.1)
    assert (dear.case, dear.to_first) == ("dear", None)
    assert free.to_first is not None
    assert free.to_first < 0
    assert free.worst_envy is None


def test_owners_are_measured_where_jobs_have_some() -> None:
    (row,) = run({"tenants": (Case(name="two", policies=("fifo",), owners=("ann", "bob")),)}, seeds=(0,), scale=0.2)
    assert row.worst_envy is not None
    assert 0.0 <= row.worst_envy <= 1.0
    assert row.least_share is not None
    assert row.least_share > 0
    header, ((*_, ratio, envy, share),) = table([row])
    assert header[-3:] == ["worst FTF", "envy", "least share"]
    assert float(ratio) > 0
    assert envy.endswith("%")
    assert share.endswith("%")
