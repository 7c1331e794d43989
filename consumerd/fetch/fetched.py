"""What fetching puts into lanes, by the dialect of the broker."""

from __future__ import annotations

from typing import TypeAlias

from consumerd.wire.v07 import MessageBatch
from consumerd.wire.v08.records import RecordSet

#: The decoded messages of one answer: both have payloads, a range of offsets, and the bytes that a budget counts.
Fetched: TypeAlias = MessageBatch | RecordSet
