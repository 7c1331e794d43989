"""A live broker of Kafka 0.8 and later: the JSON of its node in `/brokers/ids`, versions 1 to 5.

Ring 0. Version 1 (0.8) has a host and a port. Later ones list endpoints, one per listener, and leave the host null and
the port -1 when no listener is in plaintext; 4 (0.10.2) adds which security protocol each listener speaks, before that
a listener is named by its protocol; 5 (2.7) adds features, which nothing here needs. Other fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from consumerd.wire.registry.errors import DialectError, RegistryError, shown
from consumerd.wire.registry.text import text_of
from consumerd.wire.registry.v08.json import object_of, shown_value, whole

_ENDPOINT = re.compile(r"([^:/\s]{1,200})://\[?([0-9A-Za-z._:%-]{0,255}?)\]?:(-?[0-9]{1,10})")
#: More listeners than any broker has.
_MAX_ENDPOINTS = 100
PLAINTEXT = "PLAINTEXT"


class Endpoint(NamedTuple):
    """One listener of a broker: its name, its security protocol, its address."""

    listener: str
    protocol: str
    host: str
    port: int


class BrokerNode(NamedTuple):
    """A live broker as registered. `host` is "" and `port` -1 if no listener is in plaintext."""

    id: int
    version: int
    host: str
    port: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def address(self, protocol: str = PLAINTEXT) -> tuple[str, int] | None:
        """Return host and port of the first listener for `protocol` (`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, ...)."""
        for endpoint in self.endpoints:
            if endpoint.protocol == protocol:
                return endpoint.host, endpoint.port
        return None


def parse_broker_node(broker: int, data: bytes | str | None) -> BrokerNode:
    """Read a child of `/brokers/ids`. Raises DialectError for a broker of Kafka 0.7, else RegistryError."""
    what = f"the node of broker {broker}"
    text = text_of(data, what)
    if not text.lstrip().startswith("{"):
        raise DialectError(
            f"broker {broker} is registered in the format of Kafka 0.7: {shown(text)} is not the JSON of 0.8"
        )
    found = object_of(text, what)
    version = whole(found.get("version"), f"the version of {what}", least=1)
    rack = found.get("rack")
    host, port = _plain_address(found, what)
    if version == 1 or "endpoints" not in found:
        if not host:
            raise RegistryError(f"{what} has no host")
        endpoints: tuple[Endpoint, ...] = (Endpoint(PLAINTEXT, PLAINTEXT, host, port),)
    else:
        endpoints = _endpoints(found, what)
    return BrokerNode(broker, version, host, port, endpoints, rack if isinstance(rack, str) else None)


def _plain_address(found: Mapping[str, Any], what: str) -> tuple[str, int]:
    host, port = found.get("host"), found.get("port", -1)
    if host is None:
        return "", -1
    if not isinstance(host, str) or not host.isprintable() or " " in host or len(host) > 255:
        raise RegistryError(f"{what} has the host {shown_value(host)}, which is not a host name")
    return host, whole(port, f"the port of {what}", least=1 if host else -1, most=65535)


def _endpoints(found: Mapping[str, Any], what: str) -> tuple[Endpoint, ...]:
    texts = found["endpoints"]
    if not isinstance(texts, list) or len(texts) > _MAX_ENDPOINTS:
        raise RegistryError(f"the endpoints of {what} are {shown_value(texts)}: expected a list of them")
    protocols = found.get("listener_security_protocol_map")
    endpoints = []
    for text in texts:
        match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise RegistryError(f"{what} has the endpoint {shown_value(text)}: expected LISTENER://host:port")
        listener, host, port = match.groups()
        protocol = protocols.get(listener) if isinstance(protocols, dict) else listener
        endpoints.append(
            Endpoint(
                listener,
                protocol if isinstance(protocol, str) else listener,
                host,
                whole(int(port), f"a port of {what}", least=-1, most=65535),
            )
        )
    return tuple(endpoints)
