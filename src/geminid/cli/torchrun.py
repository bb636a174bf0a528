"""How many slots a command for ``torchrun`` needs, as far as its words show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: Modules that are ``torchrun``, for ``python -m``.
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})

#: The option that says how many processes there are on each node; torchrun takes dashes and underscores.
PROCESSES = "--nproc-per-node"

#: The option that says how many nodes there are.
NODES = "--nnodes"


def processes_asked_for(command: Sequence[str]) -> str | None:
    """How many processes a command has torchrun start, in its own words, such as ``2`` or ``gpu``; None if it has not.

    With several nodes it is None, too: what that means for slots is for the submitter to say.
    """
    words = list(command)
    if words and Path(words[0]).name == "torchrun":
        options = words[1:]
    elif len(words) > 2 and Path(words[0]).name.startswith("python") and words[1] == "-m" and words[2] in MODULES:
        options = words[3:]
    else:
        return None
    given: dict[str, str] = {}
    for at, word in enumerate(options):
        if word.endswith(".py"):  # the script, and then its own options
            break
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in (PROCESSES, NODES):
            given[name] = value if equals else next(iter(options[at + 1 :]), "")
    return given.get(PROCESSES) if given.get(NODES, "1") in ("1", "1:1") else None
