"""Snapshots of the code of jobs, as it was when they were submitted.

A folder may be edited, or removed, while its job waits, trains, or comes back from a checkpoint. Whatever nodes a job
comes to, and whenever, it finds what was submitted. What is alike is kept once, however many jobs it is of.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from geminid.process.shim import write

#: In a job's folder: what it needs besides its files, in Ray's words.
DESCRIPTION = "runtime_env.yaml"

#: How long a snapshot is kept that no job needs: it may be of one that is just being submitted.
UNNEEDED_S = 3600.0

#: Fields of a description that may name files of the folder; Ray would look for them where the service was started.
NAMING_FILES = ("pip", "uv", "conda")

#: With these, Ray knows more fields of environments than are its own.
PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"


class CannotPack(ValueError):
    """A folder cannot be packed; the text completes "it …"."""


class CodeStore:
    """Packages of code in a folder: ``NAME.zip``, and ``NAME.json`` for the environment that they are to run in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, code: Path) -> str:
        """Keep a folder as it is now; the name to get it back by.

        Raises:
            CannotPack: it is too large, or ill described.
            OSError: it cannot be read, or there is no room for it.
        """
        environment, excludes = described(code)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        packed = self._folder / f".{secrets.token_hex(8)}.zip"
        try:
            pack(code, excludes, packed)
            name = digest(packed, environment)
            packed.chmod(0o600)
            write(str(self._folder / f"{name}.json"), environment)
            os.replace(packed, self.package(name))  # the same, if it is there already; and its age starts again
        finally:
            packed.unlink(missing_ok=True)
        return name

    def package(self, name: str) -> Path:
        """Where the files are, as one."""
        return self._folder / f"{name}.zip"

    def environment(self, name: str) -> dict[str, Any]:
        """What is needed besides the files, in Ray's words."""
        return dict(json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8")))

    def keep_only(self, needed: Collection[str]) -> None:
        """Remove what no job needs, unless it is new."""
        now_s = time.time()
        for path in self._folder.glob("*") if self._folder.is_dir() else ():
            with contextlib.suppress(OSError):
                if path.stem not in needed and now_s - path.stat().st_mtime > UNNEEDED_S:
                    path.unlink()


def described(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the ``runtime_env.yaml`` of a folder asks for, with what is in files that it names; and what it excludes.

    Raises:
        CannotPack: it is not a description of an environment.
    """
    path = folder / DESCRIPTION
    try:
        described = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise CannotPack(f"has a {DESCRIPTION} that is not YAML: {' '.join(str(problem).split())}") from problem
    if not isinstance(described, dict) or not all(isinstance(key, str) for key in described):
        raise CannotPack(f"has a {DESCRIPTION} that is no mapping, as Ray describes runtime environments")
    if "working_dir" in described:
        raise CannotPack(f"has a {DESCRIPTION} that names a working_dir: it is the folder itself")
    excludes = described.pop("excludes", None) or []
    if not isinstance(excludes, list) or not all(isinstance(name, str) for name in excludes):
        raise CannotPack(f"has a {DESCRIPTION} with excludes that are no list of names, as in a .gitignore")
    modules = described.get("py_modules") or []
    if not isinstance(modules, list) or not all("://" in str(module) for module in modules):
        raise CannotPack(f"has a {DESCRIPTION} with py_modules that are no URIs: put them into the folder instead")
    for field in NAMING_FILES:
        named = described.get(field)
        if isinstance(named, str) and (folder / named).is_file():
            described[field] = str(folder / named)
    try:
        return _as_ray_reads(described), excludes
    except Exception as problem:  # Ray has many ways to say so
        raise CannotPack(f"has a {DESCRIPTION} that Ray does not take: {' '.join(str(problem).split())}") from problem


def _as_ray_reads(described: dict[str, Any]) -> dict[str, Any]:
    """A description with the contents of the files that it names."""
    if not described:
        return {}
    from ray.runtime_env import RuntimeEnv

    unknown = sorted(described.keys() - RuntimeEnv.known_fields)
    if unknown and not os.environ.get(PLUGINS):  # Ray would pass them over
        raise ValueError(f"it knows no {', '.join(unknown)}")
    return dict(RuntimeEnv(**described).to_dict())


def pack(folder: Path, excludes: list[str], target: Path) -> None:
    """Pack a folder as Ray does, without what it leaves out and without ``excludes``.

    Raises:
        CannotPack: it is larger than what Ray takes.
        OSError: it cannot be read, or there is no room for it.
    """
    from geminid.serve.executors.ray.private import MAX_PACKAGE_BYTES, create_package, visit_package

    size = 0

    def count(path: Path) -> None:
        nonlocal size
        size += path.stat().st_size if path.is_file() else 0
        if size >= MAX_PACKAGE_BYTES:
            most = f"the {MAX_PACKAGE_BYTES >> 20} MiB that Ray brings to nodes"
            instead = f"leave files out by name in .gitignore, .rayignore or the excludes of a {DESCRIPTION} in it"
            raise CannotPack(f"has more than {most}: {instead}")

    visit_package(folder, excludes, count)
    create_package(folder, excludes, target)


def digest(package: Path, environment: dict[str, Any]) -> str:
    """A name that stands for files, with their names and modes, and for an environment."""
    found = hashlib.sha256(json.dumps(environment, sort_keys=True).encode())
    with zipfile.ZipFile(package) as files:
        for info in sorted(files.infolist(), key=lambda info: info.filename):
            found.update(json.dumps([info.filename, info.external_attr, info.file_size]).encode())
            with files.open(info) as file:
                while block := file.read(1 << 20):
                    found.update(block)
    return found.hexdigest()[:32]
