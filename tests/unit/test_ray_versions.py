"""Ray's undocumented interface is used in one module, and only with versions of Ray that were tried."""

import re
from pathlib import Path

import ray

from geminid.serve.executors.ray import private

SOURCES = Path(private.__file__).parents[3]

#: Whatever of Ray is not documented.
UNDOCUMENTED = re.compile(r"ray\._private|ray\._raylet|ray\.core\b|ray\.autoscaler\.v2|ray\.experimental|internal_kv")


def test_this_version_of_ray_was_tried():
    version = ".".join(ray.__version__.split(".")[:2])
    assert version in private.VERSIONS_TRIED, (
        f"Ray {ray.__version__} was not tried with Geminid, only {', '.join(private.VERSIONS_TRIED)}: run "
        "tests/unit/test_ray*.py and tests/e2e/test_ray*.py with it, and add it to VERSIONS_TRIED in "
        "serve/executors/ray/private.py"
    )


def test_only_one_module_uses_what_ray_does_not_document():
    using = {path.name for path in SOURCES.rglob("*.py") if UNDOCUMENTED.search(path.read_text(encoding="utf-8"))}
    assert using == {"private.py"}
