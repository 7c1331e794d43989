"""Kafka 0.6/0.7 on the wire: messages, message sets, the five requests and their responses. Pure, no I/O.

In: frames and message sets of 0.7. Out: requests, responses and `MessageBatch`es; and back.

Files in reading order: constants, topics, outer, decode, walk, batch, packed, unwrap, encode, requests, produced,
responses.

Easy to miss:

- FETCH of an unknown topic returns an empty set without an error.
- Snappy stores short messages uncompressed, so a message with a valid CRC at some offset does not prove that the offset
  is a boundary of the outer set. `admin.boundaries` walks the segment, or searches for an enclosing message.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.wire.batch import BatchEnd
from consumerd.wire.compression import Codec
from consumerd.wire.v07.batch import MessageBatch, MessageLeaf
from consumerd.wire.v07.constants import (
    DEFAULT_LIMITS,
    EARLIEST,
    LATEST,
    PRODUCE_LIMITS,
    DecodeLimits,
    ErrorCode,
    RequestType,
)
from consumerd.wire.v07.decode import decode_batch, decode_steps
from consumerd.wire.v07.outer import MessageSetTail, OuterMessage, iter_outer, read_outer
from consumerd.wire.v07.packed import PackedPayloads
from consumerd.wire.v07.topics import validate_new_topic, validate_topic
from consumerd.wire.v07.unwrap import leaf_payloads

if TYPE_CHECKING:
    from consumerd.wire.v07.encode import encode_message, encode_message_set
    from consumerd.wire.v07.produced import CheckedSet, check_plain_set, check_produced_set, check_steps
    from consumerd.wire.v07.requests import (
        EncodedProduceRequest,
        FetchRequest,
        MultiFetchRequest,
        MultiProduceRequest,
        OffsetsRequest,
        ProduceRequest,
        Request,
        decode_request,
        decode_request_steps,
        decode_single_request,
    )
    from consumerd.wire.v07.responses import (
        FetchResponse,
        MultiFetchResponse,
        OffsetsResponse,
        decode_fetch_response,
        decode_multifetch_response,
        decode_offsets_response,
        fetch_response_header,
        multifetch_response_header,
        split_fetch_response,
    )

__all__ = [
    "DEFAULT_LIMITS",
    "EARLIEST",
    "LATEST",
    "PRODUCE_LIMITS",
    "BatchEnd",
    "CheckedSet",
    "Codec",
    "DecodeLimits",
    "EncodedProduceRequest",
    "ErrorCode",
    "FetchRequest",
    "FetchResponse",
    "MessageBatch",
    "MessageLeaf",
    "MessageSetTail",
    "MultiFetchRequest",
    "MultiFetchResponse",
    "MultiProduceRequest",
    "OffsetsRequest",
    "OffsetsResponse",
    "OuterMessage",
    "PackedPayloads",
    "ProduceRequest",
    "Request",
    "RequestType",
    "check_plain_set",
    "check_produced_set",
    "check_steps",
    "decode_batch",
    "decode_fetch_response",
    "decode_multifetch_response",
    "decode_offsets_response",
    "decode_request",
    "decode_request_steps",
    "decode_single_request",
    "decode_steps",
    "encode_message",
    "encode_message_set",
    "fetch_response_header",
    "iter_outer",
    "leaf_payloads",
    "multifetch_response_header",
    "read_outer",
    "split_fetch_response",
    "validate_new_topic",
    "validate_topic",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.wire.v07.encode": "encode_message encode_message_set",
            "consumerd.wire.v07.produced": "CheckedSet check_plain_set check_produced_set check_steps",
            "consumerd.wire.v07.requests": (
                "EncodedProduceRequest FetchRequest MultiFetchRequest MultiProduceRequest OffsetsRequest "
                "ProduceRequest Request decode_request decode_request_steps decode_single_request"
            ),
            "consumerd.wire.v07.responses": (
                "FetchResponse MultiFetchResponse OffsetsResponse decode_fetch_response "
                "decode_multifetch_response decode_offsets_response fetch_response_header "
                "multifetch_response_header split_fetch_response"
            ),
        },
        {"Message": "MessageLeaf"},
    )
