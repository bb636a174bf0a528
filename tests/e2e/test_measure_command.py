"""``geminid measure`` as a user runs it: a real process that measures real training, and leaves nothing running."""

import json
import math
import subprocess
import sys
import time

import pytest
from sessions import processes_of_session

pytestmark = pytest.mark.xdist_group("measure")  # one worker measures what all these look at

GEMINID = [sys.executable, "-m", "geminid"]


def run(arguments: list[str]) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run to the end in a session of its own; the result, and whatever of it is still running some time later."""
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        out, err = process.communicate(timeout=600)
    patience = time.monotonic() + 30
    while (left := processes_of_session(process.pid)) and time.monotonic() < patience:
        time.sleep(0.1)  # helpers end when they notice that the command has
    return subprocess.CompletedProcess(arguments, process.returncode, out, err), left


@pytest.fixture(scope="module")
def demo():
    pytest.importorskip("torch")
    return run([*GEMINID, "measure", "--slots", "2", "--seconds", "6", "--json"])


@pytest.fixture(scope="module")
def result(demo):
    finished, _ = demo
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_nothing_is_left_running(demo):
    _, left = demo
    assert left == []


def test_every_configuration_was_really_measured(result):
    assert result["machine"]["slots"] == 2
    assert result["model"]["parameters"] > 1_000_000
    for point in result["points"]:
        assert point["accumulation_s"] > 0.0
        # A step does all that a pass does; a busy machine may disturb the two differently.
        assert point["step_s"] > 0.3 * point["accumulation_s"]
        assert point["timed_steps"] >= 3
        assert point["spread"] >= 0.0


def test_held_out_configurations_were_not_shown_to_the_fit(result):
    keys = {True: set(), False: set()}
    for point in result["points"]:
        keys[point["held_out"]].add((point["slots"], point["per_slot_batch"]))
    assert keys[True]
    assert not keys[True] & keys[False]
    assert {slots for slots, _ in keys[False]} == {1, 2}
    assert set(result["fits"]) == {"pollux", "geminid"}
    for name, fitted in result["fits"].items():
        assert fitted["source"] == "fitted"
        errors = [abs(point["predicted"][name]["error"]) for point in result["points"] if point["held_out"]]
        assert fitted["held_out_error"] == pytest.approx(sum(errors) / len(errors))


def test_errors_are_those_of_the_printed_predictions(result):
    for point in result["points"]:
        for predicted in point["predicted"].values():
            assert predicted["step_s"] > 0.0
            assert predicted["error"] == pytest.approx(predicted["step_s"] / point["step_s"] - 1.0)


def test_the_noise_scale_is_measured(result):
    noise = result["noise"]
    assert noise["steps"] > 0
    assert noise["variance"] > 0.0
    assert noise["scale"] > 0.0
    assert math.isfinite(noise["scale"])
    assert noise["scale"] == pytest.approx(noise["initial_batch"] * noise["variance"] / noise["squared_gradient"])


def test_the_model_learns(result):
    assert result["loss"]["last"] < result["loss"]["first"]


def test_the_outlook_is_consistent(result):
    outlook = result["outlook"]
    assert [row["slots"] for row in outlook] == [1, 2, 4]
    assert [row["measured"] for row in outlook] == [True, True, False]
    for row in outlook:
        assert row["goodput"] == pytest.approx(row["throughput"] * row["efficiency"])
        assert row["speedup"] == pytest.approx(row["goodput"] / outlook[0]["goodput"])
        assert 0.0 < row["efficiency"] <= 1.0


def test_tables_for_people():
    pytest.importorskip("torch")
    finished, left = run([*GEMINID, "measure", "--slots", "2", "--seconds", "1"])
    assert finished.returncode == 0, finished.stderr
    assert left == []
    for words in ("held out", "Gradient noise scale", "speed-up", "What this means"):
        assert words in finished.stdout


def test_without_pytorch_one_sentence_says_how_to_install_it():
    code = "import sys; sys.modules['torch'] = None; from geminid.cli.main import main; main()"
    finished, _ = run([sys.executable, "-c", code, "measure"])
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1
    assert "pip install 'geminid[torch]'" in finished.stderr


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = (
        "import sys; from geminid.cli.main import app; app(['measure', '--help'], standalone_mode=False);"
        "heavy = {'torch', 'numpy', 'scipy'} & set(sys.modules); sys.exit(f'{heavy} imported' if heavy else 0)"
    )
    finished, _ = run([sys.executable, "-c", code])
    assert finished.returncode == 0, finished.stderr
    assert "--seconds" in finished.stdout
