"""What one supervisor writes down for the next: the job's token, its group, and its workers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAME = "supervisor.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A job between two supervisors.

    ``address`` is where its workers look for a supervisor, ``slots`` are those that its members are on, by rank. Of a
    worker there are its slot, its standing, and what its launcher finds its process by.
    """

    token: str
    address: str
    generation: int
    members: tuple[str, ...]
    slots: tuple[str, ...]
    workers: dict[str, dict[str, Any]]

    def write(self, folder: Path) -> None:
        """Readable by the owner only, whole or not at all."""
        made = folder / f"{NAME}.new"
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        made.replace(folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> Handover | None:
        """What was written last; None if nothing was, or by another version: its workers then save and stop."""
        saved = folder / NAME
        if not saved.exists():
            return None
        try:
            document = json.loads(saved.read_text(encoding="utf-8"))
            return cls(**{**document, "members": tuple(document["members"]), "slots": tuple(document["slots"])})
        except (ValueError, TypeError, KeyError) as problem:
            print(f"geminid: warning: {saved} is not used: {problem!r}", file=sys.stderr, flush=True)
            return None
