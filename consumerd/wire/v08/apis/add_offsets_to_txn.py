"""AddOffsetsToTxn (API key 25): name the group whose offsets a transaction is about to commit.

Where transactions have version 2 (KIP-890), TxnOffsetCommit adds the group itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import GROUP_ID, TRANSACTIONAL_PRODUCER, error_code, throttle_time
from consumerd.wire.v08.schema import Api

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

ADD_OFFSETS_TO_TXN: Api[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse] = Api(
    key=25,
    name="AddOffsetsToTxn",
    versions=(0, 4),
    flexible=3,
    request=(*TRANSACTIONAL_PRODUCER, GROUP_ID),
    response=(throttle_time(since=0), error_code()),
)
