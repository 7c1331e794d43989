"""A client of a cluster from plain values, as the library's configurations have them.

Strategy: nothing is connected before the client's first request. `find_broker` is the one check of a start: if no
broker answers, that is then an error with its remedy, and not a silent loop of retries.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from consumerd.base.ports import Clock, SaslMechanism
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import NoBrokerReachedError
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import ConnectError


def make_client(
    bootstrap: Sequence[tuple[str, int]],
    connection: ConnectionSettings,
    *,
    client_id: str,
    tls: ssl.SSLContext | None,
    sasl: Callable[[], SaslMechanism] | None,
    clock: Clock,
    rng: Random,
    connector: Callable[[str, int], Awaitable[Any]] | None = None,
    rack: str = "",
) -> ClusterClient:
    """Make a client with these bootstrap brokers; `connector` is the port to them: by default TCP, with `tls` TLS."""
    settings = ClientSettings(client_id=client_id, rack=rack, connection=connection)
    authenticate = None
    if sasl is not None:
        from consumerd.net.client.sasl import SaslAuthenticator  # noqa: PLC0415 - with OpenSSL's digests

        authenticate = SaslAuthenticator(sasl)
    opener = ChannelOpener(
        connector or partial(connect, settings=connection, ssl=tls),
        settings,
        clock,
        authenticate=authenticate,
    )
    return ClusterClient(bootstrap, opener, settings, clock=clock, rng=rng)


def security_protocol(*, tls: bool, sasl: bool) -> str:
    """Return the brokers' name of a suitable listener, in ZooKeeper."""
    if sasl:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"
    return "SSL" if tls else "PLAINTEXT"


async def find_broker(
    client: ClusterClient, bootstrap: Sequence[str], timeout: float, *, key: str = "bootstrap"
) -> None:
    """Return when a broker has answered. Raises NoBrokerReachedError after `timeout` seconds, and permanent errors.

    `key`: the setting that has `bootstrap`.
    """
    try:
        await client.retrying("find a broker", client.refresh, timeout=timeout)
    except (ConnectError, NoBrokerReachedError) as error:
        raise NoBrokerReachedError(
            f"no broker of {', '.join(bootstrap)} answered within {timeout:g} s; check {key}, and that the brokers "
            f"are running: {error}"
        ) from error
