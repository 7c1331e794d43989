"""All logs of one broker: the folders `topic-partition` below log.dir, loaded together, closed together.

Strategy: `open` locks the directory against a second process, loads every log and only then removes the clean marker;
`close` flushes, notes the end of each log in the marker, and unlocks. A start that fails touches nothing but damaged
tails and leaves the marker as it was (0.7.2 writes it even after a failed start and so skips the recovery the next
time; golden notes, 3). For the same reason the marker's existence proves nothing: a log is taken unchecked only if the
marker names its end and it still ends there. An empty marker, as 0.7.2 leaves it, requires the check. A log whose
segments do not fit together is out of service until an operator has repaired it; 0.7.2 does not start at all with one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from consumerd.base.files import FileEntry
from consumerd.storage.log.errors import CorruptLogError
from consumerd.storage.log.files import OsFiles
from consumerd.storage.log.log import Log, LogSettings
from consumerd.storage.log.recovery import TailCut

#: The name that 0.7.2 uses; it does not read the content, so ours has no effect on it.
CLEAN_MARKER = ".kafka_cleanshutdown"
#: Entries that file systems create in the root of a volume, which log.dir may be.
_FOREIGN = frozenset({FileEntry("lost+found", is_directory=True)})


class LogTruncation(NamedTuple):
    """A log whose last segment was cut off at `end_offset`."""

    name: str
    end_offset: int
    cut: TailCut


class DamagedLog(NamedTuple):
    """A log that is not served, because its segments contradict each other; `reason` is one sentence."""

    name: str
    reason: str


@dataclass(slots=True)
class LoadReport:
    """The facts to log about the loaded logs."""

    truncated: list[LogTruncation] = field(default_factory=list)
    #: Logs out of service. Their files were not changed.
    damaged: list[DamagedLog] = field(default_factory=list)
    #: Files in log.dir that are not ours; left alone.
    stray: list[str] = field(default_factory=list)
    #: Whether the clean marker held foreign content: every log was checked.
    marker_unreadable: bool = False


class LogManager:
    """The logs below one directory. Blocking; safe to use from several threads.

    `settings` gives the settings of a topic's logs. Times are monotonic seconds.
    """

    def __init__(self, directory: Path, files: OsFiles, settings: Callable[[str], LogSettings]) -> None:
        self.directory = directory
        self._files = files
        self._settings = settings
        self._logs: dict[tuple[str, int], Log] = {}
        self._topics: set[str] = set()
        self._damaged: dict[tuple[str, int], str] = {}
        self._creating = threading.Lock()
        self._holding = contextlib.ExitStack()

    def open(self, now: float) -> LoadReport:
        """Load all logs and report facts worth logging.

        A log that cannot be served does not affect the others. Raises CorruptLogError for a folder that is not a
        log's, DirectoryInUseError, StorageError; then nothing stays open.
        """
        report = LoadReport()
        self._files.make_directory(self.directory)
        with contextlib.ExitStack() as undo:
            self._holding.enter_context(self._files.lock(self.directory))
            undo.callback(self.abandon)
            trusted = self._read_marker(report)
            self._files.sync_directory(self.directory)  # a killed broker may have made folders and not synced them
            for entry in self._files.entries(self.directory):
                if entry.name in (CLEAN_MARKER, f"{CLEAN_MARKER}.tmp") or entry in _FOREIGN:
                    continue
                if entry.is_directory:
                    self._load(entry.name, trusted.get(entry.name), now, report)
                else:
                    report.stray.append(entry.name)
            self._files.remove(self.directory / CLEAN_MARKER)
            undo.pop_all()
        return report

    def _load(self, name: str, trusted_end: int | None, now: float, report: LoadReport) -> None:
        topic, dash, number = name.rpartition("-")
        if not (dash and topic and number.isascii() and number.isdigit()) or str(int(number)) != number:
            raise CorruptLogError(
                f"{self.directory / name} is not a topic-partition folder such as words-0; "
                "move it out of the log directory"
            )
        try:
            log, cut = Log.open(
                self.directory / name, self._files, self._settings(topic), now=now, trusted_end=trusted_end
            )
        except CorruptLogError as error:
            self._damaged[topic, int(number)] = str(error)
            report.damaged.append(DamagedLog(name, str(error)))
            return
        log.rest(at_once=True)  # else a start would need a descriptor for each segment of every log
        self._keep(topic, int(number), log)
        if cut is not None:
            report.truncated.append(LogTruncation(name, log.end_offset, cut))

    def _keep(self, topic: str, partition: int, log: Log) -> bool:
        self._logs[topic, partition] = log
        new = topic not in self._topics
        self._topics.add(topic)
        return new

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log, or None if nothing was ever produced. Raises CorruptLogError if it is out of service."""
        if (topic, partition) in self._damaged:
            raise CorruptLogError(self._damaged[topic, partition])
        return self._logs.get((topic, partition))

    def in_service(self, topic: str, partition: int) -> bool:
        """Whether `get` would not raise."""
        return (topic, partition) not in self._damaged

    def get_or_create(self, topic: str, partition: int, now: float) -> tuple[Log, bool]:
        """Return the log, created if missing (that blocks on the disk), and whether it is the first one of its topic.

        The topic's name must have been checked: it becomes the name of a folder. Raises StorageError, and
        CorruptLogError for a log that is out of service.
        """
        with self._creating:
            log = self.get(topic, partition)
            if log is not None:
                return log, False
            directory = self.directory / f"{topic}-{partition}"
            self._files.make_directory(directory)
            log, _ = Log.open(directory, self._files, self._settings(topic), now=now)
            return log, self._keep(topic, partition, log)

    def has_topic(self, topic: str) -> bool:
        """Whether a log of the topic is here, in service or not."""
        return topic in self._topics or any(topic == other for other, _ in self._damaged)

    def topics(self) -> list[str]:
        """The topics that have a log in service here, sorted."""
        return sorted(self._topics)

    def partitions(self) -> list[tuple[str, int]]:
        """The (topic, partition) of every log in service."""
        return list(self._logs)

    def in_use(self) -> list[tuple[str, int, Log]]:
        """Topic, partition and log of every log in service."""
        return [(topic, partition, log) for (topic, partition), log in list(self._logs.items())]

    @property
    def damaged(self) -> int:
        """The number of logs out of service."""
        return len(self._damaged)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def close(self, now: float) -> None:
        """Flush every log, write the clean marker, unlock the directory. Raises StorageError, without a marker."""
        try:
            for log in self:
                log.flush(now)
            ends = {log.name: log.end_offset for log in self}
            note = json.dumps({"version": 1, "ends": ends}, sort_keys=True).encode()
            self._files.replace(self.directory / CLEAN_MARKER, note)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Unlock without a flush and without the marker: the next start checks every log."""
        for log in self:
            log.close()
        self._logs.clear()
        self._topics.clear()
        self._damaged.clear()
        self._holding.close()

    def _read_marker(self, report: LoadReport) -> dict[str, int]:
        """Read the end offsets that the last clean stop noted; empty after a crash, or if 0.7.2 stopped last."""
        note = self._files.read(self.directory / CLEAN_MARKER)
        if not note:
            return {}
        try:
            ends = json.loads(note)["ends"]
            return {str(name): int(end) for name, end in ends.items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            report.marker_unreadable = True
            return {}
