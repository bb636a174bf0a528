"""What is in the way is moved aside, into folders by time, and never deleted."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

#: Where it is, in the home.
ASIDE = "aside"


def new_aside(home: Path) -> Path:
    """A new folder for what is moved out of the way.

    Raises:
        OSError: it cannot be made.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    (home / ASIDE).mkdir(mode=0o700, exist_ok=True)
    for number in range(1000):
        made = home / ASIDE / (f"{stamp}-{number}" if number else stamp)
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
            return made
    raise FileExistsError(f"{home / ASIDE} has a thousand folders of this second")


def move_aside(path: Path, to: Path) -> Path:
    """Move something into a folder, under a name that is free there; where it is now.

    Raises:
        OSError: it cannot be moved.
    """
    to.mkdir(parents=True, exist_ok=True, mode=0o700)
    place, number = to / path.name, 1
    while place.exists():
        number += 1
        place = to / f"{path.name}-{number}"
    shutil.move(path, place)
    return place
