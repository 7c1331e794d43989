"""Files that another program, a crash or a user may have changed: logs, archives, exports, dead letters, offsets."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import zstandard

from consumerd.base.errors import ConfigError, CorruptDataError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import dead_letter_progress
from consumerd.handlers.builtin.range_logs import last_log
from consumerd.handlers.dead_letter_files import read_lines
from consumerd.handlers.dead_letter_progress import Receiver, ReplayProgress, Selection
from consumerd.handlers.dead_letters import Letter, encode_letter
from consumerd.handlers.messages import KeyedMessage, Message
from consumerd.handlers.recorded import record_messages
from consumerd.operate.admin.errors import OffsetFileError
from consumerd.operate.admin.offset_file import format_json, parse_offsets
from consumerd.storage import LogManager, LogSettings, OsFiles, StorageError
from consumerd.storage.archives.errors import OutputFolderError
from consumerd.storage.archives.findings import SegmentSummary
from consumerd.storage.archives.manifest import Manifest, ManifestEntry, load
from consumerd.storage.archives.options import ExportOptions
from consumerd.storage.archives.outputs import is_output
from consumerd.storage.log.archive_names import ArchiveLayout, MisnamedSegmentError, SegmentName
from consumerd.storage.log.archive_tiered import MANIFEST_BYTES, TieredManifest, parse_manifest
from consumerd.storage.log.manager import CLEAN_MARKER
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.cluster_metadata import ClusterMetadataReader
from consumerd.storage.segments.copies import parse_epochs
from consumerd.storage.segments.fields import UnreadableRecordError
from consumerd.storage.segments.group_offsets import read_key, read_value
from consumerd.storage.segments.transaction_log import read_transaction, read_transactional_id
from consumerd.wire import crc32
from consumerd.wire.v07 import Codec, encode_message_set, iter_outer
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from consumerd.wire.v08.records import encode_message_set as encode_message_set_v08
from tests.fuzz.laws_archive import exercise_batches, exercise_packed, exercise_segment, exercise_tar
from tests.fuzz.mending import changed_json, changed_records, changed_set
from tests.fuzz.mending_packed import changed_packed, changed_tar
from tests.fuzz.targets.target import Target
from tests.support.forgetful_disk import ForgetfulDisk

_LOGS: Final = Path("/logs")
_SEGMENT: Final = "00000000000000001000.kafka"


# -- logs and archives


def _segments() -> dict[str, bytes]:
    found = {codec.name.lower(): encode_message_set([b"one", b"two" * 9], codec=codec) for codec in Codec}
    plain = encode_message_set([b"one", b"two", b"three"])
    found["hole"] = plain + bytes(30) + plain
    found["torn"] = plain[:-3]
    found["changed"] = plain[:12] + b"?" + plain[13:] + plain
    return found


def _stored_segments() -> dict[str, bytes]:
    sets = [encode_message_set_v08([b"one", b"two" * 9], magic=magic, base_offset=1000) for magic in (0, 1)]
    packed = encode_message_set_v08([b"one", b"two"], magic=1, codec=RecordCodec.SNAPPY, base_offset=1002)
    batch = encode_record_batch([b"three", None], codec=RecordCodec.GZIP, base_offset=1004, leader_epoch=1)
    return {
        "sets": b"".join(sets),
        "all": sets[0] + packed + batch,
        "hole": sets[0] + b"\xff" * 30 + batch,
        "torn": packed + batch[:-3],
        "zeros": batch + bytes(40),
        "changed": sets[0] + packed[:20] + b"?" + packed[21:] + batch,
    }


def _check_recovery(data: bytes) -> None:
    """After a crash: the intact messages at the beginning stay, the rest is cut, and the next start cuts nothing."""
    disk = ForgetfulDisk(random.Random(1))
    files = OsFiles(disk)
    folder = _LOGS / "events-0"
    files.make_directory(folder)
    files.replace(folder / _SEGMENT, [data])
    ends = []
    for _ in range(2):
        manager = LogManager(_LOGS, files, lambda topic: LogSettings())
        report = manager.open(0.0)
        log = manager.get("events", 0)
        assert log is not None
        ends.append(log.end_offset)
        kept = log.read(1000, 1 << 20)
        assert kept == data[: len(kept)]
        assert log.end_offset == 1000 + len(kept)
        for message in iter_outer(kept, 1000):  # the broker keeps what it need not decompress, as 0.7.2 does
            assert message.valid or (message.codec is None and crc32(message.payload) == message.crc)
        manager.abandon()
        assert bool(report.truncated) is (len(ends) == 1 and len(kept) < len(data))
    assert ends[0] == ends[1]


def _check_marker(data: bytes) -> None:
    """The note of a clean stop is believed about the end of a log, or every log is checked."""
    files = OsFiles(ForgetfulDisk(random.Random(1)))
    folder = _LOGS / "events-0"
    files.make_directory(folder)
    messages = encode_message_set([b"one"])
    files.replace(folder / _SEGMENT, [messages])
    files.replace(_LOGS / CLEAN_MARKER, [data])
    manager = LogManager(_LOGS, files, lambda topic: LogSettings())
    with suppress(StorageError):
        manager.open(0.0)
        log = manager.get("events", 0)
        assert log is not None
        assert log.end_offset == 1000 + len(messages)
        manager.abandon()


def _markers() -> dict[str, bytes]:
    texts = {"right": {"events-0": 1013}, "wrong": {"events-0": 5, "other-1": "7"}}
    found = {name: json.dumps({"version": 1, "ends": ends}).encode() for name, ends in texts.items()}
    return {**found, "kafka": b"", "nested": b'{"ends":' + b"[" * 100}


def _tars() -> dict[str, bytes]:
    found = {}
    for name, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as tar:
            for topic in ("events", "deep/" * 25 + "\u00e4"):
                member = tarfile.TarInfo(f"{topic}-0/{_SEGMENT}")
                member.size = 5
                tar.addfile(member, io.BytesIO(b"bytes"))
        found[name] = file.getvalue().rstrip(b"\0") + bytes(1024)
    return found


def _packed() -> dict[str, bytes]:
    data = encode_message_set([b"one", b"two" * 20])
    return {
        "gzip": gzip.compress(data, mtime=0),
        "members": gzip.compress(data, mtime=0) * 2,
        "zstd": zstandard.compress(data),
        "frames": zstandard.compress(data) * 2,
    }


def _check_epochs(data: bytes) -> None:
    """Epochs that ascend, or CorruptDataError."""
    with suppress(CorruptDataError):
        entries = parse_epochs(data)
        assert list(entries) == sorted(entries)
        assert data.startswith(b"0")
        text = "".join(f"{entry.epoch} {entry.start}\n" for entry in entries)
        assert parse_epochs(f"0\n{len(entries)}\n{text}".encode()) == entries


def _epochs() -> dict[str, bytes]:
    return {"none": b"0\n0\n", "two": b"0\n2\n0 0\n7 1000\n", "wrong": b"0\n2\n7 0\n3 10\n"}


def _check_tiered_manifest(data: bytes) -> None:
    """How a segment is stored, by an object of version 1 that says so, or CorruptDataError."""
    with suppress(CorruptDataError):
        found = parse_manifest(data)
        assert len(data) <= MANIFEST_BYTES
        told = json.loads(data)
        assert found == TieredManifest(told["compression"], told.get("encryption") is not None)


def _tiered_manifests() -> dict[str, bytes]:
    chunks = {"type": "fixed", "originalChunkSize": 1024, "originalFileSize": 3000, "transformedChunks": "AAAA"}
    plain = {"version": "1", "chunkIndex": chunks, "segmentIndexes": {"offset": {"position": 0}}, "compression": False}
    encryption = {"dataKey": "key1:c2VjcmV0", "aad": "YWFk"}
    found = {"plain": plain, "zstd": plain | {"compression": True}, "encrypted": plain | {"encryption": encryption}}
    texts = {name: json.dumps(manifest).encode() for name, manifest in found.items()}
    return {**texts, "array": b"[]", "nested": b'{"version":"1","chunkIndex":' + b"[" * 100}


def _check_cluster(data: bytes) -> None:
    """Each record of the cluster's metadata is a change, nothing that counts, or is counted as unreadable."""
    reader = ClusterMetadataReader()
    values = data.split(b"|")
    for item in read_batches(io.BytesIO(encode_record_batch(values)), 0):
        assert isinstance(item, StoredBatch)
        reader.take(item)
    assert reader.unreadable <= len(values)
    assert json.dumps([topic.as_json() for topic in reader.topics().values()])


