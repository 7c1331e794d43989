"""Names and manifests of tiered segments, by the layouts of two public plugins for tiered storage (KIP-405). Pure.

    Aiven's plugin         PREFIX TOPIC-TOPICID/PARTITION/OFFSET-SEGMENTID.log, and .rsm-manifest beside it
    LocalTieredStorage     TOPIC-PARTITION-TOPICID/OFFSET-SEGMENTID.log, of Kafka's own tests

Aiven's plugin divides a segment into chunks, each of which may be compressed to a frame of zstd, and encrypted. Frames
that follow each other are read like one, so only the manifest's members about compression and encryption are needed.
Source: what the plugins publish; of Aiven's, segments that it wrote were not at hand.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from consumerd.base.errors import CorruptDataError

#: The state of a partition's folder in tiered storage, beside those of `PartitionFolder`.
TIERED: Final = "tiered"
MANIFEST_SUFFIX: Final = ".rsm-manifest"
#: The most bytes of a manifest: that of a segment of 2 GiB has a few thousand.
MANIFEST_BYTES: Final = 1 << 20
#: The first bytes of a frame of zstd.
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LOG: Final = ".log"
_ID: Final = r"[A-Za-z0-9_-]{22}"
_FILE: Final = re.compile(rf"([0-9]{{1,20}})-{_ID}\.log")
_TOPIC_FOLDER: Final = re.compile(rf"(.+)-({_ID})", re.DOTALL)
_PARTITION_FOLDER: Final = re.compile(rf"(.+)-([0-9]{{1,10}})-({_ID})", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,10}")


class TieredFolder(NamedTuple):
    """The partition of a folder with tiered segments. With a prefix that does not end with `/`, `topic` has it."""

    topic: str
    partition: int
    topic_id: str


class TieredManifest(NamedTuple):
    """How the plugin stored a segment."""

    compressed: bool
    encrypted: bool


def tiered_start(file: str) -> int | None:
    """The offset at which a tiered segment of this file name starts; None for another file."""
    match = _FILE.fullmatch(file)
    return int(match[1]) if match is not None and int(match[1]) < 1 << 63 else None


def parse_tiered_folder(parent: str, name: str) -> TieredFolder | None:
    """The partition by the names of a folder and the one above; None where they are not those of a tiered one."""
    if _NUMBER.fullmatch(name) is not None:
        match = _TOPIC_FOLDER.fullmatch(parent)
        found = None if match is None else TieredFolder(match[1], int(name), match[2])
    else:
        match = _PARTITION_FOLDER.fullmatch(name)
        found = None if match is None else TieredFolder(match[1], int(match[2]), match[3])
    return found if found is not None and found.partition < 1 << 31 else None


def manifest_of(path: str) -> str:
    """The path of the manifest of the segment at `path`."""
    return path.removesuffix(_LOG) + MANIFEST_SUFFIX


def parse_manifest(data: bytes) -> TieredManifest:
    """Read a manifest. Raises CorruptDataError."""
    try:
        if len(data) > MANIFEST_BYTES:
            raise ValueError(f"it is larger than {MANIFEST_BYTES} bytes")
        found = json.loads(data)
        if not isinstance(found, dict) or str(found.get("version")) != "1":
            raise ValueError("it is not an object of version 1")
        if not isinstance(compression := found.get("compression"), bool):
            raise ValueError("it does not say whether the segment is compressed")
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"not a manifest of a tiered segment: {error}") from None
    return TieredManifest(compression, found.get("encryption") is not None)
