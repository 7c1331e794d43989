"""The result for each message, from what members recorded at its delivery."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.group_stage.members import Member
from consumerd.demo.ledger import digest

if TYPE_CHECKING:
    from benchmarks.group_stage.feed import Sent


@dataclass(frozen=True, slots=True)
class HandOver:
    """One message, delivered once."""

    #: `time.monotonic()`.
    at: float
    digest: int
    #: Name of the member that was handed it.
    member: str
    #: Of its outermost message; None where a member does not tell.
    offset: int | None


class Tail:
    """The hand-overs that one file holds, read as it grows. Lines are those of `RecordHandler` or of `JafkaMember`."""

    def __init__(self, member: str, path: Path) -> None:
        self._member = member
        self._path = path
        self._position = 0

    def read(self) -> Iterator[HandOver]:
        """Those that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                fields = json.loads(line)
                for offset, _, text in fields.get("messages", ()):
                    yield HandOver(fields["at"], int(text, 16), self._member, offset)
            elif line.startswith(b"MSG "):
                _, at, _, _, payload = line.split(b" ")
                yield HandOver(int(at) / 1e9, digest(bytes.fromhex(payload.decode())), self._member, None)


class Account:
    """All hand-overs of a group. Phases say when something was lost or repeated."""

    def __init__(self, sent: dict[int, Sent]) -> None:
        self._sent = sent
        self._tails: dict[Path, Tail] = {}
        self._phases: list[tuple[float, str]] = []
        self.handed: dict[int, list[HandOver]] = defaultdict(list)
        #: Per partition the largest offset that was delivered.
        self.reached: dict[int, int] = {}

    def phase(self, at: float, name: str) -> None:
        """From now on things belong to the phase `name`."""
        self._phases.append((at, name))

    def _phase_of(self, at: float) -> str:
        return next((name for since, name in reversed(self._phases) if since <= at), "before")

    def read(self, members: Sequence[Member]) -> int:
        """Take in what is new in the members' files; how many hand-overs it was."""
        tails = [self._tails.setdefault(path, Tail(member.name, path)) for member in members for path in member.paths()]
        new = [it for tail in tails for it in tail.read()]
        for it in new:
            self.handed[it.digest].append(it)
            sent = self._sent.get(it.digest)
            if it.offset is not None and sent is not None:
                self.reached[sent.partition] = max(self.reached.get(sent.partition, -1), it.offset)
        return len(new)

    def missing(self, since: float) -> list[Sent]:
        """Messages sent at `since` or later that nobody was handed."""
        return [sent for key, sent in self._sent.items() if sent.at >= since and key not in self.handed]

    def lost(self, since: float) -> Counter[str]:
        """`missing`, by the phase in which they were sent."""
        return Counter(self._phase_of(sent.at) for sent in self.missing(since))

    def repeated(self, *, by_member: bool, peers: Collection[str] = ()) -> tuple[Counter[str], Counter[str]]:
        """Hand-overs beyond each message's first, by the phase in which they happened, and by who had them.

        Second, by themselves, those to members `peers` of the JVM's kind of what another member was handed before: they
        read offsets before they claim, and what is committed in between is delivered again there. Whether ours had
        committed it is not seen here, but told by their logs.
        """
        to = ", to {}".format if by_member else lambda _: ""
        repeated: Counter[str] = Counter()
        read_early: Counter[str] = Counter()
        for times in self.handed.values():
            seen: set[str] = set()
            for number, it in enumerate(sorted(times, key=lambda it: it.at)):
                if number:
                    excused = it.member in peers and it.member not in seen
                    (read_early if excused else repeated)[self._phase_of(it.at) + to(it.member)] += 1
                seen.add(it.member)
        return repeated, read_early
