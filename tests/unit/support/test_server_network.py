"""The network of servers delivers, cuts in each direction alone, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.server_network import NoNetworkError, ServerNetwork

_SECONDS = 20.0
#: Takes datagrams until one says `end`, and prints all.
_RECEIVER = """
import socket, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], 4000))
print("ready", flush=True)
while (data := taken.recv(100)) != b"end":
    print(data.decode(), flush=True)
"""
_SENDER = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 4000))
"""


@pytest.fixture
def network() -> Iterator[ServerNetwork]:
    """Skips where namespaces are not allowed, also with CI=true: they take root."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(ServerNetwork(2))
        except NoNetworkError as error:
            pytest.skip(f"{error} (this also skips with CI=true)")
        yield made


def test_cuts_each_direction_alone_and_heals(network: ServerNetwork, tmp_path: Path) -> None:
    pythons = [network.wrapper(number, sys.executable, tmp_path / f"python-{number}") for number in range(2)]

    def send(sender: int, text: str) -> None:
        receiver = network.hosts[1 - sender]
        subprocess.run([pythons[sender], "-c", _SENDER, receiver, text], check=True, timeout=_SECONDS)

    receivers = [
        subprocess.Popen([python, "-c", _RECEIVER, network.hosts[number]], stdout=subprocess.PIPE, text=True)
        for number, python in enumerate(pythons)
    ]
    try:
        for each in receivers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        send(0, "before")
        network.mute(0)
        send(0, "mute")
        send(1, "to the mute one")
        network.isolate(1)
        network.heal(0)
        send(0, "isolated")
        send(1, "isolated")
        network.heal()
        for sender in (0, 1):
            send(sender, "healed")
            send(sender, "end")
        assert [each.communicate(timeout=_SECONDS)[0].splitlines() for each in receivers] == [
            ["to the mute one", "healed"],
            ["before", "healed"],
        ]
    finally:
        for each in receivers:
            each.kill()
            each.wait()


def test_leaves_nothing_behind(network: ServerNetwork) -> None:
    name = network.name
    assert name in _things()
    network.__exit__(None, None, None)
    assert name not in _things()


def _things() -> str:
    """All namespaces, and the interfaces of this one."""
    commands = (["ip", "netns", "list"], ["ip", "-brief", "link"])
    return "".join(subprocess.run(each, check=True, capture_output=True, text=True).stdout for each in commands)
