"""Fetch the page's libraries again: ``python -m geminid.dashboard.update_vendor``, with npm installed.

They are copied as ES modules whose imports name files beside them, with their licences. Change a version here, run it,
run ``tests/e2e/test_dashboard*.py``, and commit what it wrote.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

VENDOR = Path(__file__).parent / "static" / "vendor"

#: Packages, with the files that are taken from each and their names here.
PACKAGES = {
    "preact@11.2.0": {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js"},
    "htm@3.1.1": {"dist/htm.mjs": "htm.js"},
    "uplot@1.6.32": {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
}

#: What is changed in a file.
REWRITES: dict[str, Callable[[str], str]] = {
    "hooks.js": lambda text: text.replace('from"preact"', 'from"./preact.js"'),
    "uplot.js": lambda text: f"{text.rstrip()}\nexport default uPlot;\n",
}


def main() -> None:
    """Fetch and copy all packages."""
    VENDOR.mkdir(parents=True, exist_ok=True)
    licences = []
    for package, names in PACKAGES.items():
        files = packed(package)
        for source, name in names.items():
            text = files[f"package/{source}"].decode()
            text = "\n".join(line for line in text.splitlines() if not line.startswith("//# sourceMappingURL"))
            (VENDOR / name).write_text(REWRITES.get(name, str)(text).rstrip() + "\n", encoding="utf-8")
        licences.append(f"{package}\n\n{files['package/LICENSE'].decode().strip()}\n")
    (VENDOR / "LICENCES.txt").write_text("\n---\n\n".join(licences), encoding="utf-8")


def packed(package: str) -> dict[str, bytes]:
    """The files of a package, as npm has them."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True, check=True
        )
        data = (Path(folder) / done.stdout.strip().splitlines()[-1]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        opened = ((one.name, archive.extractfile(one)) for one in archive.getmembers() if one.isfile())
        return {name: file.read() for name, file in opened if file is not None}


if __name__ == "__main__":
    main()
