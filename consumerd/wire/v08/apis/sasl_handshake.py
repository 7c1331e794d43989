"""SaslHandshake (API key 17): choose how to authenticate.

After version 0 the tokens follow bare, each with its size before it; after version 1 they go in SaslAuthenticate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code
from consumerd.wire.v08.schema import ARRAY, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import SaslHandshakeRequest, SaslHandshakeResponse

SASL_HANDSHAKE: Api[SaslHandshakeRequest, SaslHandshakeResponse] = Api(
    key=17,
    name="SaslHandshake",
    versions=(0, 1),
    request=(Field("mechanism", STRING, "Name of the mechanism, such as SCRAM-SHA-512."),),
    response=(error_code(), Field("mechanisms", ARRAY, "Names of those that the broker takes.", of=STRING)),
)
