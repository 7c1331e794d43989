from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.forward.mapping import TopicNaming
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.operate.migrate.archive_source import ArchiveSource, StoredArchiveSource, archive_source
from consumerd.operate.migrate.message_source import MessageSource, SourceMessage, UnreadableStretch
from consumerd.operate.migrate.verify import Comparison
from consumerd.storage import segment_name
from consumerd.storage.archives.sources import find_sources
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.records import Record, RecordCodec, TimestampType
from tests.support.archives import batch, marker, write_segment

PARTITION = TopicPartition("events", 7, 1)


def segments() -> list[tuple[int, bytes]]:
    """Three, with plain messages of both magics and wrappers."""
    made, start = [], 0
    for number in range(3):
        payloads = [b"%d-%d" % (number, n) * (n % 7) for n in range(12)]
        data = (
            encode_message_set(payloads, magic=0)
            + encode_message_set(payloads, codec=Codec.GZIP, magic=1)
            + encode_message_set(payloads, magic=1)
            + encode_message_set(payloads, codec=Codec.SNAPPY, magic=1)
        )
        made.append((start, data))
        start += len(data)
    return made


def whole(made: list[tuple[int, bytes]]) -> list[SourceMessage]:
    return [
        SourceMessage(message.offset, message.index, message.payload)
        for start, data in made
        for message in decode_batch(data, start).messages()
    ]


async def read(source: ArchiveSource, start: int, end: int) -> tuple[list[SourceMessage], list[UnreadableStretch]]:
    found: list[SourceMessage] = []
    unreadable: list[UnreadableStretch] = []
    async for piece in source.read(PARTITION, start, end):
        if isinstance(piece, UnreadableStretch):
            unreadable.append(piece)
        else:
            found += piece
    return found, unreadable


async def test_reads_any_range_of_plain_compressed_and_tarred_segments(tmp_path: Path) -> None:
    folder = tmp_path / "events-1"
    folder.mkdir()
    made = segments()
    (folder / segment_name(made[0][0])).write_bytes(made[0][1])
    (folder / (segment_name(made[1][0]) + ".gz")).write_bytes(gzip.compress(made[1][1]))
    with tarfile.open(tmp_path / "rest.tar", "w") as tar:
        member = tarfile.TarInfo("events-1/" + segment_name(made[2][0]))
        member.size = len(made[2][1])
        tar.addfile(member, io.BytesIO(made[2][1]))
    source = ArchiveSource(find_sources([str(tmp_path)]), broker=7)
    end = made[2][0] + len(made[2][1])
    assert await source.partitions() == {PARTITION: (0, end)}
    messages = whole(made)
    bounds = sorted({message.offset for message in messages} | {end})
    for low, high in [(0, end), *zip(bounds[::5], bounds[7::5], strict=False), (bounds[3], end), (0, bounds[-2])]:
        found, unreadable = await read(source, low, high)
        assert not unreadable
        assert found == [message for message in messages if low <= message.offset < high]


async def test_reports_flaws_except_for_a_torn_end(tmp_path: Path) -> None:
    folder = tmp_path / "broker-7" / "events-1"
    folder.mkdir(parents=True)
    (start, data), *_ = segments()
    damaged = bytearray(data)
    damaged[9 + 5] ^= 1  # in the checksum of the second message: the first takes 9 bytes
    (folder / segment_name(start)).write_bytes(bytes(damaged) + b"\x00\x00\x00\x20\x01")
    source = ArchiveSource(find_sources([str(tmp_path)]), ["events"], layout="broker-{broker}/{topic}-{partition}")
    bounds = await source.partitions()
    assert bounds == {PARTITION: (0, len(data))}
    found, unreadable = await read(source, 0, len(data))
    assert len(unreadable) == 1
    assert "CRC" in unreadable[0].problem
    assert len(found) == len(whole([(start, data)])) - 1


async def test_requires_what_names_do_not_tell(tmp_path: Path) -> None:
    folder = tmp_path / "events-1"
    folder.mkdir()
    (folder / segment_name(0)).write_bytes(encode_message_set([b"x"]))
    with pytest.raises(ConfigError, match="has no broker: give --broker-id"):
        await ArchiveSource(find_sources([str(tmp_path)])).partitions()
    with pytest.raises(NotFoundError, match="no segments of the topic 'other'"):
        await ArchiveSource(find_sources([str(tmp_path)]), ["other"], broker=0).partitions()
    (tmp_path / "copy" / "events-1").mkdir(parents=True)
    (tmp_path / "copy" / "events-1" / segment_name(0)).write_bytes(encode_message_set([b"x"]))
    with pytest.raises(ConfigError, match="are the same segment"):
        await ArchiveSource(find_sources([str(tmp_path)]), broker=0).partitions()
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(b"")
    with pytest.raises(ConfigError, match="decompress it first"):
        await ArchiveSource(find_sources([str(packed)]), broker=0).partitions()


