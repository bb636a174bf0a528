"""Code that is put by when a job is submitted: what is kept, what is alike, what cannot be taken along."""

import os
import time
import zipfile

import pytest

from geminid.serve.executors.ray import code as raycode
from geminid.serve.executors.ray.code import CannotPack, CodeStore


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "package" / "model.py").write_text("layers = 2\n")
    return folder


@pytest.fixture
def store(tmp_path):
    return CodeStore(tmp_path / "kept")


def files(store, name):
    with zipfile.ZipFile(store.package(name)) as package:
        return {path: package.read(path).decode() for path in package.namelist()}


def test_what_was_put_by_stays_as_it_was(store, code):
    name = store.store(code)
    (code / "train.py").write_text("print(2)\n")
    changed = store.store(code)
    assert files(store, name) == {"train.py": "print(1)\n", "package/model.py": "layers = 2\n"}
    assert files(store, changed)["train.py"] == "print(2)\n"
    assert name != changed


def test_what_is_alike_is_kept_once(store, code, tmp_path):
    name = store.store(code)
    os.utime(code / "train.py", (1, 1))
    assert store.store(code) == name
    (code / "train.py").chmod(0o755)
    assert store.store(code) != name
    (code / "train.py").chmod(0o644)
    (code / "runtime_env.yaml").write_text("env_vars: {LR: '0.1'}\n")
    described = store.store(code)
    assert described != name
    assert store.environment(described) == {"env_vars": {"LR": "0.1"}}
    assert store.environment(name) == {}
    assert len(list((tmp_path / "kept").glob("*.zip"))) == 3


def test_files_are_left_out_as_by_ray(store, code):
    (code / "data.bin").write_text("much")
    (code / "notes.txt").write_text("mine")
    (code / ".gitignore").write_text("*.bin\n")
    (code / "runtime_env.yaml").write_text("excludes: [notes.txt]\n")
    name = store.store(code)
    assert not {"data.bin", "notes.txt"} & files(store, name).keys()
    assert store.environment(name) == {}  # nothing for which Ray would have to be asked


def test_files_that_the_environment_names_are_files_of_the_folder(store, code):
    (code / "requirements.txt").write_text("tabulate==0.9.0\n")
    (code / "runtime_env.yaml").write_text("pip: requirements.txt\n")
    assert store.environment(store.store(code))["pip"]["packages"] == ["tabulate==0.9.0"]


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ("- pip", "no mapping"),
        ("pip: [a", "not YAML"),
        ("env_vars: [a]", "does not take"),
        ("pips: [a]", "does not take: it knows no pips"),
        ("working_dir: /elsewhere", "names a working_dir"),
        ("excludes: '*.bin'", "excludes that are no list"),
        ("excludes: [5]", "excludes that are no list"),
        ("py_modules: [../mine]", "py_modules that are no URIs"),
    ],
)
def test_what_is_ill_described_is_refused(store, code, tmp_path, described, said):
    (code / "runtime_env.yaml").write_text(described)
    with pytest.raises(CannotPack, match=said) as told:
        store.store(code)
    assert "\n" not in str(told.value)
    assert not list((tmp_path / "kept").glob("*"))


def test_what_is_too_large_is_refused_before_it_is_copied(store, code, tmp_path):
    with (code / "huge.bin").open("wb") as file:
        file.truncate(600 << 20)
    with pytest.raises(CannotPack, match=r"more than the \d+ MiB that Ray brings"):
        store.store(code)
    assert not list((tmp_path / "kept").glob("*"))
    (code / ".gitignore").write_text("*.bin\n")
    assert "huge.bin" not in files(store, store.store(code))


def test_what_no_job_needs_goes_after_a_while(store, code, tmp_path):
    kept = tmp_path / "kept"
    first = store.store(code)
    (code / "train.py").write_text("print(2)\n")
    second = store.store(code)
    store.keep_only(set())
    assert len(list(kept.iterdir())) == 4  # somebody may just be submitting it
    for path in kept.iterdir():
        os.utime(path, (time.time() - 2 * raycode.UNNEEDED_S,) * 2)
    store.keep_only({first})
    assert {path.stem for path in kept.iterdir()} == {first}
    assert second not in {path.stem for path in kept.iterdir()}
    (code / "train.py").write_text("print(1)\n")
    assert store.store(code) == first
    store.keep_only(set())
    assert store.package(first).exists()  # asked for anew
