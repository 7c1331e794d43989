"""What a run of `refine --again` reads, and how its rows are numbered. Tasks get this, so it needs no package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rebuild:
    """One rebuild of silver and quarantine, in tables beside them."""

    #: The last batch of bronze that is read: that of the step's own checkpoint.
    bronze: int
    #: The greatest number that a row gets: the last batch of the step's own checkpoint. So its next batch is new.
    batch: int
    #: Messages that landed from the first up to, and without, the second, in microseconds since 1970. Of the others the
    #: rows stay as they are.
    since: int | None = None
    until: int | None = None

    @property
    def is_partial(self) -> bool:
        """Whether rows are kept."""
        return self.since is not None or self.until is not None
