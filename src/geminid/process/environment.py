"""The environment that processes of jobs start from: nothing of this process's own.

The environment of a service contains its operator's secrets, which no job may see. So processes of jobs do not inherit
it: their account comes from the account database, and everything else from the user who submitted the job.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

#: Where the system has programs.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment() -> dict[str, str]:
    """The variables that every process has: its account, and where programs are."""
    return {**_account(), "PATH": default_path()}


def default_path() -> str:
    """Where programs are searched for: first next to this interpreter, then where the system has them."""
    return os.pathsep.join([str(Path(sys.executable).parent), SYSTEM_PATH])


def _account() -> dict[str, str]:
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a user without an account, as containers may have
        return {"HOME": "/", "USER": str(os.getuid()), "LOGNAME": str(os.getuid())}
    found = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return {name: value for name, value in found.items() if value}
