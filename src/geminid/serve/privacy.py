"""Whether a service's home folder is its owner's alone: others could change what the service runs, or take its tokens.

As PostgreSQL does with its data directory, a service refuses to start on a folder that others can write.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from geminid.serve.auth import TOKEN, TOKENS
from geminid.serve.store import DATABASE, StoreProblem

#: What only the owner of a home folder may read: tokens, and the environments of jobs.
SECRET_FILES = (TOKEN, TOKENS, DATABASE)


def check_private(home: Path) -> None:
    """Refuse a home folder that others can change, or whose secrets they can read.

    Raises:
        StoreProblem: which it is, and the command that mends it.
    """
    about, quoted = home.stat(), shlex.quote(str(home))
    if about.st_uid != os.geteuid():
        sentence = f"{home} belongs to user {about.st_uid}, and this service would run as user {os.geteuid()}"
        raise StoreProblem(f"{sentence}: run it as its owner, `chown {os.geteuid()} {quoted}`, or set GEMINID_HOME")
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o022:
        who = "everybody" if mode & 0o002 else "its group"
        raise StoreProblem(f"{home} can be written by {who} (mode {mode:04o}): `chmod go-w {quoted}` first")
    for name in SECRET_FILES:
        if not (home / name).exists():
            continue
        mode = stat.S_IMODE((home / name).stat().st_mode)
        if mode & 0o077:
            sentence = f"{home / name} has secrets, and others than its owner can read or write it (mode {mode:04o})"
            raise StoreProblem(f"{sentence}: `chmod 600 {shlex.quote(str(home / name))}` first")
