from __future__ import annotations

import pytest

from consumerd.registry import (
    Dialect,
    DialectError,
    RegistryError,
    broker_dialect,
    detect_dialect,
    require_v07,
    subscription_dialect,
)

OLD_BROKER = b"vm-1:vm:9092"
NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}'
OLD_MEMBERS = ['{ "t": 1 }', '{"t":1}', "*1*t.*", "!2!t", '{"version":1,"subscription":1}', "{broken", "[" * 100_000]
NEW_MEMBER = '{"version":1,"subscription":{"og.t1":1},"pattern":"static","timestamp":"1795263220954"}'


def test_brokers() -> None:
    assert broker_dialect(OLD_BROKER) is Dialect.V07
    assert broker_dialect(NEW_BROKER) is Dialect.V08
    with pytest.raises(RegistryError):
        broker_dialect(None)


def test_members() -> None:
    assert {subscription_dialect(text) for text in OLD_MEMBERS} == {Dialect.V07}
    assert subscription_dialect(NEW_MEMBER) is Dialect.V08
    assert subscription_dialect("{" * 100_000) is Dialect.V07


def test_all_together() -> None:
    assert detect_dialect([]) is None
    assert detect_dialect([OLD_BROKER], OLD_MEMBERS) is Dialect.V07
    assert detect_dialect([], [NEW_MEMBER]) is Dialect.V08
    with pytest.raises(DialectError, match="mix"):
        detect_dialect([OLD_BROKER, NEW_BROKER])
    with pytest.raises(DialectError, match="mix"):
        detect_dialect([OLD_BROKER], [NEW_MEMBER])


def test_a_foreign_group_is_not_joined() -> None:
    require_v07([])
    require_v07([OLD_BROKER], OLD_MEMBERS)
    for brokers, members in ([NEW_BROKER], []), ([], [NEW_MEMBER]), ([NEW_BROKER], [OLD_MEMBERS[0]]):
        with pytest.raises(DialectError):
            require_v07(brokers, members)
