"""Messages as NDJSON: one JSON object per line, with the whole identity, so that no line is ambiguous.

`{"topic":"t","broker":0,"partition":1,"offset":71,"index":0,"payload":"text"}`; where a payload is not UTF-8, there is
`payload_base64` in place of `payload`. Text is kept exactly: decoding the JSON and encoding to UTF-8 gives the bytes.
"""

from __future__ import annotations

import base64
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.handlers.api import Batch


def payload_field(payload: bytes) -> str:
    """The member of the JSON object that holds `payload`."""
    try:
        # Twice as fast as json.dumps of the whole record, which counts at a million messages per second.
        return f'"payload":{encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"payload_base64":"{base64.b64encode(payload).decode()}"'


def encode_records(batch: Batch) -> list[bytes]:
    """One line, newline included, for every message of `batch`."""
    topic, broker, partition = batch.partition
    origin = f'{{"topic":{encode_basestring(topic)},"broker":{broker},"partition":{partition},"offset":'
    return [
        f'{origin}{offset},"index":{index},{payload_field(payload)}}}\n'.encode()
        for _, offset, index, _, payload in batch.messages()
    ]
