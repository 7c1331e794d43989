"""The addresses that a host name stands for.

Strategy: a name may stand for several addresses, of which some do not respond: a connect tries them in the
resolver's order, each with its part of the time, so that a silent one leaves time for the next.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the IPv4 and IPv6 addresses of `host` in the resolver's order, each once, as numeric texts.

    An address stands for itself. A link-local address of IPv6 keeps its scope (`fe80::1%2`). There is no timeout here.
    Raises OSError (socket.gaierror) for a name that is not found, UnicodeError for one that is not a valid host name.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]  # without the resolver's threads, which may be busy with something else
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    texts = []
    for family, *_, place in found:
        address, *rest = map(str, place)  # in IPv6 with the port, the flow and the scope behind it
        scoped = family == socket.AF_INET6 and rest[-1] != "0"
        texts.append(f"{address}%{rest[-1]}" if scoped else address)
    return list(dict.fromkeys(texts))
