"""What one supervisor leaves to the next."""

import pytest

from geminid.supervise.handover import Handover

LEFT = Handover(
    token="secret",
    address="unix:/x/control",
    generation=3,
    members=("w1", "w2"),
    slots=("a", "b"),
    workers={"w1": {"slot": "a", "standing": "member", "pid": 7, "started_at": 9}},
)


def test_what_is_written_is_read_and_nobody_else_may(tmp_path):
    assert Handover.read(tmp_path) is None
    LEFT.write(tmp_path)
    assert Handover.read(tmp_path) == LEFT
    (written,) = tmp_path.iterdir()
    assert written.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "x", "members": [], "slots": []}'])
def test_what_another_version_left_is_passed_over_with_a_warning(tmp_path, capsys, text):
    (tmp_path / "supervisor.json").write_text(text)
    assert Handover.read(tmp_path) is None
    assert "is not used" in capsys.readouterr().err
