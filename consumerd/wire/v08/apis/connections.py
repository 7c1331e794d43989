"""The APIs with which a connection begins: what the broker serves, and authentication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, error_message, ignorable, throttle_time
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, BYTES, INT16, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies


#: ApiVersions (API key 18): what the broker serves.
#:
#: A version that the broker does not know is answered in version 0 with error 35; brokers before 0.10 close the
#: connection.
API_VERSIONS: Api[bodies.ApiVersionsRequest, bodies.ApiVersionsResponse] = Api(
    key=18,
    name="ApiVersions",
    versions=(0, 4),
    flexible=3,
    request=(
        Field(
            "client_software_name", STRING, "Name of the client: letters, digits, `-` and `.`.", since=3, ignorable=True
        ),
        Field("client_software_version", STRING, "Its version, likewise.", since=3, ignorable=True),
    ),
    response=(
        error_code(),
        array(
            "api_keys",
            "What the broker serves.",
            Field("api_key", INT16, "The API."),
            Field("min_version", INT16, "First version served."),
            Field("max_version", INT16, "Last version served."),
        ),
        throttle_time(since=1, obeyed=2),
        array(
            "supported_features",
            "Features of the cluster that this broker could take part in; v3 leaves out those that begin at 0.",
            Field("name", STRING, "Name of the feature."),
            Field("min_version", INT16, "First level supported."),
            Field("max_version", INT16, "Last level supported."),
            since=3,
            tag=0,
            default=(),
            ignorable=True,
        ),
        ignorable(
            "finalized_features_epoch",
            INT64,
            "How recent `finalized_features` is, -1 for unknown.",
            since=3,
            tag=1,
            default=-1,
        ),
        array(
            "finalized_features",
            "Features that the cluster uses.",
            Field("name", STRING, "Name of the feature."),
            Field("max_version_level", INT16, "Last level in use."),
            Field("min_version_level", INT16, "First level in use."),
            since=3,
            tag=2,
            default=(),
            ignorable=True,
        ),
        ignorable(
            "zk_migration_ready",
            BOOLEAN,
            "Whether a controller is ready to take over from ZooKeeper.",
            since=3,
            tag=3,
            default=False,
        ),
    ),
)


#: SaslHandshake (API key 17): choose how to authenticate.
#:
#: After version 0 the tokens follow bare, each with its size before it; after version 1 they go in SaslAuthenticate.
SASL_HANDSHAKE: Api[bodies.SaslHandshakeRequest, bodies.SaslHandshakeResponse] = Api(
    key=17,
    name="SaslHandshake",
    versions=(0, 1),
    request=(Field("mechanism", STRING, "Name of the mechanism, such as SCRAM-SHA-512."),),
    response=(error_code(), Field("mechanisms", ARRAY, "Names of those that the broker takes.", of=STRING)),
)


#: SaslAuthenticate (API key 36): the tokens of a mechanism, after SaslHandshake version 1.
SASL_AUTHENTICATE: Api[bodies.SaslAuthenticateRequest, bodies.SaslAuthenticateResponse] = Api(
    key=36,
    name="SaslAuthenticate",
    versions=(0, 2),
    flexible=2,
    request=(Field("auth_bytes", BYTES, "The client's token."),),
    response=(
        error_code(),
        error_message(since=0),
        Field("auth_bytes", BYTES, "The broker's token."),
        ignorable(
            "session_lifetime_ms",
            INT64,
            "Time after which the client has to authenticate again, ms; 0 for never.",
            since=1,
            default=0,
        ),
    ),
)
