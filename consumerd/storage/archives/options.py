"""The options of an export."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from consumerd.storage.log.archive_items import DEFAULT_EXPANSION
from consumerd.storage.log.archive_names import DEFAULT_LAYOUT


class ExportFormat(StrEnum):
    """The format of the output files."""

    NDJSON = "ndjson"
    PARQUET = "parquet"


class ExportCompression(StrEnum):
    """The compression of output files: Parquet inside of the file, NDJSON as a whole."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    #: Parquet only.
    SNAPPY = "snappy"


class OnCorrupt(StrEnum):
    """The policy for a message that cannot be read."""

    #: End the export, with exit code 7; finished files stay.
    FAIL = "fail"
    #: Leave it out.
    SKIP = "skip"
    #: Make a row of it, with its bytes as the payload.
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export. Offsets: rows with `first` <= offset < `last`, of the outermost message."""

    format: ExportFormat = ExportFormat.NDJSON
    compression: ExportCompression = ExportCompression.NONE
    #: NDJSON: every payload in base64, not only those that are not UTF-8.
    base64: bool = False
    layout: str = DEFAULT_LAYOUT
    broker: int | None = None
    topics: frozenset[str] = frozenset()
    first: int = 0
    last: int | None = None
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    resync: bool = False
    expansion: int = DEFAULT_EXPANSION
    #: Leave out records of transactions that were aborted, or are open at the end of the archive.
    read_committed: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of the names of the files."""
        if self.format is ExportFormat.PARQUET:
            return ".parquet"
        return ".ndjson" + {ExportCompression.GZIP: ".gz", ExportCompression.ZSTD: ".zst"}.get(self.compression, "")

    def fixed(self) -> dict[str, Any]:
        """Return the options that all files of one folder must have in common."""
        fixed = {
            "format": str(self.format),
            "compression": str(self.compression),
            "base64": self.base64,
            "first": self.first,
            "last": self.last,
        }
        return fixed | {"isolation": "read_committed"} if self.read_committed else fixed
