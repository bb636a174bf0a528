"""What the code of a job shows before it runs: whether it imports geminid, or runs code that is not looked at.

Python files are parsed, with the modules beside them that they import. Of a shell script only its words are looked at.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Scripts and modules are read up to this size.
MOST_SCRIPT_BYTES = 1 << 20

#: Modules of a job that are read at most.
MOST_MODULES = 200

#: Libraries that are known not to call ``geminid.init()``.
COMMON_LIBRARIES = frozenset(
    [
        "PIL",
        "accelerate",
        "aiohttp",
        "albumentations",
        "boto3",
        "click",
        "cv2",
        "datasets",
        "deepspeed",
        "einops",
        "fsspec",
        "gymnasium",
        "h5py",
        "httpx",
        "huggingface_hub",
        "hydra",
        "jax",
        "joblib",
        "lightning",
        "lightning_fabric",
        "matplotlib",
        "mlflow",
        "msgspec",
        "networkx",
        "nltk",
        "numba",
        "numpy",
        "omegaconf",
        "optax",
        "optuna",
        "pandas",
        "peft",
        "polars",
        "psutil",
        "pyarrow",
        "pydantic",
        "pytest",
        "pytorch_lightning",
        "ray",
        "regex",
        "requests",
        "rich",
        "safetensors",
        "scipy",
        "seaborn",
        "sentencepiece",
        "sklearn",
        "spacy",
        "sympy",
        "tensorboard",
        "tensorboardX",
        "tensorflow",
        "tiktoken",
        "timm",
        "tokenizers",
        "torch",
        "torch_geometric",
        "torchaudio",
        "torchdata",
        "torchmetrics",
        "torchtext",
        "torchvision",
        "tqdm",
        "transformers",
        "triton",
        "trl",
        "typer",
        "typing_extensions",
        "wandb",
        "webdataset",
        "xgboost",
        "yaml",
    ]
)

#: Programs that start processes of their own, in which ``geminid.init()`` has no place.
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec"})

#: Programs that start other programs, which may be Python.
WRAPPERS = frozenset({"conda", "hatch", "make", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv"})

#: Shells.
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})

#: Words of a shell script that start something which may be Python: an interpreter, a file, a wrapper, a variable.
_MAY_BE_PYTHON = re.compile(
    r"\b(?:python[0-9.]*|" + "|".join(sorted(WRAPPERS)) + r")\b|\.(?:py|sh)\b"
    r"|(?:^|[;&|]|\b(?:exec|then|do|else)\b)\s*\"?\$[{(@\w]",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, in words; whether the training library is used, and whether there is code that was not seen."""

    why: str
    uses_library: bool = False
    is_opaque: bool = False


@dataclass(slots=True)
class _Imports:
    """What a script and the modules beside it import: ``user`` is the first module that imports geminid."""

    folder: Path
    user: str | None = None
    unseen: str | None = None
    _read: set[Path] = field(default_factory=set)

    def follow(self, name: str, source: str, package: Path) -> None:
        """Look at the code of a module in the folder ``package``, and at what it imports."""
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for imported, level in _imported(tree):
            if self.user is not None:
                return
            if level == 0 and imported.partition(".")[0] == "geminid":
                self.user = name
                return
            self._follow_import(imported, package if level > 0 else self.folder, level)

    def _follow_import(self, imported: str, base: Path, level: int) -> None:
        for _ in range(level - 1):
            base = base.parent
        files = _files_of(imported, base)
        for file in files:
            if file not in self._read and len(self._read) < MOST_MODULES:
                self._read.add(file)
                if (source := read_text(file)) is not None:
                    self.follow(file.name, source, file.parent)
        top = imported.partition(".")[0]
        if not files and not level and top not in sys.stdlib_module_names and top not in COMMON_LIBRARIES:
            self.unseen = self.unseen or top


def look_at_python(name: str, source: str, folder: Path) -> Findings:
    """What Python code shows whose modules are looked for in a folder."""
    found = _Imports(folder)
    found.follow(name, source, folder)
    if found.user == name:
        return Findings(f"{name} imports geminid", uses_library=True)
    if found.user is not None:
        return Findings(f"{found.user}, which {name} imports, imports geminid", uses_library=True)
    if found.unseen is not None:
        return Findings(f"{name} imports {found.unseen}, whose code is not looked at", is_opaque=True)
    return Findings(f"{name} does not import geminid")


def look_at_program(command: Sequence[str], folder: Path, search_path: str | None) -> Findings:
    """What can be said of a command that is not an interpreter of Python with a script."""
    words = list(command)
    if words and Path(words[0]).name == "env":
        words = words[1:]
        while words and "=" in words[0]:
            words = words[1:]
    if not words:
        return Findings("its command names no program")
    name = Path(words[0]).name
    if name.startswith("python"):
        return Findings(f"{name} runs no script")
    if name in LAUNCHERS:
        return Findings(f"{name} starts processes of its own")
    if name in SHELLS:
        return _look_at_shell(name, words[1:], folder)
    if name in WRAPPERS:
        return Findings(f"what {name} starts is not looked at", is_opaque=True)
    path = words[0] if "/" in words[0] else shutil.which(words[0], path=search_path) or words[0]
    head = read_text(folder / path, most=4096) or ""
    first = head.partition("\n")[0]
    if first.startswith("#!") and "python" in first:
        return look_at_python(name, read_text(folder / path) or "", (folder / path).parent)
    if first.startswith("#!") and any(Path(word).name in SHELLS for word in first[2:].split()):
        return _look_at_text(name, read_text(folder / path) or "")
    return Findings(f"{name} is not Python")


def _look_at_shell(shell: str, words: Sequence[str], folder: Path) -> Findings:
    """What a shell runs: the text after ``-c``, or a script."""
    for number, word in enumerate(words):
        if word.startswith("-") and "c" in word[1:] and not word.startswith("--"):
            return _look_at_text(f"{shell} -c", "\n".join(words[number + 1 : number + 2]))
        if not word.startswith(("-", "+")):
            text = read_text(folder / word)
            return Findings(f"{word} cannot be read") if text is None else _look_at_text(Path(word).name, text)
    return Findings(f"{shell} runs no script")


def _look_at_text(name: str, text: str) -> Findings:
    """What the text of a shell script shows; comments do not count."""
    code = re.sub(r"(?m)(?:^|\s)#.*$", "", text)
    found = _MAY_BE_PYTHON.search(code)
    if found is None:
        return Findings(f"{name} runs no Python")
    word = found.group().strip(' \t\n;&|"')
    return Findings(f"{name} may run Python ({word}), which is not looked at", is_opaque=True)


def _imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The modules that code imports, with the level of relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module:
                yield module, node.level
            if node.level or module:  # what is imported may be a module of the package
                dot = "." if module else ""
                yield from ((f"{module}{dot}{alias.name}", node.level or -1) for alias in node.names)


def _files_of(module: str, base: Path) -> list[Path]:
    """The files of a module and of the packages that it is in, if they are in a folder."""
    parts = module.split(".")
    found: list[Path] = []
    for count in range(1, len(parts) + 1):
        path = base.joinpath(*parts[:count])
        found += filter(Path.is_file, (path.with_name(path.name + ".py"), path / "__init__.py"))
    return found


def read_text(file: Path, most: int = MOST_SCRIPT_BYTES) -> str | None:
    """The beginning of a file; None if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return opened.read(most).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
