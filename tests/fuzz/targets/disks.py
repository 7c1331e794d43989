"""The folders of a broker's disk since 0.8: segments with what lies beside them, in memory.

An input is the files of a folder, one behind the other with a separator between them, in the order of `_NAMES`.
"""

from __future__ import annotations

import errno
import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from consumerd.storage.archives.cluster_metadata import read_cluster_metadata
from consumerd.storage.archives.copies import compare_listed
from consumerd.storage.archives.folders import ArchiveFolder
from consumerd.storage.archives.listing import MOST_FINDINGS, ListedPartition, list_partition
from consumerd.storage.archives.segment_ends import IndexFile, SegmentPlace, ends_of, ends_of_stream
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.group_offsets import GroupOffsetsReader
from consumerd.storage.segments.transaction_log import TransactionsReader
from consumerd.wire.v08.records import encode_message_set, encode_record_batch
from tests.fuzz.mending import changed_records
from tests.fuzz.targets.target import Target
from tests.support.archives import batch, marker

if TYPE_CHECKING:
    import random

_NEXT: Final = b"\n==>\n"
_FIRST: Final = f"{0:020}"
_SECOND: Final = f"{3:020}"
_NAMES: Final = (
    f"{_FIRST}.log", f"{_FIRST}.index", f"{_SECOND}.log", f"{_SECOND}.index",
    "leader-epoch-checkpoint", "partition.metadata", "meta.properties",
)  # fmt: skip
_METADATA_NAMES: Final = (f"{_FIRST}.log", f"{_SECOND}.log", f"{9:020}-{1:010}.checkpoint")
_ID: Final = b"version: 0\ntopic_id: MkTsQ5zXQ2uVGZ0p3Zy4ag\n"


