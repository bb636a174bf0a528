"""Options of policies: read from text, checked, and refused in words that say what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from geminid.cli.main import app
from geminid.fields import InvalidInput
from geminid.policies.registry import BUILT_IN, make_policy, options_of
from geminid.sim.run import load_policy


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pollux:population=1", "option population of pollux is '1', but must be a whole number at least 2"),
        ("pollux:generations=-1", "option generations of pollux is '-1', but must be a whole number at least 0"),
        ("sia:p=0", "option p of sia is '0', but must be a number other than 0"),
        ("sia:serve=inf", "option serve of sia is 'inf', but must be a number at least 0"),
        ("tiresias:limits=100;-5", "option limits of tiresias is '100;-5', but must be a number above 0"),
        ("tiresias:promote=nan", "option promote of tiresias is 'nan', but must be a number at least 0 or none"),
        ("tiresias:index=mean", "option index of tiresias is 'mean', but must be las or gittins"),
    ],
)
def test_a_value_out_of_range_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make_policy(text)
    assert sentence in str(refused.value)


def test_values_are_read_by_their_types() -> None:
    policy = make_policy("tiresias:limits=100;5e3,promote=2,index=gittins,interval=none")
    assert vars_of(policy) >= {"limits_gpu_s": (100.0, 5000.0), "promote": 2.0, "index": "gittins"}.items()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    interval_s = 0", "interval_s of x is 0, but must be a number above 0 or None"),
        ("    interval_s = '60'", "interval_s of x is '60', but must be a number above 0 or None"),
        ("    def __init__(self): raise LookupError('gone')", "policy x cannot be made (LookupError: gone)"),
    ],
)
def test_a_users_policy_that_cannot_be_used_is_told_why(body: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    head = "from geminid.policies.base import Policy\nclass Mine(Policy):\n    name = paper = objective = 'x'\n"
    file.write_text(f"{head}    def decide(self, view): ...\n{body}\n", encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        make_policy(f"{file}:Mine", load_policy)
    assert sentence in str(refused.value)


def test_a_users_policy_may_be_a_dataclass_whose_annotations_are_texts(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    head += "from geminid.policies.base import Policy\n"
    body = "    name = paper = objective = 'x'\n    speed: float = 1.0\n    def decide(self, view): ...\n"
    file.write_text(f"{head}@dataclass\nclass Mine(Policy):\n{body}", encoding="utf-8")
    assert vars(make_policy(f"{file}:Mine:speed=2", load_policy))["speed"] == 2.0


def vars_of(policy: object) -> set[tuple[str, object]] | object:
    return {option.field: getattr(policy, option.field) for option in options_of(type(policy))}.items()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_is_built_from_its_name_and_says_what_it_is(name: str) -> None:
    policy = make_policy(name)
    assert policy.name == name
    assert policy.paper
    assert policy.objective
    assert all(option.name.isidentifier() for option in options_of(type(policy)))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    def decide(self, view): ...", 'must have a name = "…"'),
        ("    name = 'x'", "must define decide"),
    ],
)
def test_a_users_class_that_lacks_something_is_told_what(body: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from geminid.policies.base import Policy\nclass Mine(Policy):\n{body}\n", encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        load_policy(f"{file}:Mine")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("option", "has", "has_not"),
    [
        (
            "profiled",
            ("max_min_fairness_packed", "fifo_packed", "gandiva_packed"),
            ("max_min_fairness_perf", "themis", "isolated"),
        ),
        ("seen_as", ("finish_time_fairness", "min_total_duration"), ("max_min_fairness", "finish_time_fairness_perf")),
        (
            "warm",
            ("hierarchical", "max_sum_throughput_perf"),
            ("isolated", "allox", "fifo_perf", "gandiva_packed", "themis"),
        ),
        ("limit", ("max_min_fairness_water_filling_packed", "themis"), ("isolated", "allox", "shortest_job_first")),
        ("seed", ("fifo_agnostic", "gandiva_packed", "max_min_fairness"), ("max_min_fairness_perf", "allox")),
    ],
)
def test_policies_have_the_options_that_do_something(
    option: str, has: tuple[str, ...], has_not: tuple[str, ...]
) -> None:
    def names(policy: str) -> set[str]:
        return {each.name for each in options_of(BUILT_IN[policy])}

    assert all(option in names(policy) for policy in has)
    assert not any(option in names(policy) for policy in has_not)
    with pytest.raises(InvalidInput, match=f"is not an option of {has_not[0]}"):
        make_policy(f"{has_not[0]}:{option}=1")


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        (
            "gandiva",
            ["off live, where jobs cannot share slots", "try two jobs on the same slots (in simulations only)"],
        ),
        ("lucid", ["Live, jobs cannot share slots", "when none are free (in simulations only)"]),
        ("shockwave", ["the true time in simulations, with or without --oracle", "live, an estimate"]),
        ("antman", ["what does not fit spills to the machine's memory", "In simulations only"]),
    ],
)
def test_a_policy_says_what_it_does_not_do_live_and_what_simulations_tell_it(policy: str, parts: list[str]) -> None:
    told = " ".join(CliRunner().invoke(app, ["policies", policy]).output.split())
    for part in parts:
        assert part in told
