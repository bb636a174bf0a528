"""What processes find in their environment when nobody has said anything: nothing of whoever started this one.

The environment of a service has its operator's secrets, and no job is to see them. So processes of jobs do not inherit:
who they run as comes from the account database, and everything else from whoever submitted the job.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

#: Where programs are, besides those of this interpreter.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment() -> dict[str, str]:
    """Who a process runs as, and where programs are: what every process has."""
    return {**_account(), "PATH": default_path()}


def default_path() -> str:
    """Where programs are looked for: first where this interpreter is, then where the system has them."""
    return os.pathsep.join([str(Path(sys.executable).parent), SYSTEM_PATH])


def _account() -> dict[str, str]:
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a user without an account, as containers may have
        return {"HOME": "/", "USER": str(os.getuid()), "LOGNAME": str(os.getuid())}
    found = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return {name: value for name, value in found.items() if value}
