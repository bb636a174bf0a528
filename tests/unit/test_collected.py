"""Logs that are brought here from other machines: nothing twice, nothing lost, whoever has written to them before."""

import contextlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.process.logfiles import rotate
from geminid.serve.executors.collected import Collected


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


def test_what_does_not_come_is_told_in_the_log(tmp_path):
    log = tmp_path / "out.log"
    one = Collected("j1/out.1", log)
    one.take(0, b"first\n")
    one.take(1_000_006, b"last\n")
    again = Collected("j1/out.1", log)
    again.recall()
    assert again.bytes == 1_000_011
    again.take(1_000_006, b"last\nend\n")
    assert log.read_bytes() == b"first\n\n==> 1000000 bytes are left out here <==\nlast\nend\n"


class Mortal(Collected):
    """Dies when it is to write down for the so-manieth time how much is here."""

    lives = 0

    def _note(self, size: int) -> None:
        if self.lives == 0:
            raise KeyboardInterrupt
        self.lives -= 1
        super()._note(size)


@settings(max_examples=examples(100))
@given(data=st.data())
def test_services_that_end_at_any_moment_bring_every_byte_once_that_is_not_left_out(tmp_path_factory, data):
    log = tmp_path_factory.mktemp("logs") / "out.log"
    expected, gaps = b"", 0
    for attempt in range(2):
        first, last = (bytes(data.draw(st.lists(st.integers(97, 122), min_size=1, max_size=20))) for _ in range(2))
        between = data.draw(st.sampled_from([0, 1000, 10**9]))  # was printed as well, and is not kept there
        here = 0
        while here < len(first) + between + len(last):
            collected = Mortal(f"j1/out.{attempt}", log)
            collected.recall()
            collected.lives = data.draw(st.sampled_from([100, 4, 3, 2, 1, 0]))
            with contextlib.suppress(KeyboardInterrupt):
                while (here := collected.bytes) < len(first) + between + len(last):
                    kept, at = (first, 0) if here < len(first) else (last, len(first) + between)
                    begin = data.draw(st.integers(0, max(0, here - at)))  # a piece of it may be here already
                    end = data.draw(st.integers(max(begin, here - at) + 1, len(kept)))
                    collected.take(at + begin, kept[begin:end])
        expected += first + last
        gaps += between > 0
    said, lines = re.subn(rb"\n==> \d+ bytes are left out here <==\n", b"", log.read_bytes())
    assert said == expected
    assert lines >= gaps