def _clusters() -> dict[str, bytes]:
    records = {
        "topic": "010200056b65707425d2f2f9f3f64f96958bc1ec4f5854b500",
        "configuration": "01040002056b6570740d726574656e74696f6e2e6d73083130303030303000",
        "partition": "0103020000000025d2f2f9f3f64f96958bc1ec4f5854b502000000010200000001010100000001000000000000000000",
        "change": "0105000000000025d2f2f9f3f64f96958bc1ec4f5854b502000502000000020209030000000200000003",
        "removal": "01090025d2f2f9f3f64f96958bc1ec4f5854b500",
        "begin": "01170000",
        "end": "01180000",
    }
    found = {name: bytes.fromhex(record) for name, record in records.items()}
    return {**found, "all": b"|".join(found.values())}


def _check_broker_records(data: bytes) -> None:
    """Keys and values of the brokers' own topics, or UnreadableRecordError."""
    for read in (read_key, read_value, read_transactional_id, read_transaction):
        with suppress(UnreadableRecordError):
            read(data)


def _broker_records() -> dict[str, bytes]:
    head = "0000000000000000000000000000ea60010000000100066576656e7473"
    values = {
        "id": "00000006636f70792d31",
        "old": head + "0000000100000000000001a22559d82b000001a22559d82b",
        "flexible": "0001000000000000000200000000ea600102076576656e747302000000010000" + "0001a22565ddf500" * 2 + "00",
        "commit": "0003000000000000000affffffff0001780000018bcfe56800",
        "commit-key": "00010001670001740000000a",
    }
    return {name: bytes.fromhex(value) for name, value in values.items()}


