from __future__ import annotations

from collections.abc import Callable

import pytest

from consumerd.base.errors import ExitCode
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.values import (
    MAX_OFFSET,
    MAX_PARTITIONS,
    RegisteredBroker,
    configured_consumer_id,
    format_broker,
    format_offset,
    format_owner,
    format_partition_count,
    make_consumer_id,
    make_creator_id,
    parse_broker,
    parse_broker_id,
    parse_offset,
    parse_owner,
    parse_partition_count,
)


@pytest.mark.parametrize(
    ("data", "broker"),
    [
        (
            b"127.0.0.1-1795263232660:127.0.0.1:29192",
            RegisteredBroker(7, "127.0.0.1-1795263232660", "127.0.0.1", 29192),
        ),
        ("kafka1:9092", RegisteredBroker(7, "", "kafka1", 9092)),
        ("vm-1:vm:9092:true", RegisteredBroker(7, "vm-1", "vm", 9092)),
        ("vm-1:vm:9092:false", RegisteredBroker(7, "vm-1", "vm", 9092)),
        ("fe80##1-1:fe80##1:9092:true", RegisteredBroker(7, "fe80##1-1", "fe80::1", 9092)),
    ],
)
def test_reads_brokers_in_all_their_forms(data: bytes | str, broker: RegisteredBroker) -> None:
    assert parse_broker(7, data) == broker
    assert parse_broker(7, data).address == (broker.host, broker.port)


def test_writes_brokers_as_both_documents_say() -> None:
    assert (
        format_broker(RegisteredBroker(0, make_creator_id("vm", 1795263232660), "vm", 9092))
        == "vm-1795263232660:vm:9092"
    )
    assert format_broker(RegisteredBroker(0, "", "vm", 9092)) == "vm:9092"


def test_rejects_writing_a_host_with_colons() -> None:
    for broker in (RegisteredBroker(0, "vm-1", "::1", 9092), RegisteredBroker(0, "::1-1", "vm", 9092)):
        with pytest.raises(RegistryError, match="announce a host name or an IPv4 address"):
            format_broker(broker)


@pytest.mark.parametrize(
    "broker",
    [RegisteredBroker(0, "c", "", 9092), RegisteredBroker(0, "c", "h", 0), RegisteredBroker(0, "c", "h", 65536)],
)
def test_rejects_writing_a_broker_without_an_address(broker: RegisteredBroker) -> None:
    with pytest.raises(RegistryError, match="cannot be registered"):
        format_broker(broker)


@pytest.mark.parametrize(
    "data",
    [None, b"", b"host", b"a:b:c", b"a:b:c:d", b"a:b:1:true:x", b"a::1", b"a:h:", b"a:h:0", b"a:h:65536", b"a:h:-1",
     b"a:h:1x", b"a:h h:1", b"a:h\n:1", b"\xff:h:1", b"a:h:\xd9\xa1"],
)  # fmt: skip
def test_rejects_invalid_brokers(data: bytes | None) -> None:
    with pytest.raises(RegistryError):
        parse_broker(7, data)


def test_names_a_broker_of_a_later_kafka() -> None:
    with pytest.raises(DialectError, match=r"broker 7 .* 0\.8 or later"):
        parse_broker(7, b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}')


@pytest.mark.parametrize(
    ("parse", "good", "bad"),
    [
        (parse_offset, {"0": 0, "9223372036854775807": MAX_OFFSET}, ["-1", "9223372036854775808", "9" * 5000]),
        (parse_partition_count, {"1": 1, "4": 4}, ["0", "-1", str(MAX_PARTITIONS + 1)]),
        (parse_broker_id, {"0": 0, "2147483647": 2147483647}, ["2147483648", "partitions"]),
    ],
)
def test_reads_numbers(parse: Callable[[str], int], good: dict[str, int], bad: list[str]) -> None:
    for text, number in good.items():
        assert parse(text) == number
    for text in [*bad, "", " 1", "1 ", "+1", "1.0", "0x1", "\u0661", "\u00b2", "1\n"]:
        with pytest.raises(RegistryError):
            parse(text)


def test_writes_plain_numbers() -> None:
    assert (format_offset(0), format_offset(MAX_OFFSET)) == ("0", "9223372036854775807")
    assert format_partition_count(4) == "4"
    for number in (-1, MAX_OFFSET + 1):
        with pytest.raises(RegistryError):
            format_offset(number)
    for number in (0, MAX_PARTITIONS + 1):
        with pytest.raises(RegistryError):
            format_partition_count(number)


def test_distinguishes_null_data_from_foreign_bytes() -> None:
    with pytest.raises(RegistryError, match="has no data"):
        parse_offset(None)
    with pytest.raises(RegistryError, match="not UTF-8"):
        parse_offset(b"\x80")
    with pytest.raises(RegistryError, match="no peer writes more"):
        parse_offset(b"1" * 2_000_000)


def test_reads_and_writes_owners() -> None:
    assert parse_owner("g_vm-1795263284806-3365085c-12") == ("g_vm-1795263284806-3365085c", 12)
    assert format_owner("g_vm-1795263284806-3365085c", 12) == "g_vm-1795263284806-3365085c-12"
    for text in ("", "g_a", "-1", "g_a-", "g_a-x", "g_a--", None):
        with pytest.raises(RegistryError):
            parse_owner(text)
    with pytest.raises(RegistryError):
        format_owner("g_a", -1)


def test_makes_consumer_ids() -> None:
    assert make_consumer_id("g", "vm", 1795263284806, 0x3365085CDEADBEEF) == "g_vm-1795263284806-3365085c"
    # Eight digits also where Java's toHexString would shift the later ones up.
    assert make_consumer_id("g", "vm", 1, 0x00000001DEADBEEF) == "g_vm-1-00000001"
    assert configured_consumer_id("grp2", "c1") == "grp2_c1"
    with pytest.raises(RegistryError):
        configured_consumer_id("g", "a/b")


def test_errors_have_the_exit_code_of_zookeeper() -> None:
    assert RegistryError.exit_code is ExitCode.ZOOKEEPER


@pytest.mark.parametrize("text", [b"{", b'{ "t": 1 }', b"{}", b"{" * 100_000, b'{"host"', b"{\xff"])
def test_damaged_json_is_not_a_broker_of_the_other_dialect(text: bytes) -> None:
    with pytest.raises(RegistryError) as raised:
        parse_broker(1, text)
    assert not isinstance(raised.value, DialectError)
    with pytest.raises(DialectError):
        parse_broker(1, b'{"version":1,"host":"h","port":1}')