STORED = TopicPartition.numbered("events", 1)


def disk(root: Path, *, more: bytes = b"") -> Path:
    write_segment(root, "events-1", 0, batch(0, b"a", None), batch(2, b"aborted", producer=9))
    write_segment(root, "events-1", 3, marker(3, 9, commit=False), batch(4, b"c", codec=RecordCodec.GZIP), more)
    return root


async def stored(source: MessageSource, start: int, end: int) -> list[SourceMessage | UnreadableStretch]:
    found: list[SourceMessage | UnreadableStretch] = []
    async for piece in source.read(STORED, start, end):
        found += [piece] if isinstance(piece, UnreadableStretch) else piece
    return found


@pytest.mark.parametrize(("committed", "third"), [(False, [SourceMessage(2, 0, b"aborted")]), (True, [])])
async def test_reads_any_range_of_segments_since_08(
    tmp_path: Path, committed: bool, third: list[SourceMessage]
) -> None:
    source = archive_source([str(disk(tmp_path))], committed=committed)
    assert await source.partitions() == {STORED: (0, 5)}
    whole = [SourceMessage(0, 0, b"a"), SourceMessage(1, 0, None), *third, SourceMessage(4, 0, b"c")]
    assert await stored(source, 0, 5) == whole
    for start in range(5):
        for end in range(start, 6):
            assert await stored(source, start, end) == [each for each in whole if start <= each.offset < end]


async def test_of_several_copies_the_right_one_is_compared_and_damage_is_named(tmp_path: Path) -> None:
    disk(tmp_path / "one")
    disk(tmp_path / "two", more=batch(5, b"d") + b"nonsense" * 9 + batch(6, b"e"))
    source = archive_source([str(tmp_path / "one"), str(tmp_path / "two")], ["events"])
    assert await source.partitions() == {STORED: (0, 7)}
    assert isinstance(source, StoredArchiveSource)
    (note,) = source.notes
    assert "it ends at offset 5" in note
    problem, *rest = await stored(source, 5, 7)
    assert isinstance(problem, UnreadableStretch)
    assert problem.offset == 6
    assert rest == [SourceMessage(5, 0, b"d"), SourceMessage(6, 0, b"e")]


async def test_compares_an_archive_since_08_with_what_was_forwarded(tmp_path: Path) -> None:
    class Target:
        def __init__(self, messages: list[SourceMessage]) -> None:
            mark = SourceMark(STORED, None)
            self.records = [
                Record(place, 0, place + 1, each.payload, None, 0, TimestampType.CREATE_TIME, mark.headers(*each))
                for place, each in enumerate(messages)
            ]

        async def partitions(self, topic: str) -> list[int]:
            return [0]

        async def bounds(self, topic: str, partition: int) -> LogBounds:
            return LogBounds(0, len(self.records))

        async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
            yield self.records[start:end]

    source = archive_source([str(disk(tmp_path))])
    await source.partitions()
    messages = [each for each in await stored(source, 0, 5) if isinstance(each, SourceMessage)]
    assert (await Comparison(source, Target(messages), TopicNaming()).run()).is_clean()
    changed = [*messages[:1], messages[1]._replace(payload=b"no tombstone"), *messages[3:]]
    totals = (await Comparison(source, Target(changed), TopicNaming()).run()).totals
    assert (totals.source, totals.there, totals.missing, totals.changed) == (4, 2, 1, 1)


def test_an_archive_of_both_dialects_and_a_broker_id_are_refused(tmp_path: Path) -> None:
    disk(tmp_path)
    with pytest.raises(ConfigError, match="--broker-id is for segments"):
        archive_source([str(tmp_path)], broker=1)
    (tmp_path / "events-1" / segment_name(0)).write_bytes(encode_message_set([b"a"]))
    with pytest.raises(ConfigError, match="compare one of the two at a time"):
        archive_source([str(tmp_path)])
    assert isinstance(archive_source([str(tmp_path / "events-1" / segment_name(0))]), ArchiveSource)
