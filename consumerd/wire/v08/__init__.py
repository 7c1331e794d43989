"""The protocol of the Kafka protocol guide (0.8 to 4.x) on the wire: requests and responses as dicts. Pure, no I/O.

In: an `Api` and a body as a dictionary. Out: a frame; and back. `apis` has the tables, `records` the messages.

Files in reading order: schema, types, structures, codec, versions, headers, error_codes, throttle,
fetch_session, fetch_frame, messages, produce_template, subscription, errors, message_types.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.wire.v08.apis import APIS
    from consumerd.wire.v08.error_codes import ERRORS, ErrorCode, ErrorInfo, error_info
    from consumerd.wire.v08.errors import UnsupportedVersionError
    from consumerd.wire.v08.headers import (
        RequestHeader,
        ResponseHeader,
        read_api,
        read_correlation_id,
        request_header_version,
        response_header_version,
    )
    from consumerd.wire.v08.messages import (
        DEFAULT_MESSAGE_LIMITS,
        MessageLimits,
        RequestMessage,
        ResponseMessage,
        answered_version,
        decode_body,
        decode_request,
        decode_response,
        encode_body,
        encode_request,
        encode_request_message,
        encode_response,
    )
    from consumerd.wire.v08.schema import NO_UUID, Api, Direction, Field, FieldType
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.wire.v08.apis": "APIS",
            "consumerd.wire.v08.error_codes": "ERRORS ErrorCode ErrorInfo error_info",
            "consumerd.wire.v08.errors": "UnsupportedVersionError",
            "consumerd.wire.v08.headers": (
                "RequestHeader ResponseHeader read_api read_correlation_id request_header_version "
                "response_header_version"
            ),
            "consumerd.wire.v08.messages": (
                "DEFAULT_MESSAGE_LIMITS MessageLimits RequestMessage ResponseMessage answered_version decode_body "
                "decode_request decode_response encode_body encode_request encode_request_message encode_response"
            ),
            "consumerd.wire.v08.schema": "NO_UUID Api Direction Field FieldType",
        },
    )

__all__ = [
    "APIS",
    "DEFAULT_MESSAGE_LIMITS",
    "ERRORS",
    "NO_UUID",
    "Api",
    "Direction",
    "ErrorCode",
    "ErrorInfo",
    "Field",
    "FieldType",
    "MessageLimits",
    "RequestHeader",
    "RequestMessage",
    "ResponseHeader",
    "ResponseMessage",
    "UnsupportedVersionError",
    "answered_version",
    "decode_body",
    "decode_request",
    "decode_response",
    "encode_body",
    "encode_request",
    "encode_request_message",
    "encode_response",
    "error_info",
    "read_api",
    "read_correlation_id",
    "request_header_version",
    "response_header_version",
]
