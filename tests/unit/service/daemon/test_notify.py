import socket
from pathlib import Path

from consumerd.service.daemon.notify import READY, notify, status


def test_sends_nothing_without_a_service_manager() -> None:
    assert notify(READY, environment={}) is False


def test_sends_assignments_as_one_datagram(tmp_path: Path) -> None:
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


def test_survives_a_vanished_service_manager(tmp_path: Path) -> None:
    assert notify(READY, environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}) is False
