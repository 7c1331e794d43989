import socket
from pathlib import Path

from consumerd.daemon.notify import READY, notify, status


def test_nothing_is_sent_where_nobody_listens() -> None:
    assert notify(READY, environment={}) is False


def test_assignments_go_out_as_one_datagram(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        assert notify(READY, status("owning\n3"), environment={"NOTIFY_SOCKET": str(path)})
        assert manager.recv(100) == b"READY=1\nSTATUS=owning 3"


def test_abstract_sockets_start_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0consumerd-test-notify")
        assert notify(READY, environment={"NOTIFY_SOCKET": "@consumerd-test-notify"})
        assert manager.recv(100) == b"READY=1"


def test_a_manager_that_is_gone_is_survived(tmp_path: Path) -> None:
    assert notify(READY, environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}) is False
