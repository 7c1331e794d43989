from __future__ import annotations

from consumerd.wire.registry.dialect import Dialect, subscription_dialect

OLD_MEMBERS = ['{ "t": 1 }', '{"t":1}', "*1*t.*", "!2!t", '{"version":1,"subscription":1}', "{broken", "[" * 100_000]
NEW_MEMBER = '{"version":1,"subscription":{"og.t1":1},"pattern":"static","timestamp":"1795263220954"}'


def test_decides_by_members() -> None:
    assert {subscription_dialect(text) for text in OLD_MEMBERS} == {Dialect.V07}
    assert subscription_dialect(NEW_MEMBER) is Dialect.V08
    assert subscription_dialect("{" * 100_000) is Dialect.V07
