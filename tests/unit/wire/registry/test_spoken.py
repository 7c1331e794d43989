from __future__ import annotations

import pytest

from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.spoken import agreed_dialect, broker_dialect, member_dialect, offset_dialect

V07, V08 = Dialect.V07, Dialect.V08


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        (b"vm-1:vm:9092", V07),
        ("vm:9092", V07),
        ("vm-1:vm:9092:true", V07),
        (b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}', V08),
        ('{"version":99,"endpoints":["NEW://h:1"]}', V08),
        (None, None),
        (b"", None),
        (b"\xff", None),
        (b"damaged", None),
        (b'{"version":1}', None),
        ("{" * 100_000, None),
    ],
)
def test_reads_and_writes_brokers_as_recorded(text: bytes | str | None, spoken: Dialect | None) -> None:
    assert broker_dialect(text) is spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ('{ "t": 1 }', V07),
        (b'{"t":1}', V07),
        ("*1*t.*", V07),
        ("!2!t", V07),
        ('{"version":1,"subscription":1}', V07),
        ('{"version":1,"subscription":{"og.t1":1},"pattern":"static","timestamp":"1795263220954"}', V08),
        (b'{"version":1,"subscription":{},"pattern":"static","timestamp":"1"}', V08),
        (None, None),
        ("{ }", None),
        ('{"t": 0}', None),
        ('{"version":1,"subscription":{"t":0},"pattern":"static"}', None),
        ("{broken", None),
        ("[" * 100_000, None),
    ],
)
def test_decides_by_members(text: bytes | str | None, spoken: Dialect | None) -> None:
    assert member_dialect(text) is spoken


@pytest.mark.parametrize(
    ("name", "spoken"), [("0-3", V07), ("10", V08), ("0", V08), ("", None), ("01", None), ("x", None), ("\u0663", None)]
)
def test_decides_by_names_of_offsets(name: str, spoken: Dialect | None) -> None:
    assert offset_dialect(name) is spoken


def test_rejects_contradicting_dialects() -> None:
    assert agreed_dialect({}, "a place") is None
    assert agreed_dialect({"broker 0": None}, "a place") is None
    assert agreed_dialect({"broker 0": None, "broker 1": V07, "member a": V07}, "a place") is V07
    with pytest.raises(
        DialectError,
        match=r"^member a is registered in the format of Kafka 0\.7 and broker 1 in that of .* share a place: ",
    ):
        agreed_dialect({"broker 1": V08, "broker 2": V08, "member a": V07, "member b": V07}, "a place")
