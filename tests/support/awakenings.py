"""Daemons that stand still for a while, and the deliveries that are excused by it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from consumerd.demo.audit import AuditRecord
from consumerd.demo.processes import DaemonProcess


class Awakening(NamedTuple):
    """A process was stopped (SIGSTOP) at `stopped_at`, and resumed just after `at`, on the clock of its records."""

    member: str
    at: float
    stopped_at: float


class Caught:
    """The deliveries that were under way while their member stood still.

    A member checks its lease right before it delivers a batch. A process cannot prevent a stop between that check
    and the next action of the handler, so this one batch comes late. Members deliver on one
    thread: it is the first record after they wake, and there is no second one.
    """

    def __init__(self, awakenings: Iterable[Awakening]) -> None:
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)
        for awakening in sorted(awakenings):
            self._times[awakening.member].append(awakening.at)

    def excuses(self, record: AuditRecord) -> bool:
        """Whether `record` may be such a delivery. Call it for each record, claims included, in the order of time."""
        times = self._times.get(record.member)
        first = False
        while times and times[0] <= record.at:
            times.popleft()
            first = True
        return first and not record.claim


class PausableDaemon(DaemonProcess):
    """A daemon that notes when it was stopped and resumed."""

    def __init__(self, directory: Path, config: Mapping[str, Any], *, name: str = "daemon") -> None:
        super().__init__(directory, config, name=name)
        #: Each time that it was resumed.
        self.awakenings: list[Awakening] = []
        self._stopped_at = 0.0

    def pause(self) -> None:
        """Freeze it (SIGSTOP), and note when."""
        super().pause()
        self._stopped_at = time.monotonic()

    def resume(self) -> None:
        """Resume it, and note the time."""
        self.awakenings.append(Awakening(self.consumer_id, time.monotonic(), self._stopped_at))
        super().resume()
