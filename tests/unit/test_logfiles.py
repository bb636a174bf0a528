"""Logs: whoever reads or follows them gets every byte once, also while they are put aside."""

from __future__ import annotations

import os
import threading

import pytest

from geminid.process import logfiles
from geminid.process.logfiles import LogReader, rotate


@pytest.fixture(autouse=True)
def _always_look(monkeypatch):
    monkeypatch.setattr(logfiles, "CACHE_S", -1.0)


def everything(reader: LogReader) -> bytes:
    return b"".join(reader.read())


def test_a_follower_gets_every_line_once_although_the_log_is_put_aside(tmp_path):
    log = tmp_path / "out.log"
    with log.open("ab", buffering=0) as writer:
        reader, heard, written = LogReader(tmp_path), b"", b""
        reader.start(None)
        for number in range(300):
            line = f"line {number} {'x' * (number % 50)}\n".encode()
            writer.write(line)
            written += line
            if number % 7 == 0:
                heard += everything(reader)
            if number % 40 == 39:
                rotate(tmp_path, 1000)
        heard += everything(reader)
    assert heard == written
    assert everything(reader) == b""
    assert log.stat().st_size < 3000
    late = LogReader(tmp_path)
    late.start(None)
    told = everything(late)
    assert written.endswith(told)  # what was put aside last, and what came since
    assert len(told) > log.stat().st_size
    for lines in (0, 1, 3, 60):  # the last of them were put aside
        late.start(lines)
        assert everything(late) == b"".join(written.splitlines(keepends=True)[len(written.splitlines()) - lines :])


def test_lines_stay_whole_and_in_order_while_a_writer_does_not_stop(tmp_path):
    """A thread appends as fast as it can while its log is put aside again and again, far more often than in earnest."""
    log, lines = tmp_path / "out.log", 20_000
    log.touch()

    def write() -> None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        for number in range(lines):
            os.write(file, b"%08d\n" % number)
        os.close(file)

    reader, heard = LogReader(tmp_path), b""
    reader.start(None)
    writing = threading.Thread(target=write)
    writing.start()
    while writing.is_alive():
        heard += everything(reader)
        rotate(tmp_path, 10_000)
        heard += everything(reader)
    with log.open("ab") as file:  # what came last may have come in the instant of the change-over, which loses it
        file.write(b"%08d\n" % lines)
    heard += everything(reader)
    numbers = [int(line) for line in heard.split()]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == lines


def test_several_workers_are_named_and_one_can_be_chosen(tmp_path):
    for worker in ("w10", "w2", "w1"):
        (tmp_path / f"{worker}.log").write_text(f"of {worker}\n")
    assert everything(LogReader(tmp_path)).decode() == ("==> w1 <==\nof w1\n==> w2 <==\nof w2\n==> w10 <==\nof w10\n")
    reader = LogReader(tmp_path, "w2")
    assert everything(reader) == b"of w2\n"
    (tmp_path / "w3.log").write_text("not asked for")
    assert everything(reader) == b""
    assert everything(LogReader(tmp_path / "nowhere")) == b""


@pytest.mark.parametrize("size", [0, 5])
def test_small_logs_stay(tmp_path, size):
    (tmp_path / "out.log").write_bytes(b"x" * size)
    rotate(tmp_path, 5)
    assert (tmp_path / "out.log").stat().st_size == size
    assert len(list(tmp_path.iterdir())) == 1


def test_of_a_burst_only_the_end_is_kept_and_followers_go_on_there(tmp_path, monkeypatch):
    monkeypatch.setattr(logfiles, "MAX_LOG_BYTES", 1 << 16)
    log = tmp_path / "out.log"
    reader = LogReader(tmp_path)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"begin\n")
        reader.start(None)
        assert everything(reader) == b"begin\n"
        writer.write(b"x" * (1 << 22) + b"y" * (1 << 15))
        rotate(tmp_path, 1 << 16)
        writer.write(b"end\n")
    assert logfiles.aside(log).stat().st_blocks * 512 <= 1 << 17
    kept = b"x" * (1 << 15) + b"y" * (1 << 15) + b"end\n"
    assert everything(reader) == kept
    late = LogReader(tmp_path)
    late.start(None)
    assert everything(late) == kept
