"""Interleaved transactions of several producers, against a model: READ_COMMITTED hands out what is committed.

Strategy: producers take turns at random; each turn sends a batch, inside or outside of a transaction, or ends one. The
model knows of every payload how its transaction ended. What a broker says of it is computed as brokers compute it: of
each aborted transaction that reaches into the fetch the producer and the first offset. A fetch may begin anywhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.wire.v08.records import RecordCodec, decode_records, encode_record_batch
from tests.property.test_records import crc32c

pytestmark = pytest.mark.usefixtures("either_codec")

ABORT, COMMIT = 0, 1
_CONTROL_AND_TRANSACTIONAL = 0x30
#: As many as can be in each other's way.
PRODUCERS = (5, 6, 7)


def marker(offset: int, producer: int, end: int) -> bytes:
    """The control batch that ends a transaction."""
    keys: list[bytes | None] = [struct.pack(">hh", 0, end)]
    made = bytearray(encode_record_batch([bytes(6)], keys=keys, base_offset=offset, producer_id=producer))
    made[21:23] = struct.pack(">h", _CONTROL_AND_TRANSACTIONAL)
    made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


@dataclass
class Transaction:
    """Of one producer. `end`: the kind and the offset of its marker; None while it is open."""

    producer: int
    first: int
    offsets: list[int] = field(default_factory=list)
    end: tuple[int, int] | None = None


class Log:
    """The batches with their first and last offsets, the payload at each offset, and the transactions."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.payloads: dict[int, bytes] = {}
        self.transactions: list[Transaction] = []
        self.end = 0

    def _append(self, data: bytes, count: int) -> None:
        self.batches.append((self.end, self.end + count - 1, data))
        self.end += count

    def open_of(self, producer: int) -> Transaction | None:
        """The producer's transaction that has not ended."""
        return next((one for one in self.transactions if one.producer == producer and one.end is None), None)

    def send(self, producer: int, count: int, codec: RecordCodec, *, transactional: bool) -> None:
        """Append a batch, and begin a transaction where it needs one."""
        offsets = range(self.end, self.end + count)
        values = [b"%d of %d" % (offset, producer) for offset in offsets]
        self.payloads.update(zip(offsets, values, strict=True))
        if transactional:
            transaction = self.open_of(producer)
            if transaction is None:
                transaction = Transaction(producer, self.end)
                self.transactions.append(transaction)
            transaction.offsets += offsets
        data = encode_record_batch(
            values, codec=codec, base_offset=self.end, producer_id=producer, producer_epoch=0,
            transactional=transactional,
        )  # fmt: skip
        self._append(data, count)

    def finish(self, producer: int, end: int) -> None:
        """Append the marker of the producer's transaction, if one is open."""
        transaction = self.open_of(producer)
        if transaction is not None:
            transaction.end = end, self.end
            self._append(marker(self.end, producer, end), 1)

    def stable_end(self) -> int:
        """The last stable offset: no message behind it is handed out."""
        return min((one.first for one in self.transactions if one.end is None), default=self.end)

    def aborted(self, start: int) -> list[tuple[int, int]]:
        """What a broker says of a fetch at `start`."""
        return [
            (one.producer, one.first)
            for one in self.transactions
            if one.end is not None and one.end[0] == ABORT and one.end[1] >= start and one.first < self.stable_end()
        ]

    def fetched(self, start: int) -> bytes:
        """The data of a fetch at `start`: from the batch on that holds it, up to the last stable offset."""
        return b"".join(data for _, last, data in self.batches if start <= last < self.stable_end())

    def committed(self, start: int) -> dict[int, bytes]:
        """What a consumer has to get."""
        gone = {
            offset for one in self.transactions if one.end is not None and one.end[0] == ABORT for offset in one.offsets
        }
        return {
            offset: payload
            for offset, payload in self.payloads.items()
            if start <= offset < self.stable_end() and offset not in gone
        }


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log of turns at random."""
    log = Log()
    codecs = st.sampled_from([RecordCodec.NONE, RecordCodec.NONE, RecordCodec.GZIP])
    for _ in range(draw(st.integers(1, 25))):
        producer = draw(st.sampled_from(PRODUCERS))
        match draw(st.sampled_from(["send", "send", "send", "plain", "abort", "commit"])):
            case "send":
                log.send(producer, draw(st.integers(1, 3)), draw(codecs), transactional=True)
            case "plain":
                log.send(producer, draw(st.integers(1, 3)), draw(codecs), transactional=False)
            case "abort":
                log.finish(producer, ABORT)
            case _:
                log.finish(producer, COMMIT)
    for producer in PRODUCERS:  # some stay open
        if draw(st.booleans()):
            log.finish(producer, draw(st.sampled_from([ABORT, COMMIT])))
    return log


@settings(max_examples=200)
@given(logs(), st.integers(0, 40))
def test_hands_out_the_committed_messages_of_interleaved_transactions(log: Log, skipped: int) -> None:
    start = min(skipped, log.stable_end())
    found = decode_records(log.fetched(start), start, aborted=log.aborted(start))
    assert dict(zip(found.offsets, found.payloads, strict=True)) == log.committed(start)
    assert found.next_offset == max(start, log.stable_end())


def test_one_producer_s_abort_leaves_another_s_transaction_aborted() -> None:
    log = Log()
    for producer in PRODUCERS[:2]:
        log.send(producer, 1, RecordCodec.NONE, transactional=True)
    log.finish(PRODUCERS[0], ABORT)
    log.send(PRODUCERS[1], 2, RecordCodec.NONE, transactional=True)
    log.send(PRODUCERS[0], 1, RecordCodec.NONE, transactional=True)
    log.finish(PRODUCERS[0], COMMIT)
    log.finish(PRODUCERS[1], ABORT)
    log.send(PRODUCERS[1], 1, RecordCodec.NONE, transactional=False)
    found = decode_records(log.fetched(0), 0, aborted=log.aborted(0))
    assert found.payloads == [b"5 of 5", b"8 of 6"]
