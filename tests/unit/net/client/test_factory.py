"""A client from plain values, and the one check of a start."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.net.client.errors import AuthenticationError, NoBrokerReachedError
from consumerd.net.client.factory import find_broker, make_client, security_protocol
from consumerd.net.client.sasl import Plain
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import ConnectError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.versions import BrokerRelease
from tests.unit.net.client.test_opening import Broker


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("sasl", [True, False])
async def test_names_the_listener_for_what_is_configured(tls: bool, sasl: bool) -> None:
    names = {(0, 0): "PLAINTEXT", (1, 0): "SSL", (0, 1): "SASL_PLAINTEXT", (1, 1): "SASL_SSL"}
    assert security_protocol(tls=tls, sasl=sasl) == names[tls, sasl]


def client_of(connector: Any, sasl: Any = None) -> Any:
    return make_client(
        [("h", 9)],
        ConnectionSettings(),
        client_id="c",
        tls=None,
        sasl=sasl,
        clock=FakeClock(auto=True),
        rng=random.Random(1),
        connector=connector,
    )


async def test_connects_by_the_port_that_is_given_and_authenticates_if_asked_to() -> None:
    broker = Broker(lambda *_: "answer")
    client = client_of(broker.connect)
    assert (await client.channel("h", 9)).versions.release is BrokerRelease.V0_10_OR_NEWER
    with pytest.raises(AuthenticationError):
        await client_of(broker.connect, lambda: Plain("alice", "x")).channel("h", 9)


async def test_start_without_a_broker_is_an_error_with_its_remedy() -> None:
    async def refuse(host: str, port: int) -> Any:
        raise ConnectError(f"{host}:{port} refuses")

    client = client_of(refuse)
    with pytest.raises(NoBrokerReachedError, match=r"no broker of h:9, i:9 answered within 5 s; check .*: h:9 refuses"):
        await find_broker(client, ["h:9", "i:9"], 5.0)
    await find_broker(client_of(Broker(lambda *_: "answer").connect), ["h:9"], 5.0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ConnectionSettings(socket_timeout=-1), "socket_timeout must be a positive number of seconds, not -1"),
        (lambda: ConnectionSettings(write_buffer=0), "write_buffer must be a positive whole number, not 0"),
        (
            lambda: ClientSettings(retry_timeout=-0.5),
            "retry_timeout must be 0 or a positive number of seconds, not -0.5",
        ),
        (
            lambda: ClientSettings(max_request_bytes=0),
            "max_request_bytes must be a positive whole number of bytes, not 0",
        ),
    ],
)
def test_rejects_settings_that_are_not_allowed(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        make()