# -- exports


def _manifests() -> dict[str, bytes]:
    name = SegmentName("events", 0, 1, 1000)
    summary = SegmentSummary("logs/events-1/x.kafka", "stamp", name.folder, 1000, name, 13, 1)
    output = "events/0-1/00000000000000001000-00000000000000001013.ndjson"
    entry = ManifestEntry(summary, "fail", output, 1000, 1013, 1, 50, "00" * 32)
    options = ExportOptions().fixed()
    found = {
        "empty": Manifest(options).dump(),
        "one": Manifest(options, {entry.key: entry}).dump(),
        "other": Manifest({**options, "base64": True}, {entry.key: entry}).dump(),
    }
    return {**found, "nested": b'{"manifest":' + b"[" * 100}


def _check_manifest(data: bytes) -> None:
    """A manifest that is written and read again, with no file outside of its folder; or OutputFolderError."""
    options = ExportOptions()
    try:
        found = load(data, options)
    except OutputFolderError:
        return
    assert all(is_output(output) for output in found.outputs())


def _check_names(data: bytes) -> None:
    """Names of segments, outputs and ranges."""
    name = data.decode(errors="replace")
    with suppress(MisnamedSegmentError):
        found = ArchiveLayout().name(name)
        assert found.topic not in ("", ".", "..")
        assert "/" not in found.topic
    with suppress(ConfigError):
        layout = ArchiveLayout(name)
        with suppress(MisnamedSegmentError):
            layout.name(f"events-1/{_SEGMENT}")
    if is_output(name):
        assert ".." not in name.split("/")
    stored, _ = last_log("folder", [name], ".ndjson")
    assert stored.end is None or stored.position == stored.end


def _names() -> dict[str, bytes]:
    texts = (
        f"a/events-1/{_SEGMENT}.gz",
        "broker-{broker}/*/{topic}-{partition}",
        "events/0-1/00000000000000001000-00000000000000001013.ndjson.gz",
        "00000000000000001000-00000000000000001013.ndjson",
    )
    return {text: text.encode() for text in texts}


# -- messages in lines


def _letters() -> dict[str, bytes]:
    old: Any = Message(TopicPartition("events", 0, 1), 1000, 0, 1013, b"payload")
    new: Any = KeyedMessage(TopicPartition.numbered("events", 1), 5, 0, 6, None, b"key", 7, 0, (("name", None),))
    lines = [encode_letter(Letter(message, ValueError("no"), 3), 1.5) + b"\n" for message in (old, new)]
    return {
        "v07": lines[0],
        "v08": lines[1],
        "both": b"".join(lines),
        "torn": lines[0][:50],
        "nested": b"[" * 200 + b"\n",
    }


def _check_letters(data: bytes) -> None:
    """Lines follow each other, each is a letter or has a problem; all but an unfinished last one are there."""
    end = 0
    for line in read_lines(io.BytesIO(data), Path("letters")):
        assert line.start == end
        assert (line.letter is None) is bool(line.problem)
        end = line.end
    assert b"\n" not in data[end:]


def _check_records(data: bytes) -> None:
    with suppress(CorruptDataError):
        for message in record_messages(io.BytesIO(data)):
            assert message.offset >= 0


