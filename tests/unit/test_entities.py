"""The file of the entities that share a cluster: what it says, what is refused, and that policies follow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_gavel_policies import engine, facts, shares
from typer.testing import CliRunner

from geminid.cli.main import app
from geminid.fields import InvalidInput
from geminid.policies.gavel.entities import Entities
from geminid.policies.gavel.fairness import HierarchicalPerf
from geminid.sim.run import named_policy

TEAMS = """
rule: fairness
entities:
  lab:
    weight: 2
    entities:
      ann: {weight: 3}
      bob: {rule: fifo}
  production: {rule: fifo, owners: [eve], queues: [nightly, releases]}
"""


def test_a_file_is_read_and_written_without_loss() -> None:
    teams = Entities.from_yaml(TEAMS)
    assert [entity.path for entity in teams.described] == [("lab",), ("lab", "ann"), ("lab", "bob"), ("production",)]
    assert Entities.from_yaml(teams.to_yaml()) == teams
    assert teams.part_of(("lab", "ann")) == pytest.approx(2 / 3 * 3 / 4)


@pytest.mark.parametrize(
    ("owner", "queue", "path"),
    [
        ("ann", "default", ("lab", "ann")),  # the only entity of that name
        ("lab/ann", "default", ("lab", "ann")),
        ("eve", "default", ("production",)),
        ("ann", "nightly", ("production",)),  # queues come first
        ("shop/zoe", "default", ("shop", "zoe")),  # nobody has described it
        ("", "default", ()),
    ],
)
def test_jobs_belong_by_queue_owner_or_path(owner: str, queue: str, path: tuple[str, ...]) -> None:
    assert Entities.from_yaml(TEAMS).entity_of(owner, queue) == path


def test_shares_and_rules_are_those_of_the_file_at_every_depth() -> None:
    policy = HierarchicalPerf(entities=Entities.from_yaml(TEAMS))
    jobs = (
        facts("a", owner="ann"),
        facts("b", owner="bob"),
        facts("c", owner="lab/bob"),
        facts("d", owner="ann", queue="nightly"),
        facts("e", owner="eve"),
    )
    got = shares(engine(policy, "v100:1x1", *jobs), policy)
    expected = {"a": 2 / 3 * 3 / 4, "b": 2 / 3 / 4, "c": 0.0, "d": 1 / 3, "e": 0.0}
    assert got == pytest.approx(expected, abs=1e-6)


def test_options_change_what_the_file_says() -> None:
    policy = HierarchicalPerf(entities=Entities.from_yaml(TEAMS), weights=("lab=1",), rules=("lab/bob=fairness",))
    jobs = (facts("a", owner="bob"), facts("b", owner="bob"), facts("c", owner="eve"))
    got = shares(engine(policy, "v100:1x1", *jobs), policy)
    assert got == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, abs=1e-6)
    assert policy.decide(engine(policy, "v100:1x1", *jobs).view()).reasons == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "entities: {lab: {weight: 0}}",
            "entities.lab.weight is 0, but must be a number, at least 0.001 and at most 1000.0.",
        ),
        ("rule: fair\nentities: {}", "rule is 'fair', but must be fairness or fifo (did you mean fairness?)."),
        ("entities: {a: {entities: {b: {rule: lifo}}}}", "entities.a.entities.b.rule is 'lifo', but must be fairness"),
        ("entities: {a: {wieght: 2}}", "entities.a.wieght is not a known field (did you mean weight?)."),
        (
            "entities: {a: {owners: [x]}, b: {owners: [x]}}",
            "entities.b.owners is 'x', but must be in one entity only, and is in a too.",
        ),
    ],
)
def test_mistakes_are_named(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        Entities.from_yaml(text)
    assert sentence in str(refused.value)
    file = tmp_path / "teams.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        named_policy(f"hierarchical:entities={file}")
    assert str(refused.value).startswith("option entities of hierarchical: ")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"option entities of hierarchical_perf: file is '/none.yaml', but must be"):
        named_policy("hierarchical_perf:entities=/none.yaml")


def test_validate_tells_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "teams.yaml"
    file.write_text(TEAMS)
    told = CliRunner().invoke(app, ["validate", str(file), "--json"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["entities"]["lab"]["entities"]["bob"] == {"weight": 1.0, "rule": "fifo"}
    assert "lab/ann" in CliRunner().invoke(app, ["validate", str(file)]).stdout
