"""PRODUCE requests with one record batch for one partition, and their responses, without a walk through their fields.

Strategy: a producer sends the same request to a partition again and again, with another batch in it. The codec of all
APIs writes it once, with an empty record set: what stands before and behind that is kept, and each batch is written
between them (`encode_record_batch`). The same for the response without an error: all but its numbers is compared with
one that was written once, and the numbers are read. A response that differs is left to the codec.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.headers import ResponseHeader
from consumerd.wire.v08.messages import ResponseMessage, encode_request, encode_response
from consumerd.wire.v08.records.encode import Surroundings
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.types import Data

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ProduceRequest, ProduceResponse, ProduceResponsePartitionResponse

#: The first version with record batches.
FIRST_VERSION: Final = 3
#: The last version that names topics and not their ids.
LAST_WITH_NAMES: Final = 12
#: Bytes of a frame's size, of key and version, and of the correlation id between them and the rest.
_SIZE: Final = 4
_API: Final = 4
_CORRELATION_ID: Final = struct.Struct(">i")
#: An offset that stands nowhere else in a response.
_MARK: Final = 0x0102030405060708
#: The first version whose responses have the start of the log behind offset and timestamp.
_LOG_START_SINCE: Final = 5


class AcceptedBatch(NamedTuple):
    """The response to a request with one batch, which the broker accepted.

    `base_offset`: that of the first message, or -1. `timestamp`: the broker's, in milliseconds, where the topic takes
    the time of appending, else -1. `silence`: seconds for which the broker wants no other request.
    """

    base_offset: int
    timestamp: int
    silence: float = 0.0


class ProduceTemplate:
    """Requests of `version`, which is FIRST_VERSION or later, and responses for one partition.

    `acks` and `timeout` (milliseconds) are those of the requests; versions after LAST_WITH_NAMES have the `topic_id`.
    `transactional_id`: that of the producer, None for one without transactions.
    """

    __slots__ = ("_around", "_client_id", "_head", "_numbers", "_request", "_tail", "topic_id", "version")

    def __init__(
        self,
        version: int,
        acks: int,
        timeout: int,
        topic: str,
        partition: int,
        topic_id: bytes = NO_UUID,
        transactional_id: str | None = None,
    ) -> None:
        self.version = version
        self.topic_id = topic_id
        self._request: ProduceRequest = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout_ms": timeout,
            "topic_data": [
                {"name": topic, "topic_id": topic_id, "partition_data": [{"index": partition, "records": b""}]}
            ],
        }
        self._client_id: str | None = None
        self._around: tuple[bytes, bytes, bool, bytes] | None = None
        self._numbers = struct.Struct(">qq8x" if version >= _LOG_START_SINCE else ">qq")
        part: ProduceResponsePartitionResponse = {
            "index": partition,
            "error_code": 0,
            "base_offset": _MARK,
            "log_append_time_ms": -1,
            "log_start_offset": -1,
        }
        body: ProduceResponse = {
            "responses": [{"name": topic, "topic_id": topic_id, "partition_responses": [part]}],
            "throttle_time_ms": 0,
        }
        data = encode_response(PRODUCE, version, ResponseMessage(ResponseHeader(0), body))[_SIZE:]
        start = data.rindex(_MARK.to_bytes(8))
        self._head = data[_CORRELATION_ID.size : start]
        self._tail = data[start + self._numbers.size :]

    def around(self, correlation_id: int, client_id: str | None) -> Surroundings:
        """What stands around the batch of a request. Raises EncodeError for a client id that cannot be sent."""
        if self._around is None or client_id != self._client_id:
            self._client_id = client_id
            self._around = self._written(client_id)
        api, before, compact, after = self._around
        return Surroundings(api + _CORRELATION_ID.pack(correlation_id) + before, compact, after)

    def _written(self, client_id: str | None) -> tuple[bytes, bytes, bool, bytes]:
        """Key and version, what follows the correlation id, whether the set has a compact length, what follows it."""
        frame = encode_request(PRODUCE, self.version, self._request, correlation_id=0, client_id=client_id)
        compact = PRODUCE.is_flexible(self.version)
        # Tagged fields of partition, topic and request; and the length of an empty set.
        end = len(frame) - (3 if compact else 0)
        begin = end - (1 if compact else 4)
        start = _SIZE + _API
        return frame[_SIZE:start], frame[start + _CORRELATION_ID.size : begin], compact, frame[end:]

    def decode(self, data: Data) -> AcceptedBatch | None:
        """What a response without an error says; None for any other response."""
        start = _CORRELATION_ID.size + len(self._head)
        end = start + self._numbers.size
        if data[_CORRELATION_ID.size : start] != self._head or data[end:] != self._tail:
            return None
        offset, timestamp = self._numbers.unpack_from(data, start)
        return AcceptedBatch(offset, timestamp)
