from __future__ import annotations

import socket
from contextlib import closing

import pytest

from consumerd.demo import ports
from consumerd.demo.errors import ChildError
from consumerd.demo.ports import LOOPBACK, RANGE_VARIABLE, PortSequence, free_ports, keep_to, usable_ports

FIRST = usable_ports()[0]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> range:
    """This process picks from eight ports only, for the test."""
    few = range(FIRST, FIRST + 8)
    monkeypatch.setattr(ports, "_sequences", [])
    keep_to(few)
    return few


def test_picks_no_port_again_before_all_others() -> None:
    sequence = PortSequence(range(20_000, 20_050))
    rounds = [[sequence.next() for _ in range(50)] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert sorted(rounds[0]) == list(range(20_000, 20_050))


def test_port_of_a_server_that_is_down_is_not_picked_while_there_are_others(few: range) -> None:
    (down,) = free_ports(1)
    others = [port for _ in few[1:] for port in free_ports(1)]
    assert sorted([down, *others]) == list(few)
    assert free_ports(1) == [down], "no other one is left"


def test_skips_ports_on_which_somebody_listens(few: range) -> None:
    with closing(socket.create_server((LOOPBACK, few[3]))):
        assert sorted(free_ports(7)) == [port for port in few if port != few[3]]
        with pytest.raises(ChildError, match=f"no free TCP port was found on 127.0.0.1 between {few[0]} and {few[-1]}"):
            free_ports(8)


def test_environment_names_the_ports_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANGE_VARIABLE, "20000-20099")
    assert usable_ports() == range(20_000, 20_100)
    monkeypatch.delenv(RANGE_VARIABLE)
    assert len(usable_ports()) > 1000
    for wrong in ("", "20000", "20099-20000", "0-1", "1-65536", "a-b"):
        monkeypatch.setenv(RANGE_VARIABLE, wrong)
        with pytest.raises(ChildError, match=f"LOOPBACK_PORTS is '{wrong}': set it to the first and the last port"):
            usable_ports()
