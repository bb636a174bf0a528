"""Makes a home of the fixture ``old_home``: what an earlier version left when its service was killed while jobs ran."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path

FIXTURE = Path(__file__).parent / "fixtures" / "old_home"

#: What became of its jobs.
PHASES = {
    "j1": "succeeded",
    "j2": "failed",
    "j3": "cancelled",
    "j4": "paused",
    "j5": "running",
    "j6": "running",
    "j7": "pending",
}


def make_old_home(home: Path) -> Path:
    """The home as it was, with a write-ahead log that nobody has cleared."""

    def placed(text: str) -> str:
        return text.replace("@HOME@", str(home)).replace("@PYTHON@", sys.executable)

    home.mkdir(exist_ok=True, mode=0o700)
    shutil.copytree(FIXTURE / "files", home, dirs_exist_ok=True)
    for path in home.rglob("*.json"):
        path.write_text(placed(path.read_text()))
    for path in home.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    shutil.copy(FIXTURE / "train.py", home)
    database = sqlite3.connect(home / "geminid.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(placed((FIXTURE / "log.sql").read_text()))
    kept = {name: (home / name).read_bytes() for name in ("geminid.db", "geminid.db-wal")}
    database.close()  # which clears the write-ahead log, as a service that is killed does not
    for name, content in kept.items():
        (home / name).write_bytes(content)
        (home / name).chmod(0o600)
    return home
