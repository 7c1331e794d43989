"""Requests that encode themselves (`consumerd.net.client.channel.PreparedRequest`), read as a broker reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consumerd.wire.v08 import decode_request

if TYPE_CHECKING:
    from consumerd.net.client.channel import PreparedRequest
    from consumerd.wire.v08.schema import Api


def request_body(api: Api, body: dict[str, Any] | PreparedRequest) -> dict[str, Any]:
    """The fields of a request."""
    return body if isinstance(body, dict) else decode_request(api, body.encode(1, "test")[4:]).body
