"""Checkpoints: whole or not at all, checked before they are believed, never unpickled."""

import contextlib
import json
import math
import pickle
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from geminid.train import rng  # noqa: E402
from geminid.train.checkpoint import BadCheckpoint, read, take_snapshot, write  # noqa: E402
from geminid.train.saving import BackgroundWriter  # noqa: E402
from geminid.train.storage import CannotLoad, CheckpointFolder, checkpoints_at  # noqa: E402
from geminid.train.tree import CannotSave, put_together, take_apart  # noqa: E402

STATE = {
    "model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3), scalar=torch.tensor(3), empty=torch.empty(0, 4)),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "optimizer": {"state": {0: {"step": torch.tensor(5.0)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "numbers": [1, 2.5, True, None, "text", math.inf, -math.inf],
    "numpy": np.arange(4, dtype=np.uint32),
    "raw": b"\x00\x01",
    "$": "a key that looks like ours",
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and (one == other).all()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def snapshot(state=STATE, step=1):
    return take_snapshot(state, step=step, samples=8 * step)


def test_state_survives_being_taken_apart():
    document, tensors = take_apart(STATE)
    assert same(put_together(json.loads(json.dumps(document)), tensors), STATE)
    assert "state/model/weight" in tensors


def test_what_cannot_be_saved_is_named():
    with pytest.raises(CannotSave, match="state/user/x is a function"):
        take_apart({"user": {"x": same}})


def test_a_file_gives_back_what_was_written(tmp_path):
    write(snapshot(), tmp_path / "one")
    assert same(read(tmp_path / "one"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_random_number_generators_go_on_where_they_were(tmp_path):
    write(snapshot({"rng": rng.states()}), tmp_path / "one")
    expected = (torch.rand(3), np.random.rand(3))
    rng.seed_all(99)
    rng.restore(read(tmp_path / "one")["rng"])
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()


def test_any_flipped_bit_and_any_missing_byte_is_noticed(tmp_path):
    path = tmp_path / "one"
    write(snapshot({"w": torch.arange(3)}), path)
    intact = path.read_bytes()
    for position in range(0, len(intact), 7):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with contextlib.suppress(BadCheckpoint):
            assert same(read(path), {"w": torch.arange(3)})  # white space only: it means the same
    for length in range(0, len(intact), 11):
        path.write_bytes(intact[:length])
        with pytest.raises(BadCheckpoint):
            read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({"model": 1}),
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 4) + b"null",
    ],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "one").write_bytes(content)
    with pytest.raises(BadCheckpoint):
        read(tmp_path / "one")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in range(1, 6):
        folder.save(snapshot({"step": step}, step))
    names = [path.name for path in folder.paths()]
    assert names == [f"checkpoint-0000000{n}.safetensors" for n in (5, 4, 3)]
    newest = folder.paths()[0]
    newest.write_bytes(newest.read_bytes()[:-3])
    state, path = folder.load()
    assert state == {"step": 4}
    assert path.name == names[1]
    assert "warning" in capsys.readouterr().err
    assert newest.with_suffix(".damaged").exists()
    assert CheckpointFolder(tmp_path / "other").load() is None
    (tmp_path / "checkpoint-00000009.safetensors").mkdir()  # which cannot be read at all
    assert folder.load()[1].name == names[1]
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_training_that_begins_anew_for_want_of_an_intact_checkpoint_says_so(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path)
    assert folder.load() is None
    assert capsys.readouterr().err == ""
    for step in (1, 2):
        folder.save(snapshot({"step": step}, step))
    for path in folder.paths():
        path.write_bytes(b"nothing")
    assert folder.load() is None
    assert f"none of the 2 checkpoints in {tmp_path} can be used: training begins anew" in capsys.readouterr().err


