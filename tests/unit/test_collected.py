"""Logs that are brought here from other machines: nothing twice, nothing lost, whoever has written to them before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from geminid.serve.executors.collected import Collected
from geminid.serve.logfiles import rotate


def send(collected: Collected, output: bytes, pieces: int = 3) -> None:
    """Send all of an output that is not there yet, in some pieces."""
    at = collected.bytes
    step = max(1, (len(output) - at) // pieces)
    for offset in range(at, len(output), step):
        collected.take(offset, output[offset : offset + step])


def test_the_second_try_of_a_command_loses_nothing_in_the_log_of_the_first(tmp_path):
    log = tmp_path / "out.log"
    send(Collected("j1/out.1", log), b"first try: begin, and more\n")
    second = Collected("j1/out.2", log)
    second.take(0, b"begin\n")
    again = Collected("j1/out.2", log)  # of the next service
    again.recall()
    send(again, b"begin\nend\n")
    assert log.read_bytes() == b"first try: begin, and more\nbegin\nend\n"


def test_what_was_put_aside_is_not_brought_again(tmp_path):
    log = tmp_path / "out.log"
    one = Collected("j1/out.1", log)
    send(one, b"x" * 100)
    rotate(tmp_path, 50)
    again = Collected("j1/out.1", log)
    again.recall()
    assert again.bytes == 100
    send(again, b"x" * 100 + b"y" * 10)
    assert log.read_bytes() == b"y" * 10


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_services_that_end_at_any_moment_bring_every_byte_once(tmp_path_factory, data):
    log = tmp_path_factory.mktemp("logs") / "out.log"
    expected = b""
    for attempt in range(2):
        output = bytes(data.draw(st.lists(st.integers(97, 122), min_size=1, max_size=40)))
        key = f"j1/out.{attempt}"
        collected = Collected(key, log)
        while collected.bytes < len(output):
            offset = data.draw(st.integers(0, collected.bytes))  # a piece of it may be here already
            piece = output[offset : data.draw(st.integers(offset + 1, len(output)))]
            kind = data.draw(st.sampled_from(["go on", "end before the note", "end after it"]))
            note = log.with_suffix(".here")
            before = note.read_bytes() if note.exists() else None
            new = collected.bytes == 0
            collected.take(offset, piece)
            if kind == "end before the note" and before is not None and not new:
                note.write_bytes(before)
            if kind != "go on":
                collected = Collected(key, log)
                collected.recall()
        expected += output
    assert log.read_bytes() == expected
