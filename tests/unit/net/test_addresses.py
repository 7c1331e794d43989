from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from consumerd.net.addresses import addresses_of

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%2"])
async def test_an_address_stands_for_itself_without_the_resolver(address: str, monkeypatch: Any) -> None:
    async def resolver(*_: Any, **__: Any) -> Any:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    assert await addresses_of(address, 9092) == [address]


async def test_a_name_gives_addresses_of_this_host() -> None:
    found = await addresses_of("localhost", 9092)
    assert found
    assert all(ip_address(address).is_loopback for address in found)


async def test_addresses_keep_order_and_scope_and_come_once(monkeypatch: Any) -> None:
    v4, v6 = (socket.AF_INET, socket.SOCK_STREAM, 6, ""), (socket.AF_INET6, socket.SOCK_STREAM, 6, "")

    async def resolver(*_: Any, **__: Any) -> Any:
        return [
            (*v6, ("fe80::1", 9092, 0, 2)), (*v4, ("10.0.0.1", 9092)), (*v6, ("2001:db8::1", 9092, 0, 0)),
            (*v4, ("10.0.0.1", 9092)), (*v6, ("fe80::1", 9092, 0, 3)),
        ]  # fmt: skip

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    assert await addresses_of("broker", 9092) == ["fe80::1%2", "10.0.0.1", "2001:db8::1", "fe80::1%3"]


@pytest.mark.parametrize("name", ["a" * 64, "a..b", "\ud800"])
async def test_a_name_that_no_host_can_have_is_refused(name: str) -> None:
    with pytest.raises(UnicodeError):
        await addresses_of(name, 9092)


async def test_a_name_that_is_not_found_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"not known|nodename"):
        await addresses_of("", 9092)