def test_what_is_left_over_or_damaged_does_not_pile_up(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    left = tmp_path / ".checkpoint-00000001.safetensors.77"
    left.write_bytes(b"half of one")
    for step in range(4):
        folder.save(snapshot({"step": step}, step))
        (tmp_path / f"checkpoint-0000009{step}.damaged").touch()
        assert left.exists() == (step == 0)  # somebody may be writing it still
    assert len(list(tmp_path.glob("*.damaged"))) <= 3
    assert len(folder.paths()) == 2


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, capsys, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    written = []
    writer = BackgroundWriter(folder, written.append)
    writer.begin(snapshot({"step": 1}))
    assert writer.finish() is None

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    writer.begin(snapshot({"step": 2}))
    assert writer.finish().errno == 28
    assert "No space left on device" in capsys.readouterr().err
    assert folder.load()[0] == {"step": 1}
    assert len(list(tmp_path.iterdir())) == len(written) == 1


def test_checkpoints_on_remote_storage_fall_back_to_one_that_is_whole(capsys):
    fsspec = pytest.importorskip("fsspec")
    storage = checkpoints_at("memory://bucket/jobs/17", keep=2)
    assert storage.load() is None
    for step in range(1, 4):
        written = storage.save(snapshot({"step": step, "weights": torch.arange(step)}, step))
    assert written.path == "memory://bucket/jobs/17/checkpoint-00000003.safetensors"
    assert storage.names() == [f"checkpoint-0000000{n}.safetensors" for n in (3, 2)]
    with fsspec.open(written.path, "rb") as file:
        half = file.read()[:-3]
    with fsspec.open(written.path, "wb") as file:
        file.write(half)
    state, path = storage.load()
    assert (state["step"], path) == (2, "memory://bucket/jobs/17/checkpoint-00000002.safetensors")
    assert "is not used" in capsys.readouterr().err


def test_an_object_store_has_no_folder_before_there_is_something_in_it(monkeypatch):
    """As on S3: what is not there cannot be listed, and whoever may write below it may not be allowed to make it."""
    memory = pytest.importorskip("fsspec.implementations.memory")

    def makedirs(self, path, exist_ok=False):
        raise PermissionError("access denied")

    def put_file(self, lpath, rpath):
        self.pipe_file(rpath, Path(lpath).read_bytes())

    monkeypatch.setattr(memory.MemoryFileSystem, "makedirs", makedirs)
    monkeypatch.setattr(memory.MemoryFileSystem, "put_file", put_file)
    storage = checkpoints_at("memory://bucket/jobs/19")
    with pytest.raises(FileNotFoundError):
        storage._storage.ls("/bucket/jobs/19")
    assert storage.load() is None
    storage.save(snapshot({"step": 1}, 1))
    assert storage.load()[0] == {"step": 1}


def test_a_folder_on_storage_that_has_folders_is_made_when_it_is_needed(tmp_path):
    pytest.importorskip("fsspec")
    storage = checkpoints_at(f"local://{tmp_path}/some/where")
    assert storage.load() is None
    storage.save(snapshot({"step": 1}, 1))
    assert storage.load()[0] == {"step": 1}


def test_storage_that_fails_is_asked_again_and_never_taken_for_empty(capsys, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setattr("geminid.train.storage.PAUSES_S", (0.0, 0.0))
    storage = checkpoints_at("memory://bucket/jobs/18")
    for step in (1, 2):
        storage.save(snapshot({"step": step}, step))
    answers, real = [], type(storage._storage).get_file

    def get_file(self, *args, **kwargs):
        if answers and (problem := answers.pop(0)) is not None:
            raise problem
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(storage._storage), "get_file", get_file)
    answers += [ConnectionError("timed out"), ValueError("throttled")]
    assert storage.load()[0] == {"step": 2}
    answers += [ConnectionError("timed out")] * 3
    assert storage.load()[0] == {"step": 1}
    assert "checkpoint-00000002.safetensors cannot be read: timed out" in capsys.readouterr().err
    answers += [ConnectionError("timed out")] * 6
    with pytest.raises(CannotLoad, match=r"none can be read \(timed out\): make them readable, or remove them"):
        storage.load()

    def ls(self, *args, **kwargs):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(type(storage._storage), "ls", ls)
    with pytest.raises(CannotLoad, match="the checkpoints in memory://bucket/jobs/18 cannot be listed: nobody there"):
        storage.load()
    with pytest.raises(CannotLoad, match="checkpoints cannot be kept in nosuch://x: Protocol not known"):
        checkpoints_at("nosuch://x")


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(tmp_path):
    folder = CheckpointFolder(tmp_path)
    (tmp_path / "checkpoint-00000009.safetensors").mkdir()
    with pytest.raises(CannotLoad, match="but none can be read \\(Is a directory\\)"):
        folder.load()


def test_a_file_url_is_a_folder(tmp_path):
    storage = checkpoints_at(f"file://{tmp_path}/deep/er")
    storage.save(snapshot({"step": 1}))
    assert [path.parent for path in storage.paths()] == [tmp_path / "deep" / "er"]


WRITE_FOR_EVER = """
import sys, itertools, pathlib, torch
from geminid.train.checkpoint import take_snapshot
from geminid.train.storage import CheckpointFolder
folder = CheckpointFolder(pathlib.Path(sys.argv[1]), keep=2)
for step in itertools.count(int(sys.argv[2])):
    state = {"model": {"weight": torch.full((500_000,), float(step))}, "step": step}
    folder.save(take_snapshot(state, step=step, samples=step))
"""


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    """A real process writes one checkpoint after the other and is killed at some moment, several times over."""
    for number in range(1, 4):
        first, before = 1000 * number, newest(tmp_path)
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), str(first)])
        while newest(tmp_path) <= before:
            assert writer.poll() is None
            time.sleep(0.001)
        time.sleep(0.004 * number)
        writer.kill()
        writer.wait()
        found, path = CheckpointFolder(tmp_path, keep=2).load()
        assert found["step"] >= first
        assert bool((found["model"]["weight"] == found["step"]).all())
        assert path.name == newest(tmp_path)
        assert not list(tmp_path.glob("*.damaged"))


def newest(folder):
    return max((path.name for path in folder.glob("*.safetensors")), default="")
