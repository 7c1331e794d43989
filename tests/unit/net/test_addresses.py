from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from consumerd.net.addresses import addresses_of


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%2"])
async def test_returns_literal_address_without_resolving(address: str, monkeypatch: Any) -> None:
    async def resolver(*_: Any, **__: Any) -> Any:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    assert await addresses_of(address, 9092) == [address]


async def test_resolves_localhost() -> None:
    found = await addresses_of("localhost", 9092)
    assert found
    assert all(ip_address(address).is_loopback for address in found)


async def test_keeps_order_and_scope_without_duplicates(monkeypatch: Any) -> None:
    v4, v6 = (socket.AF_INET, socket.SOCK_STREAM, 6, ""), (socket.AF_INET6, socket.SOCK_STREAM, 6, "")

    async def resolver(*_: Any, **__: Any) -> Any:
        return [
            (*v6, ("fe80::1", 9092, 0, 2)), (*v4, ("10.0.0.1", 9092)), (*v6, ("2001:db8::1", 9092, 0, 0)),
            (*v4, ("10.0.0.1", 9092)), (*v6, ("fe80::1", 9092, 0, 3)),
        ]  # fmt: skip

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    assert await addresses_of("broker", 9092) == ["fe80::1%2", "10.0.0.1", "2001:db8::1", "fe80::1%3"]


@pytest.mark.parametrize("name", ["a" * 64, "a..b", "\ud800"])
async def test_rejects_invalid_host_name(name: str) -> None:
    with pytest.raises(UnicodeError):
        await addresses_of(name, 9092)


async def test_raises_os_error_for_unknown_host() -> None:
    with pytest.raises(OSError, match=r"not known|nodename"):
        await addresses_of("", 9092)
