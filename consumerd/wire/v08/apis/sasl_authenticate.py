"""SaslAuthenticate (API key 36): the tokens of a mechanism, after SaslHandshake version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code
from consumerd.wire.v08.schema import BYTES, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import SaslAuthenticateRequest, SaslAuthenticateResponse

SASL_AUTHENTICATE: Api[SaslAuthenticateRequest, SaslAuthenticateResponse] = Api(
    key=36,
    name="SaslAuthenticate",
    versions=(0, 2),
    flexible=2,
    request=(Field("auth_bytes", BYTES, "The client's token."),),
    response=(
        error_code(),
        Field("error_message", STRING, "The error in the broker's words, or null.", nullable=0, default=None),
        Field("auth_bytes", BYTES, "The broker's token."),
        Field(
            "session_lifetime_ms",
            INT64,
            "Time after which the client has to authenticate again, ms; 0 for never.",
            since=1,
            default=0,
            ignorable=True,
        ),
    ),
)
