"""The documentation holds together: links and anchors resolve, paths and tests that it names exist, pages are short."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "geminid"
DOCS = sorted(ROOT.glob("docs/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS]

#: Most words, as ``wc -w`` counts them.
README_WORDS = 700
TASK_PAGE_WORDS = 600
ALL_WORDS = 22_000

_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_MARKUP = re.compile(r"[`*]|\[([^\]]*)\]\([^)]*\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def navigation() -> dict[str, list[str]]:
    """The pages of the site by section; those outside of any section under their own title."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = {}
    for section in sections:
        for title, pages in section.items():
            found[title] = [pages] if isinstance(pages, str) else [file for page in pages for file in page.values()]
    return found


def slug_on_github(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", _MARKUP.sub(r"\1", heading).lower())
    return kept.replace(" ", "-")


def slug_on_the_site(heading: str) -> str:
    """As Python-Markdown makes it."""
    ascii_only = unicodedata.normalize("NFKD", _MARKUP.sub(r"\1", heading)).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def anchors(page: Path) -> set[str]:
    """What can be linked to on a page, in the repository and on the site alike."""
    headings = _HEADING.findall(prose(page))
    return {slug_on_github(heading) for heading in headings} & {slug_on_the_site(heading) for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page's text whose file or heading does not exist."""
    broken = []
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):  # another host
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        known = found.is_file() and (not anchor or (found.suffix == ".md" and anchor in anchors(found)))
        if not known or not found.is_relative_to(ROOT):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert broken_links(page, prose(page)) == []


def test_broken_links_are_noticed() -> None:
    page = ROOT / "docs" / "README.md"
    bad = ["nowhere.md", "glossary.md#nothing", "../LICENSE/x", "#missing", "../../outside.md"]
    good = ["glossary.md#training", "service.md#options-of-geminid-up", "#tasks", "https://example.org/x"]
    text = " ".join(f"[text]({target})" for target in (*bad, *good))
    assert broken_links(page, text) == bad


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_pages_of_the_site_link_to_pages_of_the_site_only(page: Path) -> None:
    """The site has docs/ alone: other files are named, not linked to."""
    assert [target for target in _LINK.findall(prose(page)) if target.startswith("..")] == []


def test_the_navigation_has_every_page_once() -> None:
    listed = [page for pages in navigation().values() for page in pages]
    assert sorted(listed) == [page.name for page in DOCS]


# --- Length ---


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def test_the_readme_is_short() -> None:
    assert words(ROOT / "README.md") <= README_WORDS


@pytest.mark.parametrize("page", navigation()["Tasks"])
def test_task_pages_are_short(page: str) -> None:
    assert words(ROOT / "docs" / page) <= TASK_PAGE_WORDS


def test_the_documentation_is_short() -> None:
    assert sum(words(page) for page in (ROOT / "README.md", *DOCS)) <= ALL_WORDS


# --- What pages name ---


def named_paths(text: str) -> set[str]:
    """Files and folders of the repository that a text names in backticks."""
    return {
        code.rstrip("/")
        for code in _CODE.findall(text)
        if re.fullmatch(r"(src|tests|docs|benchmarks|examples)/[\w./-]+", code)
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert {path for path in named_paths(prose(page)) if not (ROOT / path).exists()} == set()


def where_to_change() -> list[tuple[str, str]]:
    """The rows of the table of CONTRIBUTING.md: what is to be changed, and where."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if not row[0].startswith("to add")]


@pytest.mark.parametrize(("what", "where"), where_to_change(), ids=[what for what, _ in where_to_change()])
def test_where_to_change_what_is_right(what: str, where: str) -> None:
    """Every place of a row exists, and every name in parentheses is in the file that stands before it."""
    places = re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", where)
    assert places
    for place, remark in places:
        path = next((base / place for base in (SOURCE, ROOT) if (base / place).exists()), None)
        assert path is not None, f"{place} does not exist"
        names = _CODE.findall(remark)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []


def test_tests_that_the_page_of_faults_names_exist() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    functions = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    text = " ".join((ROOT / "docs" / "faults.md").read_text(encoding="utf-8").split())
    in_parentheses = re.findall(r"\((`[\w.]+`(?:, `[\w.]+`)*)\)", text)
    named = [name for names in in_parentheses for name in _CODE.findall(names)]
    assert len(named) > 30
    known = {file.name for file in files}
    assert [name for name in named if name not in known and not any(name in test for test in functions)] == []


def test_every_package_is_on_the_page_of_the_architecture() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Packages")[1]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("[a-z]*.py")}
    assert {name for name in packages | modules if f"`{name}`" not in table} == set()


def test_pages_that_the_code_names_exist() -> None:
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.yaml"), *ROOT.glob("examples/*.*"), *ROOT.glob("benchmarks/*.*")]
    named = {
        (name_of(file), page)
        for file in files
        for page in re.findall(r"docs/[\w-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert {(file, page) for file, page in named if not (ROOT / page).is_file()} == set()


# --- The site ---


def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {page.name: page.read_text(encoding="utf-8") for page in (tmp_path / "site").glob("*.html")}
    assert "index.html" in pages
    loaded = r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//"
    assert [name for name, text in pages.items() if re.search(loaded, text)] == []
    sheets = (tmp_path / "site").rglob("*.css")
    assert [sheet.name for sheet in sheets if re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text("utf-8"))] == []
