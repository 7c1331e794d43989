"""How far a table has the logs that it was landed from, as its commits say.

Strategy: the commit of a batch names where the batch ends in each partition, in the form of the checkpoint's offsets,
and where each log began. So the table tells how far it is, whichever program wrote it last, and what one program has
landed no other one lands again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consumerd.spark.source.offsets import Key, LogOffset, parse_offsets, positions, sorted_offsets


@dataclass(frozen=True, slots=True)
class TableOffsets:
    """Where batch `batch` of a table ends in each partition, and where the landed part of each log began.

    `former`: logs that the daemon found replaced by others: topic, partition's name, topic id, and their landed part.
    `planned`: a step made the commit, so the checkpoint has the batch, too; else the daemon did.
    """

    batch: int
    ends: Mapping[Key, LogOffset]
    starts: Mapping[Key, LogOffset] = field(default_factory=dict)
    former: tuple[tuple[str, str, str | None, int, int], ...] = ()
    planned: bool = False

    def encode(self) -> str:
        """As one line of JSON."""
        found = {"ends": sorted_offsets(self.ends), "starts": sorted_offsets(self.starts)}
        return json.dumps({"batch": self.batch, **found, "former": self.former, "planned": self.planned})

    @classmethod
    def decode(cls, text: str | bytes) -> TableOffsets:
        """What `encode` wrote. Raises ValueError."""
        try:
            found = json.loads(text)
            batch, ends, starts = found["batch"], *(_offsets(found[name]) for name in ("ends", "starts"))
            if not isinstance(batch, int):
                raise TypeError(f"batch {batch!r} is not a number")
            former = tuple(_former(*each) for each in found["former"])
            return cls(batch, ends, starts, former, bool(found["planned"]))
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{str(text)[:200]!r} does not name offsets of a table: {error}") from None

    def ends_at(self, end: Any) -> bool:
        """Whether that is where the batch ends, in the checkpoint's JSON."""
        return isinstance(end, dict) and dict(positions(end)) == dict(self.ends)


def _former(topic: str, name: str, topic_id: str | None, start: int, end: int) -> tuple[str, str, str | None, int, int]:
    return topic, name, topic_id, start, end


def _offsets(found: Any) -> dict[Key, LogOffset]:
    return dict(positions(parse_offsets(json.dumps(found))))
