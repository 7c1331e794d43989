"""A client of a cluster from plain values, as the library's configurations have them.

Strategy: nothing is connected before the client is asked something. `find_broker` is the one question of a start: that
no broker answers is then an error with its remedy, and not a loop of retries that nobody sees.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from consumerd.client.cluster import ClusterClient
from consumerd.client.errors import NoBrokerError
from consumerd.client.opening import ChannelOpener
from consumerd.client.sasl import SaslAuthenticator
from consumerd.client.settings import ClientSettings
from consumerd.net import ConnectError, connect

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from consumerd.client.sasl import Mechanism
    from consumerd.net import ConnectionSettings
    from consumerd.ports import Clock


def make_client(
    bootstrap: Sequence[tuple[str, int]],
    connection: ConnectionSettings,
    *,
    client_id: str,
    tls: ssl.SSLContext | None,
    sasl: Callable[[], Mechanism] | None,
    clock: Clock,
    rng: Random,
    connector: Callable[[str, int], Awaitable[Any]] | None = None,
) -> ClusterClient:
    """A client that begins with `bootstrap`; `connector` is the port to brokers, by default TCP, or TLS with `tls`."""
    settings = ClientSettings(client_id=client_id, connection=connection)
    opener = ChannelOpener(
        connector or partial(connect, settings=connection, ssl=tls),
        settings,
        clock,
        authenticate=None if sasl is None else SaslAuthenticator(sasl),
    )
    return ClusterClient(bootstrap, opener, settings, clock=clock, rng=rng)


def security_protocol(*, tls: bool, sasl: bool) -> str:
    """What brokers call a listener that fits, in ZooKeeper."""
    if sasl:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"
    return "SSL" if tls else "PLAINTEXT"


async def find_broker(client: ClusterClient, bootstrap: Sequence[str], timeout: float) -> None:
    """Return when a broker has answered. Raises NoBrokerError after `timeout` seconds, and what no retry mends."""
    try:
        await client.retrying("find a broker", client.refresh, timeout=timeout)
    except (ConnectError, NoBrokerError) as error:
        raise NoBrokerError(
            f"no broker of {', '.join(bootstrap)} answered within {timeout:g} s; check bootstrap and that they run: "
            f"{error}"
        ) from error
