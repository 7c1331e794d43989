"""Both codecs, and whether they agree."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, cast

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Content
from consumerd.wire import CorruptMessageError, EncodeError, OversizeMessageError
from consumerd.wire.v07 import (
    DEFAULT_LIMITS,
    DecodeLimits,
    MessageBatch,
    check_plain_set,
    check_produced_set,
    decode_batch,
)
from consumerd.wire.v07.walk import LAYOUTS, verify
from consumerd.wire.v08.records import RecordSet, decode_records


def installed_native_codec() -> native.NativeCodec | None:
    """The native codec where it is installed, whatever the environment chooses; None where it is not."""
    try:
        found = cast("native.NativeCodec", importlib.import_module("consumerd_native"))
    except ModuleNotFoundError:
        return None
    assert found.INTERFACE == native.INTERFACE, "consumerd-native is of another version: `make setup` builds it anew"
    return found


def handled(content: Content) -> list[object]:
    """The messages of a batch as handlers get them: all, and parts of them in pieces."""
    batch = Batch(TopicPartition("t", 0, 0), content)
    half = len(batch) // 2
    parts = batch, batch.rest(half), batch.part(half // 2, half)
    pieces = [list(part.message_pieces(3, 2)) for part in parts]
    assert all(0 < len(piece) <= 3 for found in pieces for piece in found)
    return [list(batch.messages()), *([message for piece in found for message in piece] for found in pieces)]


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
        "for handlers": handled(batch),
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


def judge_by_both(data: bytes, limits: DecodeLimits) -> None:
    """Both codecs agree on a broker's check of a produced set, and on the boundaries that recovery finds."""
    found: list[object] = []
    for chosen in (None, installed_native_codec()):
        with native.using(chosen):
            views = memoryview(data), memoryview(bytearray(data))
            runs = [
                verify(view, 0, limits.max_message_bytes, readers, last=last)
                for view in views
                for readers in LAYOUTS
                for last in (False, True)
            ]
            plain = check_plain_set(data, limits=limits)
            try:
                judged = check_produced_set(data, limits=limits)
                assert check_produced_set(cast("bytes", views[1]), limits=limits) == judged
                assert plain in {None, judged}
                found.append((runs, plain, judged))
            except (CorruptMessageError, OversizeMessageError) as error:
                assert plain is None
                found.append((runs, type(error), str(error)))
    assert found[0] == found[1]


def written_by_both(encode: Callable[..., bytes], *columns: Any, **options: Any) -> object:
    """What both codecs write, or what they raise, which must be the same."""
    found: list[object] = []
    for chosen in (None, installed_native_codec()):
        with native.using(chosen):
            try:
                found.append(encode(*columns, **options))
            except (EncodeError, TypeError, ValueError, OverflowError) as error:
                found.append((type(error), str(error)))
    assert found[0] == found[1]
    return found[1]


def record_facts(found: RecordSet) -> dict[str, Any]:
    """All that a record set says of itself, without the values being made at once."""
    headers = found.headers
    return {
        "length": len(found),
        "start": found.start_offset,
        "next": found.next_offset,
        "end": found.end,
        "problem": found.problem,
        "resume": found.resume_offset,
        "needed": found.needed,
        "log": found.log,
        "memory": found.memory_bytes,
        "repr": repr(found),
        "prefixes": [found.prefix(count) for count in range(len(found) + 1)],
        "iterated": list(found),
        "messages": list(found.messages()),
        "middle": list(found.messages_as(tuple, first=len(found) // 2)),
        "for handlers": handled(found),
        "single": [found[number] for number in range(-len(found), len(found))],
        "slices": [list(found[first:stop]) for first, stop in ((0, 3), (1, -1), (-2, None), (5, 2))],
        "offsets": found.offsets,
        "timestamps": found.timestamps,
        "timestamp of each": [found.timestamp_at(number) for number in range(len(found))],
        "keys": found.keys,
        "headers": [headers.get(number, ()) for number in range(len(found))],
        "runs": [
            (run.first, list(run.offsets), run.timestamp_type, run.base_time, list(run.times), run.codec)
            for run in found.runs
        ],
    }


def decode_records_by_both(
    data: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    aborted: Iterable[tuple[int, int]] = (),
) -> RecordSet:
    """Decode with the pure codec and with the native one, which must agree in everything; the set of the latter."""
    codec = installed_native_codec()
    assert codec is not None
    transactions = list(aborted)
    with native.using(None):
        pure = decode_records(data, offset, limits=limits, aborted=transactions)
    with native.using(codec):
        found = decode_records(data, offset, limits=limits, aborted=transactions)
    expected = record_facts(pure)
    held = getattr(found._payloads, "held_bytes", 0)
    assert held <= found.memory_bytes
    assert record_facts(found) == expected
    assert list(found.payloads) == list(pure.payloads)
    assert record_facts(found) == expected  # now that all values are objects
    return found
