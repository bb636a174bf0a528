"""Checkpoints: whole or not at all, checked before they are believed, never unpickled."""

import contextlib
import errno
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load_file

from geminid.supervise.setaside import set_checkpoints_aside
from geminid.testing.clock import ManualClock
from geminid.train import rng
from geminid.train.checkpoint import BadCheckpoint, read, take_snapshot, write
from geminid.train.saving import BackgroundWriter
from geminid.train.state_codec import CannotSave, decode, encode
from geminid.train.storage import RETRY_DELAYS_S, AllDamaged, CannotLoad, CheckpointFolder, checkpoints_at

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
    return take_snapshot(state, ManualClock(), step=step, samples=8 * step)


def test_state_survives_being_taken_apart():
    document, tensors = encode(STATE)
    assert same(decode(json.loads(json.dumps(document)), tensors), STATE)
    assert "state/model/weight" in tensors


def test_what_cannot_be_saved_is_named():
    with pytest.raises(CannotSave, match="state/user/x is a function"):
        encode({"user": {"x": same}})


def test_a_file_gives_back_what_was_written(tmp_path):
    write(snapshot(), tmp_path / "one")
    assert same(read(tmp_path / "one"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_checkpoints_of_earlier_versions_are_read():
    """The fixture was written by the last version that had a serialiser of its own, with every type it knew."""
    kinds = (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
    )
    expected = {**STATE, "kinds": {kind: torch.arange(3).to(getattr(torch, kind)) for kind in kinds}}
    fixture = Path(__file__).parents[1] / "fixtures" / "geminid-1.safetensors"
    assert b'"format":"geminid-1"' in fixture.read_bytes()
    assert same(read(fixture), expected)


def test_damage_in_checkpoints_of_earlier_versions_is_noticed(tmp_path):
    intact = (Path(__file__).parents[1] / "fixtures" / "geminid-1.safetensors").read_bytes()
    for position in range(8, len(intact), 97):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        (tmp_path / "one").write_bytes(damaged)
        with pytest.raises(BadCheckpoint):
            read(tmp_path / "one")
    (tmp_path / "one").write_bytes(intact[:-1])
    with pytest.raises(BadCheckpoint, match="truncated"):
        read(tmp_path / "one")


FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


@pytest.mark.parametrize("kind", [*filter(partial(hasattr, torch), FLOATS_OF_8_BITS), "bfloat16", "uint16", "uint64"])
def test_small_and_unsigned_types_are_saved(tmp_path, kind):
    raw = torch.arange(16, dtype=torch.uint8)
    write(snapshot({"w": raw.view(getattr(torch, kind))}), tmp_path / "one")
    back = read(tmp_path / "one")["w"]
    assert back.dtype == getattr(torch, kind)
    assert torch.equal(back.view(torch.uint8), raw)


def test_a_type_that_the_format_does_not_have_is_refused():
    with pytest.raises(CannotSave, match=r"state/w is a tensor of torch\.complex128, which cannot be saved"):
        snapshot({"w": torch.zeros(1, dtype=torch.complex128)})


def test_other_tools_can_open_a_checkpoint(tmp_path):
    write(snapshot(), tmp_path / "one")
    assert torch.equal(load_file(tmp_path / "one")["state/model/weight"], STATE["model"]["weight"])


def test_a_loaded_state_does_not_depend_on_the_file(tmp_path):
    path = tmp_path / "one"
    write(snapshot({"w": torch.arange(1 << 16)}), path)
    state = read(path)
    path.write_bytes(b"")  # a mapped file that is cut off would end the process
    assert torch.equal(state["w"], torch.arange(1 << 16))


def test_a_checkpoint_has_the_permissions_of_other_files(tmp_path):
    write(snapshot(), tmp_path / "one")
    (tmp_path / "other").touch()
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_write_that_the_system_refuses_says_why_and_leaves_nothing(tmp_path):
    """The library has errors of its own; what is raised has the error number of the system."""
    code = """
import resource, signal, sys, pathlib, torch
from geminid.clock import Clock
from geminid.train.checkpoint import take_snapshot, write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
taken = take_snapshot({"w": torch.zeros(1 << 16)}, Clock(), step=1, samples=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write(taken, pathlib.Path(sys.argv[1], "one"))
except OSError as problem:
    sys.exit(problem.errno)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_random_number_generators_go_on_where_they_were(tmp_path):
    write(snapshot({"rng": rng.states()}), tmp_path / "one")
    expected = (torch.rand(3), np.random.rand(3))  # noqa: NPY002
    rng.seed_all(99)
    rng.restore(read(tmp_path / "one")["rng"])
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002


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
    folder = CheckpointFolder(tmp_path, ManualClock(), keep=3)
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
    assert CheckpointFolder(tmp_path / "other", ManualClock()).load() is None
    (tmp_path / "checkpoint-00000009.safetensors").mkdir()  # which cannot be read at all
    assert folder.load()[1].name == names[1]
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_training_does_not_begin_anew_by_itself_where_all_checkpoints_are_damaged(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path, ManualClock())
    assert folder.load() is None
    assert capsys.readouterr().err == ""
    for step in (1, 2):
        folder.save(snapshot({"step": step}, step))
    for path in folder.paths():
        path.write_bytes(b"nothing")
    for _ in range(2):  # nor the next time
        with pytest.raises(AllDamaged, match=f"all 2 checkpoints in {tmp_path} are damaged: put an intact one there"):
            folder.load()
    assert [path.read_bytes() for path in tmp_path.glob("*.damaged")] == [b"nothing"] * 2
    aside = set_checkpoints_aside(tmp_path)
    assert folder.load() is None
    assert [path.read_bytes() for path in Path(aside).iterdir()] == [b"nothing"] * 2
    assert set_checkpoints_aside(tmp_path) is None
    folder.save(snapshot({"step": 1}, 1))
    intact = folder.paths()[0].read_bytes()
    folder.paths()[0].write_bytes(b"nothing")
    with pytest.raises(AllDamaged, match=r"the only checkpoint in .* is damaged"):
        folder.load()
    (tmp_path / "checkpoint-00000001.safetensors").write_bytes(intact)
    assert folder.load()[0] == {"step": 1}
    assert set_checkpoints_aside(tmp_path) == str(tmp_path / "set-aside-2")


def test_damaged_checkpoints_on_storage_are_kept_and_can_be_put_aside():
    url = "memory://bucket/jobs/damaged"
    storage, files = checkpoints_at(url, ManualClock()), fsspec.filesystem("memory")
    assert set_checkpoints_aside(url) is None
    storage.save(snapshot({"step": 1}, 1))
    files.pipe("/bucket/jobs/damaged/checkpoint-00000001.safetensors", b"nothing")
    for _ in range(2):
        with pytest.raises(AllDamaged, match=f"the only checkpoint in {url} is damaged"):
            storage.load()
    assert set_checkpoints_aside(url) == f"{url}/set-aside-1"
    assert storage.load() is None
    assert files.cat("/bucket/jobs/damaged/set-aside-1/checkpoint-00000001.safetensors") == b"nothing"


@pytest.mark.parametrize("as_folder", [True, False])  # a file is what versions before this one left
def test_what_is_left_over_or_damaged_does_not_pile_up(tmp_path, as_folder):
    folder = CheckpointFolder(tmp_path, ManualClock(), keep=2)
    left = tmp_path / ".checkpoint-00000001.safetensors.77"
    if as_folder:
        left.mkdir()
        (left / ".tmpAbCdEf").write_bytes(b"half of one")
    else:
        left.write_bytes(b"half of one")
    os.utime(left, (time.time() - 1.0,) * 2)  # file systems keep times in steps of several milliseconds
    for step in range(4):
        folder.save(snapshot({"step": step}, step))
        (tmp_path / f"checkpoint-0000009{step}.damaged").touch()
        assert left.exists() == (step == 0)  # somebody may be writing it still
    assert len(list(tmp_path.glob("*.damaged"))) <= 3
    assert len(folder.paths()) == 2


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, capsys, monkeypatch):
    folder = CheckpointFolder(tmp_path, ManualClock())
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
    storage = checkpoints_at("memory://bucket/jobs/17", ManualClock(), keep=2)
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

    def makedirs(self, path, exist_ok=False):
        raise PermissionError("access denied")

    def put_file(self, lpath, rpath):
        self.pipe_file(rpath, Path(lpath).read_bytes())

    monkeypatch.setattr(MemoryFileSystem, "makedirs", makedirs)
    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    storage = checkpoints_at("memory://bucket/jobs/19", ManualClock())
    with pytest.raises(FileNotFoundError):
        storage._storage.ls("/bucket/jobs/19")
    assert storage.load() is None
    storage.save(snapshot({"step": 1}, 1))
    assert storage.load()[0] == {"step": 1}


def test_a_folder_on_storage_that_has_folders_is_made_when_it_is_needed(tmp_path):
    storage = checkpoints_at(f"local://{tmp_path}/some/where", ManualClock())
    assert storage.load() is None
    storage.save(snapshot({"step": 1}, 1))
    assert storage.load()[0] == {"step": 1}


def test_storage_that_fails_is_asked_again_and_never_taken_for_empty(capsys, monkeypatch):
    clock = ManualClock()
    storage = checkpoints_at("memory://bucket/jobs/18", clock)
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
    assert clock.at_s == sum(RETRY_DELAYS_S)
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
        checkpoints_at("nosuch://x", ManualClock())


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(tmp_path):
    folder = CheckpointFolder(tmp_path, ManualClock())
    (tmp_path / "checkpoint-00000009.safetensors").mkdir()
    with pytest.raises(CannotLoad, match="but none can be read \\(Is a directory\\)"):
        folder.load()


def test_a_file_url_is_a_folder(tmp_path):
    storage = checkpoints_at(f"file://{tmp_path}/deep/er", ManualClock())
    storage.save(snapshot({"step": 1}))
    assert [path.parent for path in storage.paths()] == [tmp_path / "deep" / "er"]
