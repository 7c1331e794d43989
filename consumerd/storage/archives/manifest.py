"""The finished files of an export, which the next run leaves alone: `_manifest.json`.

Strategy: one entry per source segment, on a line of its own, sorted, so that the same work gives the same text but for
times of files. An entry counts only while its source is unchanged, its output is complete, and the
policy for damaged messages is the same; otherwise the segment is exported again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from consumerd.storage.archives.errors import OutputFolderError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.archives.options import ExportOptions
from consumerd.storage.archives.outputs import MANIFEST, is_output
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import SegmentName
from consumerd.storage.segments.dialect import SegmentDialect

_FORMAT = "consumerd export"
_VERSION = 1
#: Members of an entry -> attributes of the summary; of segments of 0.8 and later alone; of the entry itself.
_COUNTS = {
    "segment_bytes": "size",
    "messages": "messages",
    "wrappers": "wrappers",
    "corrupt": "corrupt",
    "nonsense_bytes": "nonsense",
    "torn_bytes": "torn",
    "torn_at": "torn_at",
}
_SINCE_08 = {name: name for name in ("next_offset", "absent", "first_epoch", "last_epoch")}
_MADE = {name: name for name in ("policy", "output", "start", "end", "rows")} | {"bytes": "size", "sha256": "sha256"}


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One finished segment. `output` is relative to the folder, None where there are no rows."""

    summary: SegmentSummary
    #: The policy for damaged messages; unused without any.
    policy: str = ""
    output: str | None = None
    start: int = 0
    end: int = 0
    rows: int = 0
    size: int = 0
    sha256: str | None = None

    @property
    def key(self) -> str:
        """The source's name."""
        return self.summary.source

    def as_json(self) -> dict[str, Any]:
        summary = self.summary
        assert summary.name is not None
        return {
            "source": summary.source,
            "stamp": summary.stamp,
            "topic": summary.name.topic,
            "broker": summary.name.broker,
            "partition": summary.name.partition,
            "segment_start": summary.start,
            **_members(summary, _COUNTS),
            "findings": [
                [str(finding.kind), finding.offset, finding.end, finding.problem] for finding in summary.findings
            ],
            "untold_findings": summary.untold,
            **({} if summary.dialect is SegmentDialect.V07 else {"since_08": _members(summary, _SINCE_08)}),
            **_members(self, _MADE),
            "status": "done",
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ManifestEntry:
        """The inverse of `as_json`. Raises KeyError, TypeError, ValueError for anything else."""
        if not isinstance(found["source"], str):
            raise TypeError("the source is not a string")
        if found["output"] is not None and not is_output(found["output"]):
            raise ValueError("the name of a file that is not in the folder")
        name = SegmentName(found["topic"], found["broker"], found["partition"], found["segment_start"])
        summary = SegmentSummary(
            found["source"],
            found["stamp"],
            name.folder,
            name.start,
            name,
            **_attributes(found, _COUNTS),
            findings=[
                ArchiveFinding(_kind(kind), found["source"], problem, name.folder, offset, end)
                for kind, offset, end, problem in found["findings"]
            ],
            untold=found["untold_findings"],
        )
        if (since_08 := found.get("since_08")) is not None:
            summary = replace(summary, dialect=SegmentDialect.V08, **_attributes(since_08, _SINCE_08))
        return cls(summary, **_attributes(found, _MADE))


def _members(value: object, names: Mapping[str, str]) -> dict[str, Any]:
    return {member: getattr(value, attribute) for member, attribute in names.items()}


def _attributes(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {attribute: found[member] for member, attribute in names.items()}


def _kind(text: str) -> FlawKind | ArchiveFindingKind:
    try:
        return FlawKind(text)
    except ValueError:
        return ArchiveFindingKind(text)


@dataclass(slots=True)
class Manifest:
    """The entries of a folder, by the names of their sources."""

    options: dict[str, Any]
    entries: dict[str, ManifestEntry] = field(default_factory=dict)

    def dump(self) -> bytes:
        """The text of the file."""
        head = {"manifest": _FORMAT, "version": _VERSION, "options": self.options}
        lines = [json.dumps(self.entries[key].as_json(), ensure_ascii=True) for key in sorted(self.entries)]
        return (json.dumps(head)[:-1] + ', "segments": [\n' + ",\n".join(lines) + "\n]}\n").encode()

    def outputs(self) -> dict[str, str]:
        """Every finished file and the source that it was made of."""
        return {entry.output: key for key, entry in self.entries.items() if entry.output is not None}


def load(data: bytes | None, options: ExportOptions) -> Manifest:
    """The manifest of a former run, or a new one.

    Raises OutputFolderError where it is broken, or tells of files of another kind than `options`.
    """
    fixed = options.fixed()
    if data is None:
        return Manifest(fixed)
    try:
        found = json.loads(data)
        if (found["manifest"], found["version"]) != (_FORMAT, _VERSION):
            raise ValueError("of another kind")
        entries = [ManifestEntry.from_json(entry) for entry in found["segments"]]
        former: dict[str, Any] = dict(found["options"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise OutputFolderError(
            f"the {MANIFEST} of the output folder is not one of this version; export into an empty folder"
        ) from error
    for key, value in fixed.items():
        if entries and former.get(key) != value:
            raise OutputFolderError(
                f"the output folder holds an export with {key} = {former.get(key)!r}, not {value!r}; "
                "use the same options, or an empty folder"
            )
    return Manifest(fixed, {entry.key: entry for entry in entries})
