"""The result of `reconcile`, as plain values. Nothing here imports Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

#: Stretches that are listed one by one, per partition; all are counted.
LISTED: Final = 20
#: The columns that name a partition. Its broker, where there is one, is part of the second, and so is the id of a log
#: that was replaced (`consumerd.spark.former_logs`).
PARTITION: Final = ("topic", "broker_partition")


@dataclass(frozen=True, slots=True)
class LogStretch:
    """Places [start, end) of a partition's log. The indexes are 0 but within a compressed message."""

    start: int
    end: int
    start_index: int = 0
    end_index: int = 0

    def __str__(self) -> str:
        return f"[{_place(self.start, self.start_index)}, {_place(self.end, self.end_index)})"


def _place(offset: int, index: int) -> str:
    return f"{offset}.{index}" if index else str(offset)


@dataclass(frozen=True, slots=True)
class LogStretches:
    """Stretches of one kind: how many there are, and the first of them."""

    count: int = 0
    first: tuple[LogStretch, ...] = ()
    #: The place behind the last one of all.
    end: int = 0
    end_index: int = 0

    def as_json(self) -> list[str]:
        """Return the listed stretches as text."""
        return [str(stretch) for stretch in self.first]


#: What is shown of a partition, in this order.
_SHOWN: Final = (
    "topic", "broker_partition", "clean", "start", "end", "expected", "landed", "missing", "duplicates", "refined",
    "quarantined", "pending", "gaps", "empty", "dropped", "trimmed", "declared", "reasons", "compacted", "unexpected",
    "unrefined", "surplus", "altered", "same_hash", "digest",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionCheck:
    """One partition: the expected messages, and the findings.

    Messages are counted where the source was read again; None where it was not.
    """

    topic: str
    broker_partition: str
    #: The range to be landed: from the start of landing to the end of the last batch, in log offsets.
    start: int
    end: int
    #: Messages of the source in that range, as far as the source still has it.
    expected: int | None = None
    #: Rows of bronze; `compared` of them are where the source still has something.
    landed: int = 0
    compared: int | None = None
    #: Rows of bronze beyond the first one of their identity.
    duplicates: int = 0
    #: Rows of silver and of quarantine; None where there is no such table.
    refined: int | None = None
    quarantined: int | None = None
    #: Rows of bronze that `refine` has not come to yet.
    pending: int = 0
    #: In the source and not in bronze.
    gaps: LogStretches = LogStretches()
    #: Where the log itself has no message, as reading it has shown, now or at an earlier comparison: places that
    #: compaction left, ends of transactions, compressed messages that hold none.
    empty: LogStretches = LogStretches()
    #: Where the source has bytes that are not messages, and the pipeline leaves such out (DROPMALFORMED).
    dropped: LogStretches = LogStretches()
    #: Neither in bronze nor in the source any more: lost.
    trimmed: LogStretches = LogStretches()
    #: The same, where the pipeline's `gone` declares it, and why it does.
    declared: LogStretches = LogStretches()
    reasons: tuple[str, ...] = ()
    #: In bronze, and not in the source any more, between offsets that it has: compaction does that.
    compacted: LogStretches = LogStretches()
    #: In bronze, and not where the source has a message, or beyond the range to be landed.
    unexpected: LogStretches = LogStretches()
    #: In bronze, and neither in silver nor in quarantine.
    unrefined: LogStretches = LogStretches()
    #: In silver and quarantine more often than once, or without being in bronze.
    surplus: LogStretches = LogStretches()
    #: In both, with different values.
    altered: LogStretches = LogStretches()
    #: Whether the hash over identities and values is the source's; None where it was not compared.
    same_hash: bool | None = None
    #: Sum of xxHash64 of identity and value over the rows that were compared, modulo 2**64.
    digest: int | None = None

    def with_stretches(self, found: Mapping[str, LogStretches]) -> PartitionCheck:
        """Return a copy with stretches by the name of their kind; kinds without a field are left out."""
        known = {each.name for each in fields(self)}
        changes: dict[str, Any] = {kind: value for kind, value in found.items() if kind in known}
        return replace(self, **changes)

    @property
    def missing(self) -> int | None:
        """Messages of the source that are not in bronze; None if they were not counted."""
        if self.expected is None or self.compared is None:
            return None if self.gaps.count else 0
        return max(0, self.expected - (self.compared - self.duplicates))

    @property
    def is_clean(self) -> bool:
        """Whether every position has landed once, unaltered, and was refined, or has a reason."""
        return self.is_landed and not self.unrefined.count and not self.surplus.count

    @property
    def is_landed(self) -> bool:
        """As `is_clean`, of bronze alone."""
        wrong = (self.gaps, self.trimmed, self.unexpected, self.altered)
        return not any(kind.count for kind in wrong) and not self.duplicates and self.same_hash is not False

    def as_json(self) -> dict[str, Any]:
        """For `--json`; stretches as text."""
        shown = {name: getattr(self, name, None) for name in _SHOWN}
        texts = {name: each.as_json() for name, each in shown.items() if isinstance(each, LogStretches)}
        digest = None if self.digest is None else f"{self.digest % (1 << 64):016x}"
        return shown | texts | {"clean": self.is_clean, "reasons": list(self.reasons), "digest": digest}


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """All partitions, by topic and name. `shallow`: the source was read again only where bronze has gaps."""

    pipeline: str
    shallow: bool
    partitions: tuple[PartitionCheck, ...]

    @property
    def rows_landed(self) -> int:
        """Rows of bronze."""
        return sum(each.landed for each in self.partitions)

    @property
    def rows_refined(self) -> int:
        """Rows of silver."""
        return sum(each.refined or 0 for each in self.partitions)

    @property
    def rows_quarantined(self) -> int:
        """Rows of quarantine."""
        return sum(each.quarantined or 0 for each in self.partitions)

    @property
    def gaps(self) -> int:
        """Stretches of the source that are not in bronze."""
        return sum(each.gaps.count for each in self.partitions)

    @property
    def duplicates(self) -> int:
        """Rows of bronze beyond the first one of their identity."""
        return sum(each.duplicates for each in self.partitions)

    @property
    def declared(self) -> int:
        """Stretches that never landed, and are declared gone."""
        return sum(each.declared.count for each in self.partitions)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong anywhere."""
        return all(each.is_clean for each in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "clean": self.is_clean,
            "compared_with": "offsets" if self.shallow else "messages",
            "rows_landed": self.rows_landed,
            "rows_refined": self.rows_refined,
            "rows_quarantined": self.rows_quarantined,
            "gaps": self.gaps,
            "duplicates": self.duplicates,
            "unexpected": sum(each.unexpected.count for each in self.partitions),
            "unrefined": sum(each.unrefined.count for each in self.partitions),
            "surplus": sum(each.surplus.count for each in self.partitions),
            "altered": sum(each.same_hash is False for each in self.partitions),
            "empty": sum(each.empty.count for each in self.partitions),
            "dropped": sum(each.dropped.count for each in self.partitions),
            "trimmed": sum(each.trimmed.count for each in self.partitions),
            "declared": self.declared,
            "compacted": sum(each.compacted.count for each in self.partitions),
            "pending": sum(each.pending for each in self.partitions),
            "partitions": [each.as_json() for each in self.partitions],
        }
