from __future__ import annotations

from pathlib import Path

import pytest

from geminid.fields import InvalidInput
from geminid.sim.measurements import UNNAMED_TYPE, load_measurements

HEADER = "placement,local_bsz,step_time,sync_time\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cnn").mkdir()
    return tmp_path


def test_placements_and_larger_shapes_are_read_by_type(folder: Path) -> None:
    (folder / "cnn" / "placements-v100.csv").write_text(HEADER + "1,32,0.5,0.1\n134,32,0.9,0.3\n")
    (folder / "cnn" / "scalability-v100.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,10,32,1.5,0.5\n"
    )
    (folder / "cnn" / "placements.csv").write_text(HEADER + "2,8,0.25,0.05\n")
    (folder / "cnn" / "validation-64.csv").write_text("not,read\n")
    unnamed, v100 = load_measurements(folder)
    assert (unnamed.gpu_type, v100.gpu_type) == (UNNAMED_TYPE, "v100")
    spread = [(seen.nodes, seen.slots, seen.busiest_node_slots) for seen in v100.observations]
    assert spread == [(1, 1, 1), (3, 8, 4), (6, 10, 2)]
    assert v100.observations[0].accumulation_s == pytest.approx(0.4)


def test_every_bad_cell_is_reported_with_file_line_and_column(folder: Path) -> None:
    (folder / "cnn" / "placements.csv").write_text(HEADER + "1,32,fast,0.1\n1x,32,0.5,0.1\n1,0,0.5,nan\n1,32\n")
    with pytest.raises(InvalidInput) as caught:
        load_measurements(folder)
    sentences = [str(problem) for problem in caught.value.problems]
    assert sentences == [
        "placements.csv, line 2, column step_time is 'fast', but must be a positive number.",
        "placements.csv, line 3, column placement is '1x', but must have one digit from 1 to 9 per node, "
        "the slots there.",
        "placements.csv, line 4, column local_bsz is '0', but must be a whole number of at least 1.",
        "placements.csv, line 4, column sync_time is 'nan', but must be a number that is not negative.",
        "placements.csv, line 5, column step_time is missing: the line has only 2 cells.",
        "placements.csv, line 5, column sync_time is missing: the line has only 2 cells.",
    ]


def test_a_missing_column_is_named_with_what_was_probably_meant(folder: Path) -> None:
    (folder / "cnn" / "placements.csv").write_text("placement,local_bsz,steptime,sync_time\n")
    with pytest.raises(InvalidInput, match=r"has no column 'step_time' \(did you mean steptime\?\)"):
        load_measurements(folder)


def test_fewer_replicas_than_nodes_is_impossible(folder: Path) -> None:
    (folder / "cnn" / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,4,32,1.5,0.5\n"
    )
    with pytest.raises(InvalidInput, match=r"line 2, column num_replicas is 4, but must be at least num_nodes \(6\)"):
        load_measurements(folder)


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no"):
        load_measurements(tmp_path)
    with pytest.raises(InvalidInput, match="must be a folder"):
        load_measurements(tmp_path / "missing")


def test_a_binary_file_is_refused_in_one_sentence(folder: Path) -> None:
    (folder / "cnn" / "placements.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="is not a CSV file in UTF-8"):
        load_measurements(folder)