def _record_lines() -> dict[str, bytes]:
    old = {"topic": "t", "broker": 0, "partition": 1, "offset": 2, "index": 0, "payload": "text"}
    new = {**old, "broker": None, "payload_base64": "AAA=", "key": "k", "timestamp": 1, "headers": [["n", "AA=="]]}
    return {name: json.dumps(each).encode() + b"\n" for name, each in (("v07", old), ("v08", new))}


@cache
def _folder() -> TemporaryDirectory[str]:
    """Of one file, written again for each input."""
    return TemporaryDirectory()


def _check_progress(data: bytes) -> None:
    path = Path(_folder().name) / "progress.json"
    path.write_bytes(data)
    with suppress(ConfigError), patch.object(dead_letter_progress, "_ROUNDS", 1):
        progress = ReplayProgress(path, selection=Selection(), receiver=Receiver("target"))
        before = progress.of("digest")
        assert before >= 0
        progress.note("digest", 7)
        assert ReplayProgress(path, selection=Selection(), receiver=Receiver("target")).of("digest") == 7


def _progresses() -> dict[str, bytes]:
    found = {'["target", null, null]': {"digest": 5}, '["other", "t", null]': {}}
    record = {"receiver": "x", "selection": {"topic": "t", "error_type": None}, "key": "00", "files": {"digest": 5}}
    return {
        "earlier": json.dumps({"replayed": found}).encode(),
        "two": json.dumps({"salt": "00" * 16, "replayed": [record, record]}).encode(),
        "nested": b'{"replayed":' + b"[" * 100,
    }


def _check_offsets(data: bytes) -> None:
    """Offsets that are the same when they are written as JSON and read again, or OffsetFileError."""
    with suppress(OffsetFileError):
        found = parse_offsets(data.decode(errors="replace"), "file")
        assert parse_offsets(format_json(found), "again") == found


def _offset_files() -> dict[str, bytes]:
    partitions = {TopicPartition("events", 0, 1): 1000, TopicPartition("events", 0, 2): None}
    return {
        "text": b"/consumers/group/offsets/events/0-1:1000\n/consumers/group/offsets/events/2:7\n",
        "json": format_json({"group": partitions}).encode(),
        "nested": b'{"groups":' + b"[" * 100,
    }


TARGETS: Final = (
    Target(
        "segment",
        "Runs and flaws tile a segment, and how reads are cut makes no difference.",
        exercise_segment, _segments, changed_set, 1024,
    ),
    Target(
        "stored-segment",
        "Batches and flaws tile a segment since 0.8, and how reads are cut makes no difference.",
        exercise_batches, _stored_segments, changed_records, 1024,
    ),
    Target("leader-epochs", "Epochs that ascend, or CorruptDataError.", _check_epochs, _epochs),
    Target(
        "tiered-manifest", "How a tiered segment is stored, or CorruptDataError.",
        _check_tiered_manifest, _tiered_manifests, changed_json, 8192,
    ),
    Target("cluster-metadata", "Changes of topics, or records that are counted.", _check_cluster, _clusters),
    Target(
        "broker-records", "Offsets and transactions, or UnreadableRecordError.",
        _check_broker_records, _broker_records,
    ),
    Target(
        "log-recovery",
        "The intact messages at the beginning of a log stay, the rest is cut off once.",
        _check_recovery, _segments, changed_set,
    ),
    Target(
        "clean-marker", "The note of a clean stop never changes a log.",
        _check_marker, _markers, changed_json, 8192,
    ),
    Target(
        "archive-tar", "Members, or DamagedArchiveError, however reads are cut.",
        exercise_tar, _tars, changed_tar, 8192,
    ),
    Target(
        "archive-packed", "The same bytes however reads are cut, or DamagedArchiveError.",
        exercise_packed, _packed, changed_packed,
    ),
    Target(
        "manifest", "Names of files in the folder, or OutputFolderError.",
        _check_manifest, _manifests, changed_json, 8192,
    ),
    Target("file-names", "Names stay below their folder, or their declared errors.", _check_names, _names),
    Target("dead-letters", "Each line is a letter or has a problem.", _check_letters, _letters, changed_json, 8192),
    Target("record-lines", "Messages, or CorruptDataError.", _check_records, _record_lines, changed_json, 8192),
    Target(
        "replay-progress", "The progress of a replay, or ConfigError.",
        _check_progress, _progresses, changed_json, 8192,
    ),
    Target("offset-files", "Offsets, or OffsetFileError.", _check_offsets, _offset_files, changed_json, 8192),
)  # fmt: skip
