"""``geminid validate`` as people and programs use it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from geminid.cluster import Cluster
from geminid.job import JobSpec

DOCS = Path(__file__).parents[2] / "docs"
JOB = "name: hello\ncommand: [python, train.py]\nenv: {TOKEN: hunter2}\nmax_slots: 4\n"
CLUSTER = "nodes:\n  - {type: h100, count: 3, slots: 8}\n  - {type: t4, slots: 4}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


def validate(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "geminid", "validate", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_job_file_that_is_right_is_told_in_a_few_lines(file: Path) -> None:
    file.write_text(JOB)
    result = validate(file)
    assert (result.returncode, result.stderr) == (0, "")
    for words in ("valid job hello", "python train.py", "1 to 4", "TOKEN"):
        assert words in result.stdout
    assert "hunter2" not in result.stdout


def test_programs_get_a_job_as_it_was_understood(file: Path) -> None:
    file.write_text(JOB)
    result = validate(file, "--json")
    assert result.returncode == 0
    spec = JobSpec.from_yaml(JOB)
    assert json.loads(result.stdout) == spec.redacted().to_dict()
    assert "hunter2" not in result.stdout


def test_a_cluster_file_is_recognised(file: Path) -> None:
    file.write_text(CLUSTER)
    result = validate(file)
    assert (result.returncode, result.stderr) == (0, "")
    for words in ("valid cluster of 28 slots: 4 nodes, 1 rack, 1 zone", "h100", "t4"):
        assert words in result.stdout
    assert Cluster.from_json(validate(file, "--json").stdout) == Cluster.from_yaml(CLUSTER)


def test_json_files_are_read_as_json(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(JobSpec.from_yaml(JOB).to_json())
    assert validate(file).returncode == 0
    file.write_text(JOB)
    assert "cannot be read" in validate(file).stderr


def test_every_mistake_is_one_line_and_the_exit_code_is_two(file: Path) -> None:
    file.write_text("name: hello\ncommand: ls\nmin_slot: 3\ninitial_batch_size: 512\nmax_batch_size: 128\n")
    result = validate(file)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: command is 'ls', but must be a list of words such as ['ls']; there is no shell to split it.",
        "error: max_batch_size is 128, but must be at least initial_batch_size, which is 512.",
        "error: min_slot is not a known field (did you mean min_slots?).",
    ]


@pytest.mark.parametrize("text", ["", "[1, 2]", "queue: default", "name: j\nnodes: []"])
def test_a_file_that_could_be_anything_needs_its_kind(file: Path, text: str) -> None:
    file.write_text(text)
    result = validate(file)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "--kind" in result.stderr
    for kind, field in (("job", "command"), ("cluster", "nodes")):
        told = validate(file, "--kind", kind)
        assert told.returncode == 2
        assert "--kind" not in told.stderr
        assert field in told.stderr or "must be a mapping" in told.stderr


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_text("#" * (2**20 + 1))
    for name, words in (("missing", "No such file"), (".", "Is a directory"), ("binary", "UTF-8"), ("long", "at most")):
        result = validate(tmp_path / name)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert words in result.stderr


@pytest.mark.parametrize("page", ["job-file.md", "cluster-file.md"])
def test_the_examples_of_the_documentation_pass(file: Path, page: str) -> None:
    text = (DOCS / page).read_text()
    assert "geminid validate FILE.yaml" in text
    for example in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        file.write_text(example)
        assert validate(file).returncode == 0
