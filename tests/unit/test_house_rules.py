"""How large modules, constructors and classes may be, and what tests may not depend on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "geminid"
TESTS = Path(__file__).parents[1]

#: Above the line, where nothing does I/O; only modules are limited there. Everything else stands below it.
ABOVE = ("engine", "goodput", "policies", "solve")

MODULE_LINES = 500
CONSTRUCTOR_LINES = 40
ATTRIBUTES = 20
METHODS = 25

#: What is over a limit today, and by how much at most: none may grow, and one that is within its limit is taken out.
#: A new one needs a reason in the review that lets it in.
EXCEPTIONS = {
    # Records, which have as many fields as there are facts: what snapshots keep of a job,
    "serve/livejob.py: attributes of LiveJob": 34,
    # and what the interface shows of a job and of the service.
    "serve/schemas.py: attributes of Job": 37,
    "serve/schemas.py: attributes of Status": 28,
}


def measured(path: Path) -> Iterator[tuple[str, int, int]]:
    """What is limited in a module: its name in the table of exceptions, its size and the limit."""
    name = path.relative_to(SOURCE).as_posix()
    text = path.read_text(encoding="utf-8")
    yield f"{name}: lines", len(text.splitlines()), MODULE_LINES
    if name.split("/")[0] in ABOVE or "/" not in name:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield f"{name}: methods of {node.name}", len(methods), METHODS
            yield f"{name}: attributes of {node.name}", len(attributes(node)), ATTRIBUTES
            for method in methods:
                if method.name == "__init__":
                    lines = (method.end_lineno or 0) - method.lineno + 1
                    yield f"{name}: constructor of {node.name}", lines, CONSTRUCTOR_LINES


def attributes(node: ast.ClassDef) -> set[str]:
    """The names that a class declares as fields, or assigns to ``self`` in any method."""
    fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    assigned = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    return fields | assigned


def test_modules_constructors_and_classes_keep_to_their_limits() -> None:
    sizes = [one for path in sorted(SOURCE.rglob("*.py")) for one in measured(path)]
    over = {name: size for name, size, limit in sizes if size > limit}
    grown = {name: size for name, size in over.items() if size > EXCEPTIONS.get(name, 0)}
    assert not grown, "over their limits, or larger than they were; split them:" + lines_of(grown)
    settled = {name: size for name, size in EXCEPTIONS.items() if name not in over}
    assert not settled, "within their limits by now; take them out of EXCEPTIONS:" + lines_of(settled)


def lines_of(sizes: dict[str, int]) -> str:
    """As lines of the table of exceptions."""
    return "".join(f'\n    "{name}": {size},' for name, size in sizes.items())


#: Clocks whose readings depend on how busy the machine is.
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}


def test_no_test_asserts_on_seconds() -> None:
    """Speed is judged by ``geminid bench``; tests count operations, or move a clock of their own."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "waiting.py" or not any(clock in text for clock in CLOCKS):
            continue
        asserts = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
        found += [f"{path.name}:{node.lineno}" for node in asserts if not CLOCKS.isdisjoint(names_in(node))]
    assert not found, "asserts that depend on how fast this machine is"


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute that an expression mentions."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
