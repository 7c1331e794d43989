from __future__ import annotations

from contextlib import suppress

from consumerd.base.address import format_address, parse_address
from consumerd.base.errors import ConfigError
from tests.fuzz.tracing import chosen_inputs, reached_arcs


def check(data: bytes) -> None:
    with suppress(ConfigError):
        format_address(*parse_address(data.decode()))


def test_traces_the_package_alone() -> None:
    arcs = reached_arcs(check, b"kafka1:9092")
    assert {code.co_name for code, _, _ in arcs} >= {"parse_address", "format_address"}
    assert all("consumerd" in code.co_filename for code, _, _ in arcs)
    assert arcs == reached_arcs(check, b"kafka2:9093")
    assert arcs != reached_arcs(check, b"[::1]:9092")


def test_keeps_the_shortest_input_of_those_that_reach_the_same() -> None:
    found = [b"kafka1:9092", b"k:9092", b"[::1]:9092", b"[fe80::1]:9092", b"k"]
    assert chosen_inputs(check, [], found, 8000) == [b"k", b"k:9092", b"[::1]:9092"]
    assert chosen_inputs(check, [b"kafka:1"], found, 8000) == [b"k", b"[::1]:9092"]
    assert chosen_inputs(check, [], found, 15) == [b"k", b"k:9092"]
