"""Both codecs, and whether they agree."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from consumerd import native
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits, decode_batch

if TYPE_CHECKING:
    from consumerd.wire.v07 import MessageBatch


def installed_native_codec() -> native.Codec | None:
    """The native codec where it is installed, whatever the environment chooses; None where it is not."""
    try:
        found = cast("native.Codec", importlib.import_module("consumerd_native"))
    except ModuleNotFoundError:
        return None
    assert found.INTERFACE == native.INTERFACE, "consumerd-native is of another version: `make setup` builds it anew"
    return found


def facts(batch: MessageBatch) -> dict[str, Any]:
    """All that a batch says of itself, without the payloads being made at once."""
    return {
        "length": len(batch),
        "start": batch.start_offset,
        "next": batch.next_offset,
        "end": batch.end,
        "problem": batch.problem,
        "resume": batch.resume_offset,
        "needed": batch.needed,
        "memory": batch.memory_bytes,
        "repr": repr(batch),
        "prefixes": [batch.prefix(count) for count in range(len(batch) + 1)],
        "iterated": list(batch),
        "messages": list(batch.messages()),
        "middle": list(batch.messages_as(tuple, first=len(batch) // 2)),
        "single": [batch[number] for number in range(-len(batch), len(batch))],
        "slices": [list(batch[first:stop]) for first, stop in ((0, 3), (1, -1), (-2, None), (5, 2))],
    }


def decode_by_both(data: bytes | memoryview, offset: int = 0, *, limits: DecodeLimits = DEFAULT_LIMITS) -> MessageBatch:
    """Decode with the pure codec and with the native one, which must agree in everything; the batch of the latter."""
    codec = installed_native_codec()
    assert codec is not None
    with native.using(None):
        pure = decode_batch(data, offset, limits=limits)
    with native.using(codec):
        batch = decode_batch(data, offset, limits=limits)
    assert facts(batch) == facts(pure)
    held = getattr(batch._payloads, "held_bytes", 0)
    assert held <= batch.memory_bytes
    assert list(batch.payloads) == list(pure.payloads)
    assert facts(batch) == facts(pure)  # now that all payloads are objects
    return batch
