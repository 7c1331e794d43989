"""The addresses that a host name stands for.

Strategy: a name may stand for several addresses, of which some do not respond: a connect tries them in the
resolver's order, each with its part of the time, so that a silent one leaves time for the next.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from ssl import SSLError

from consumerd.base.errors import reason_of

#: The resolver's answers that a name does not exist, or has no address. EAI_NODATA is not known everywhere.
_UNKNOWN = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


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


def connect_reason(error: Exception) -> str:
    """Return why a connection could not be opened, in the system's words."""
    if isinstance(error, socket.gaierror):
        return f"the host name does not resolve ({error.strerror})"
    if isinstance(error, UnicodeError):
        return f"the host name is invalid ({error})"
    if isinstance(error, OSError) and error.errno and not isinstance(error, SSLError):
        return os.strerror(error.errno)
    return reason_of(error)


async def why_unresolvable(addresses: Iterable[tuple[str, int]]) -> str | None:
    """Return why none of the hosts has an address; None if one has, or may have later (a DNS server did not answer)."""
    reason = None
    for host, port in addresses:
        try:
            await addresses_of(host, port)
        except socket.gaierror as error:
            if error.errno not in _UNKNOWN:
                return None
            reason = connect_reason(error)
        except UnicodeError as error:
            reason = connect_reason(error)
        else:
            return None
    return reason
