"""What an agent needs on its node besides Ray."""

import pytest

from geminid.serve.executors.ray.address import own_address
from geminid.serve.executors.ray.agent import make_private


def test_a_folder_where_all_may_make_one_must_be_ones_own(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    make_private(mine)
    make_private(mine)
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o770)
    with pytest.raises(PermissionError, match="nobody else can write"):
        make_private(mine)
    mine.chmod(0o700)
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(PermissionError, match="must be a folder"):
        make_private(tmp_path / "link")
    monkeypatch.setattr("os.getuid", lambda: 4711)
    with pytest.raises(PermissionError, match="of user 4711"):
        make_private(mine)


def test_workers_reach_the_service_at_an_address_that_nodes_can_reach():
    assert own_address("127.0.7.3", "127.0.7.1:6379") == "127.0.7.1"
    elsewhere = own_address("192.0.2.1", "127.0.0.1:6379")  # the head's own machine, of a cluster on a network
    assert not elsewhere.startswith("127.")
