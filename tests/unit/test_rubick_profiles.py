"""Rubick's profiles are read as they are published, and mistakes in them are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminid.fields import InvalidInput
from geminid.sim.profiles.rubick import load_models


def write(folder: Path, rows: str, *, batch_of: str = "tiny") -> Path:
    (folder / "placements").mkdir()
    (folder / "profile" / "tiny").mkdir(parents=True)
    (folder / "placements" / "tiny.csv").write_text("exec_plan,placement,iter_time\n" + rows)
    (folder / "profile" / "tiny" / "config.csv").write_text("\ufeffnodes,parameter_size\n1,100\n")
    (folder / "validation_points.csv").write_text(f"model,global_batch\n{batch_of},16\n")
    return folder


def test_rows_become_plans_on_placements(tmp_path: Path) -> None:
    (model,) = load_models(write(tmp_path, "ga,1,2.0\nzero-dp,44,0.5\n222,44,0.25\nzero-offload+gc,8,0\n"))
    assert (model.name, model.parameters, model.global_batch) == ("tiny", 100 * 2**20, 16)
    assert [(m.plan.name, m.placement, m.step_s) for m in model.measurements] == [
        ("dp", (1,), 2.0),
        ("zero", (4, 4), 0.5),
        ("pp2-tp2", (4, 4), 0.25),
    ]
    ((plan, placement),) = model.failed
    assert (plan.name, placement) == ("zero-offload-gc", (8,))


@pytest.mark.parametrize("text", ["zero", "12", "104", "2222", "tp"])
def test_a_plan_that_nobody_knows_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"tiny\.csv, line 2, column exec_plan"):
        load_models(write(tmp_path, f"{text},1,2.0\n"))


def test_a_model_needs_its_size_and_its_batch(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="as Rubick's"):
        load_models(tmp_path)
    folder = write(tmp_path, "ga,1,2.0\n", batch_of="other")
    with pytest.raises(InvalidInput, match="global batch"):
        load_models(folder)
    (folder / "profile" / "tiny" / "config.csv").unlink()
    (folder / "profile" / "tiny").rmdir()
    with pytest.raises(InvalidInput, match="number of parameters"):
        load_models(folder)