class _Files:
    """The files of an input."""

    def __init__(self, data: bytes, names: Sequence[str]) -> None:
        self.found = dict(zip(names, data.split(_NEXT), strict=False))

    def names(self, folder: str) -> list[str]:
        return [*self.found]

    def size(self, path: str) -> int | None:
        return len(self._content(path))

    @contextmanager
    def open(self, path: str) -> Iterator[io.BytesIO]:
        yield io.BytesIO(self._content(path))

    def known_ends(self, path: str) -> None:
        """None of them."""

    def _content(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if name not in self.found:
            raise FileNotFoundError(errno.ENOENT, "there is no such file")
        return self.found[name]


def _listed(data: bytes) -> ListedPartition:
    files = _Files(data, _NAMES)
    found = list_partition(ArchiveFolder("disk/events-0", files.names(""), files))
    assert found is not None
    return found


def _check_folder(data: bytes) -> None:
    """Offsets that are some, a bounded number of findings, and the same without an index whichever way it is read."""
    listed = _listed(data)
    json.dumps(listed.as_json())
    assert listed.start == 0
    assert listed.end is None or 0 <= listed.end < 1 << 63
    assert len(listed.findings) <= MOST_FINDINGS + 1
    other = _listed(_NEXT.join([*data.split(_NEXT)[2:], b"", b""]))
    compare_listed([listed, other])
    assert listed.read or other.read
    segment, index = (*data.split(_NEXT), b"")[:2]
    place = SegmentPlace(0, _NAMES[0], len(segment))
    whole = ends_of(io.BytesIO(segment), place, None)
    assert ends_of_stream(io.BytesIO(segment), place.name, 0) == whole
    by_index = ends_of(io.BytesIO(segment), place, IndexFile(io.BytesIO(index), len(index)))
    assert (by_index.first_time, by_index.dialect, by_index.size) == (whole.first_time, whole.dialect, whole.size)


def _folders() -> dict[str, bytes]:
    first = batch(0, b"one", leader_epoch=1, timestamps=[7]) + batch(1, b"two", b"x" * 50, leader_epoch=1)
    second = batch(3, b"three", leader_epoch=2, producer=5) + marker(4, 5, commit=True)
    index = struct.pack(">ii", 2, len(batch(0, b"one")))
    small = [b"0\n2\n1 0\n2 3\n", _ID, b"version=1\nnode.id=3\n"]
    old = encode_message_set([b"old"], magic=1, base_offset=0, timestamps=7)
    return {
        "whole": _NEXT.join([first, index, second, b"", *small]),
        "torn": _NEXT.join([first[:-5], index, second[:-5], bytes(16), b"0\n1\n9 9\n", *small[1:]]),
        "gap": _NEXT.join([first[:75], b"", second]),
        "old": _NEXT.join([old, struct.pack(">ii", 9, 9), old]),
        "zeros": _NEXT.join([first + bytes(40), index, bytes(70)]),
        "one": first,
    }


def _check_metadata(data: bytes) -> None:
    """Topics that can be shown, or findings."""
    found = read_cluster_metadata("disk/__cluster_metadata-0", _Files(data, _METADATA_NAMES))
    json.dumps([topic.as_json() for topic in found.topics.values()])
    assert not found.deleted.keys() & set(found.ids.values())


def _metadata() -> dict[str, bytes]:
    deleted = "25d2f2f9f3f64f96958bc1ec4f5854b5"
    topic = bytes.fromhex(f"010200056b657074{deleted}00")
    partition = f"01030200000000{deleted}02000000010200000001010100000001000000000000000000"
    log = encode_record_batch([topic, bytes.fromhex(partition)], leader_epoch=1)
    later = encode_record_batch([bytes.fromhex(f"010900{deleted}00")], base_offset=3, leader_epoch=1)
    head, foot = (encode_record_batch([bytes(6)], keys=[struct.pack(">hh", 0, kind)]) for kind in (3, 4))
    return {"log": _NEXT.join([log, later]), "snapshot": _NEXT.join([b"", later, head + log + foot])}


def _check_brokers_topics(data: bytes) -> None:
    """Offsets and transactions by the batches of the brokers' own topics; a record that cannot be read is counted."""
    for reader in (GroupOffsetsReader(None), TransactionsReader(None)):
        records = 0
        for item in read_batches(io.BytesIO(data), 0):
            if isinstance(item, StoredBatch):
                records += len(item.records)
                reader.take(0, item)
        assert reader.unreadable <= records
        shown = reader.offsets() if isinstance(reader, GroupOffsetsReader) else reader.transactions()
        assert len(shown) <= records


def _brokers_topics() -> dict[str, bytes]:
    key, value = (
        bytes.fromhex(each)
        for each in ("00010001670001740000000a", "0003000000000000000affffffff0001780000018bcfe56800")
    )
    ongoing = "0000000000000000000000000000ea60010000000100066576656e7473"
    ongoing += "0000000100000000000001a22559d82b000001a22559d82b"
    transaction = batch(3, bytes.fromhex(ongoing), keys=[bytes.fromhex("00000006636f70792d31")])
    return {
        "commits": batch(0, value, None, keys=[key, key]),
        "in a transaction": batch(0, value, keys=[key], producer=7) + marker(1, 7, commit=True),
        "transactions": transaction,
    }


def _changed(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """One of the files with right CRCs, as often as the bytes."""
    files = data.split(_NEXT)
    number = rng.randrange(len(files))
    files[number] = changed_records(files[number], change, rng) if rng.random() < 0.7 else change(files[number])
    return _NEXT.join(files)


TARGETS: Final = (
    Target(
        "partition-folder", "What a folder shows has bounds, however it is read.",
        _check_folder, _folders, _changed,
    ),
    Target("metadata-folder", "The topics of a metadata log, or findings.", _check_metadata, _metadata, _changed),
    Target(
        "brokers-topics", "Offsets and transactions by batches, or records that are counted.",
        _check_brokers_topics, _brokers_topics, changed_records,
    ),
)  # fmt: skip
