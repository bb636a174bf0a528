"""Tests are skipped for the reasons that ``requirements.py`` lists, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from requirements import needs_peers, slow

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parents[1]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty test suite with the settings of this one."""
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    return pytester


def test_data_that_is_not_there_and_slow_tests_are_skipped_with_the_reason(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMINID_TEST_SLOW", raising=False)
    suite.makepyfile("""
        import pytest

        @pytest.mark.needs_peers("no/such/file")
        def test_of_peers():
            raise AssertionError

        @pytest.mark.slow("an hour")
        def test_that_is_slow():
            raise AssertionError

        @pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.needs_peers("no/such/file"))])
        def number(request):
            return request.param

        def test_of_parameters(number):
            assert number == 1
    """)
    result = suite.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines_random(
        ["*the peers' data is not at shared/peers/no/such/file", "*takes an hour: set GEMINID_TEST_SLOW=1"]
    )


@pytest.mark.parametrize(
    "body",
    [
        "import pytest\ndef test_it(): pytest.skip('not today')",
        "import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass",
        "import pytest\n@pytest.mark.skipif(True, reason='not today')\ndef test_it(): pass",
        "import pytest\ndef test_it(): pytest.importorskip('no_such_package')",
    ],
    ids=["skip", "mark.skip", "mark.skipif", "importorskip"],
)
def test_a_test_that_is_skipped_for_another_reason_fails(suite: pytest.Pytester, body: str) -> None:
    suite.makepyfile(body)
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*are listed in tests/requirements.py*"])


@pytest.mark.parametrize(
    "body", ["pytest.importorskip('no_such_package')", "pytest.skip('not today', allow_module_level=True)"]
)
def test_a_module_that_skips_itself_fails(suite: pytest.Pytester, body: str) -> None:
    suite.makepyfile(f"import pytest\n{body}\ndef test_it(): pass")
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*are listed in tests/requirements.py*"])


def test_requirements_that_are_met_give_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINID_TEST_SLOW", "1")
    assert slow("an hour") is None
    assert needs_peers() is None
