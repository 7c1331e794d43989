from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.operate.migrate.archive_source import ArchiveSource
from consumerd.operate.migrate.message_source import SourceMessage, UnreadableStretch
from consumerd.storage import segment_name
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

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
    source = ArchiveSource([str(tmp_path)], broker=7)
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
    source = ArchiveSource([str(tmp_path)], ["events"], layout="broker-{broker}/{topic}-{partition}")
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
        await ArchiveSource([str(tmp_path)]).partitions()
    with pytest.raises(NotFoundError, match="no segments of the topic 'other'"):
        await ArchiveSource([str(tmp_path)], ["other"], broker=0).partitions()
    (tmp_path / "copy" / "events-1").mkdir(parents=True)
    (tmp_path / "copy" / "events-1" / segment_name(0)).write_bytes(encode_message_set([b"x"]))
    with pytest.raises(ConfigError, match="are the same segment"):
        await ArchiveSource([str(tmp_path)], broker=0).partitions()
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(b"")
    with pytest.raises(ConfigError, match="decompress it first"):
        await ArchiveSource([str(packed)], broker=0).partitions()
