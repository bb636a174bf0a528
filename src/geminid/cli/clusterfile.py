"""What ``--cluster`` takes: a file, or the short form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.cluster import Cluster

SUFFIXES = (".yaml", ".yml", ".json")


def read_cluster(text: str) -> Cluster:
    """The cluster of a file, or of the short form ``aws:6x4,rtx:3x8``.

    Raises:
        InvalidInput: it is neither, or the file has mistakes.
    """
    from geminid.cluster import Cluster

    path = Path(text)
    if path.suffix not in SUFFIXES:
        return Cluster.parse(text)
    if not path.is_file():
        raise InvalidInput([Problem("cluster", text, "must be a file that exists or like aws:6x4,rtx:3x8")])
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidInput([Problem("cluster", text, "must be a text file in UTF-8 that can be read")]) from None
    return Cluster.from_json(content) if path.suffix == ".json" else Cluster.from_yaml(content)
