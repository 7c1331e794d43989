"""`host:port` is read in one way everywhere."""

from pathlib import Path

import pytest

from consumerd.base.address import format_address, parse_address, parse_addresses, split_addresses
from consumerd.base.errors import ConfigError

SOURCE = Path(__file__).parents[3] / "consumerd"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("kafka:1", ("kafka", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%2]:9092", ("fe80::1%2", 9092)),
    ],
)
def test_reads_what_it_writes(text: str, address: tuple[str, int]) -> None:
    assert parse_address(f" {text} ") == address
    assert format_address(*address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kafka",
        ":9092",
        "kafka:",
        "kafka:x",
        "kafka:0",
        "kafka:65536",
        "::1:9092",
        "[]:1",
        "[::1:1",
        "k:\u0661",
        "k:-1",
    ],
)
def test_rejects_texts_that_are_not_addresses(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^bootstrap: .* is not of the form host:port, such as kafka1:9092 or \[::1\]"
    ):
        parse_address(text, "bootstrap")


def test_rejects_a_port_of_thousands_of_digits() -> None:
    with pytest.raises(ConfigError, match="is not of the form host:port"):
        parse_address("kafka:" + "1" * 5000)


def test_rejects_a_text_in_place_of_a_list() -> None:
    with pytest.raises(ConfigError, match=r'bootstrap must be a list of brokers: .*, \["kafka1:9092"\]'):
        parse_addresses("kafka1:9092", "bootstrap")
    assert parse_addresses(split_addresses(["a:1, b:2", "c:3"])) == [("a", 1), ("b", 2), ("c", 3)]


def test_nobody_else_parses_addresses() -> None:
    own = {
        "base/address.py",
        "base/settings/properties.py",
        "net/client/sasl.py",
        "net/zk/acl.py",
        "storage/broker/config.py",
        "net/zk/connect_string.py",
    }
    found = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if 'rpartition(":")' in file.read_text("utf-8") or 'rsplit(":"' in file.read_text("utf-8")
    }
    assert found <= own, f"use consumerd.base.address: {found - own}"
