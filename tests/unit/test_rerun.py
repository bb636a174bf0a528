"""Submitting a job again with changes."""

from __future__ import annotations

import pytest

from geminid.cli.rerun import parsed
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.serve.rerun import changed_spec

SPEC = JobSpec.from_dict(
    {
        "name": "x",
        "command": ["python", "train.py"],
        "owner": "ann",
        "env": {"LR": "1", "KEEP": "yes"},
        "min_slots": 2,
        "max_slots": 8,
        "after": ["j1"],
        "deadline": "2h",
    }
)


def test_what_is_not_changed_stays_and_what_it_waited_for_is_forgotten():
    again = changed_spec(SPEC, {})
    assert again == JobSpec.from_dict(
        {name: value for name, value in SPEC.to_dict().items() if name not in ("owner", "after")}
    )


def test_sizes_replace_each_other_and_variables_are_added():
    changed = changed_spec(SPEC, parsed(["slots=4", "env.LR=0.1", "env.NEW=a=b", "name=y", "deadline=3h"]))
    assert (changed.min_slots, changed.max_slots, changed.name, changed.deadline_s) == (4, 4, "y", 10_800.0)
    assert dict(changed.env) == {"LR": "0.1", "KEEP": "yes", "NEW": "a=b"}
    assert changed_spec(changed, {"max_slots": 16}).min_slots == 1


@pytest.mark.parametrize("changes", [{"colour": "red"}, {"slots": "many"}, {"env": "x"}, ["slots"]])
def test_wrong_changes_are_refused(changes):
    with pytest.raises(InvalidInput):
        changed_spec(SPEC, changes)


@pytest.mark.parametrize("text", ["slots", "=4", "name={"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(InvalidInput):
        parsed([text])
