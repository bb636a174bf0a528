"""Code of jobs on a node is whole, whoever discards it meanwhile."""

import threading

import pytest

from geminid.node.code import NotNeeded, UnpackedCode

FILES = ("first", "second")


class Packages:
    """Unpacks two files, and may be held between them."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.is_held, self.times = False, 0

    def __call__(self, package, folder):
        self.times += 1
        there = folder / package
        there.mkdir()
        (there / FILES[0]).touch()
        if self.is_held:
            self.is_held = False
            self.reached.release()
            self.go_on.acquire()
        there.mkdir(exist_ok=True, parents=True)  # as unpacking goes on in a folder that was removed
        (there / FILES[1]).touch()
        return there


def names(folder):
    return tuple(sorted(path.name for path in folder.iterdir()))


def test_a_package_is_unpacked_once_for_a_job_and_again_after_it_was_discarded(tmp_path):
    packages = Packages()
    code = UnpackedCode(tmp_path, packages)
    there = code.have("j1", "p", 1)
    assert (names(there), code.have("j1", "p", 2), packages.times) == (FILES, there, 1)
    assert code.have("j2", "p", 3) != there
    code.discard("j1", 4)
    assert names(tmp_path) == ("j2",)
    assert names(code.have("j1", "p", 5)) == FILES


def test_a_package_that_somebody_removed_is_unpacked_anew_and_what_its_job_removes_is_its_own_matter(tmp_path):
    code = UnpackedCode(tmp_path, Packages())
    there = code.have("j1", "p", 1)
    assert code.is_there(there)
    (there / "made-by-the-job").touch()
    (there / FILES[1]).unlink()
    assert code.have("j1", "p", 2) == there
    (there / FILES[0]).unlink()
    assert not code.is_there(there)
    again = code.have("j1", "p", 3)
    assert (again != there, names(again)) == (True, FILES)
    assert (there / "made-by-the-job").exists()  # whoever runs in it keeps what there is
    code.discard("j1", 4)
    assert not there.exists()
    assert not code.is_there(again)


def test_what_is_asked_for_again_while_it_is_unpacked_and_discarded_is_whole(tmp_path):
    packages = Packages()
    packages.is_held = True
    code, problems = UnpackedCode(tmp_path, packages), []

    def unpack():
        try:
            code.have("j1", "p", 1)
        except NotNeeded as problem:
            problems.append(problem)

    first = threading.Thread(target=unpack)
    first.start()
    packages.reached.acquire()
    code.discard("j1", 2)
    again = code.have("j1", "p", 3)
    packages.go_on.release()
    first.join()
    assert len(problems) == 1
    assert names(again) == FILES
    assert [path for path in tmp_path.glob("j1/*/*") if path != again] == []


def test_what_could_not_be_unpacked_is_unpacked_anew(tmp_path):
    def fails(package, folder):
        (folder / package).mkdir()
        raise OSError("no space left on device")

    code = UnpackedCode(tmp_path, fails)
    with pytest.raises(OSError, match="no space"):
        code.have("j1", "p", 1)
    assert list(tmp_path.glob("j1/*")) == []
    code._unpack = Packages()
    assert names(code.have("j1", "p", 2)) == FILES


def test_what_was_asked_for_later_stays_though_it_is_heard_of_first(tmp_path):
    code = UnpackedCode(tmp_path, Packages())
    first, other = code.have("j1", "p", 1), code.have("j1", "q", 2)
    assert code.have("j1", "p", 5) == first
    code.discard("j1", 4)
    assert names(first) == FILES
    assert not other.exists()
    code.discard("j1", 6)
    assert list(tmp_path.iterdir()) == []
