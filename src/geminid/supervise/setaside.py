"""Setting a job's checkpoints aside, so that it starts from the beginning; nothing is deleted. Without PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

#: The default folder of a job's checkpoints, in the job's own folder.
CHECKPOINTS = "checkpoints"

#: How the names of all checkpoints begin, those of damaged ones too.
PREFIX = "checkpoint-"

#: How the names of folders with checkpoints that were set aside begin; a number follows.
ASIDE = "set-aside-"


def has_checkpoints(folder: Path) -> bool:
    """Whether there are checkpoints in a folder, intact or damaged."""
    return any(folder.glob(f"{PREFIX}*"))


def set_checkpoints_aside(place: Path | str) -> str | None:
    """Move all checkpoints in a folder, or below an fsspec URL, into a new folder there; its name, if there were any.

    Raises:
        Exception: any error of the storage.
    """
    text = str(place).removeprefix("file://")
    if "://" in text:
        return _aside_in_storage(text)
    folder = Path(text)
    names = os.listdir(folder) if folder.is_dir() else []
    aside = _next_folder(names)
    ours = [name for name in names if name.startswith(PREFIX)]
    if not ours:
        return None
    (folder / aside).mkdir()
    for name in ours:
        (folder / name).replace(folder / aside / name)
    return str(folder / aside)


def _aside_in_storage(url: str) -> str | None:
    from fsspec.core import url_to_fs

    storage, root = url_to_fs(url)
    storage.invalidate_cache()
    try:
        names = [path.rstrip("/").rpartition("/")[2] for path in storage.ls(root, detail=False)]
    except FileNotFoundError:
        return None
    ours = [name for name in names if name.startswith(PREFIX)]
    if not ours:
        return None
    aside = _next_folder(names)
    storage.makedirs(f"{root}/{aside}", exist_ok=True)
    for name in ours:
        storage.mv(f"{root}/{name}", f"{root}/{aside}/{name}")
    return f"{url.rstrip('/')}/{aside}"


def _next_folder(names: list[str]) -> str:
    taken = [name.removeprefix(ASIDE) for name in names if name.startswith(ASIDE)]
    return f"{ASIDE}{max((int(number) for number in taken if number.isdecimal()), default=0) + 1}"
