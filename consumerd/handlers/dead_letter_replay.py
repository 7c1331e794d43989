"""Handing dead letters over once more: to a handler or to a topic, in order, resumably, and losing none.

Strategy: files are only read. How far each was replayed is written to a file of its own after every group of letters
that its target has confirmed, so a replay that is killed repeats one group at most and continues where it was. A file
is identified by its first line, not by its name: it may be renamed at any time, for its size or by a user. Letters
that a selection left out are not done: progress counts for one selection and one target.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol

from consumerd.errors import ConfigError, HandlerLoadError
from consumerd.handlers.api import keeps_positions
from consumerd.handlers.dead_letter_files import MAX_LINE, opened_letters, read_lines
from consumerd.handlers.loading import plain_handler
from consumerd.handlers.messages import Batch
from consumerd.handlers.picked import PickedContent
from consumerd.handlers.pieces import in_pieces
from consumerd.producer import ProducerData

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from consumerd.handlers.api import Handler
    from consumerd.handlers.dead_letter_files import LetterLine
    from consumerd.handlers.dead_letter_topic import LetterProducer
    from consumerd.handlers.dead_letters import StoredLetter

#: Letters, and bytes of their lines, that are delivered at once.
_GROUP: Final = 500
_GROUP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters to replay; None is all."""

    topic: str | None = None
    error_type: str | None = None

    def takes(self, letter: StoredLetter) -> bool:
        """Whether `letter` is meant."""
        return self.topic in (None, letter.message.topic) and self.error_type in (None, letter.error_type)


class ReplayTarget(Protocol):
    """The destination of letters."""

    async def replay(self, letters: Sequence[StoredLetter]) -> None:
        """Deliver `letters`. Returning confirms all of them; raises what the target raises."""
        ...


class HandlerTarget:
    """A handler, wrapped in its policy and started."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def replay(self, letters: Sequence[StoredLetter]) -> None:
        """Batches of letters of one log each, in the order of the file."""
        for (partition, log), group in groupby(letters, key=lambda letter: (letter.message.partition, letter.log)):
            batch = Batch(partition, PickedContent([letter.message for letter in group], log=log))
            await self._handler.handle(batch)


class TopicTarget:
    """A topic."""

    def __init__(self, producer: LetterProducer, topic: str, *, headers: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._headers = headers

    async def replay(self, letters: Sequence[StoredLetter]) -> None:
        """The messages as they were, with what the target's brokers can keep: key, timestamp and headers."""
        await self._producer.send_all([self._data(letter) for letter in letters])

    def _data(self, letter: StoredLetter) -> ProducerData:
        message = letter.message
        if not self._headers:
            return ProducerData(self._topic, [message.payload])
        timestamp = message.timestamp if message.timestamp >= 0 else None
        return ProducerData(self._topic, [message.payload], message.key, None, message.headers, timestamp)


def require_replayable(handler: Handler, name: str) -> None:
    """Raise HandlerLoadError for a sink that keeps positions: it takes nothing that is before them."""
    if keeps_positions(plain_handler(handler)):
        raise HandlerLoadError(
            f"handler {name!r} keeps the positions of partitions, and takes no message from before them: replay to a "
            "topic (--to-topic), or to another handler."
        )


class ReplayProgress:
    """The progress of the replay of files, in the file at `path`. Raises ConfigError for a file of another program."""

    def __init__(self, path: Path, *, selection: Selection, target: str) -> None:
        self._path = path
        self._kind = json.dumps([target, selection.topic, selection.error_type])
        self._known = self._load()

    def _load(self) -> dict[str, dict[str, int]]:
        try:
            document = json.loads(self._path.read_bytes())
            known: dict[str, dict[str, int]] = document["replayed"]
            if not all(type(end) is int and end >= 0 for files in known.values() for end in files.values()):
                raise ValueError
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
            raise ConfigError(
                f"the progress of a replay cannot be read from {self._path}: move it away to replay from the start, or "
                "name another file with --progress."
            ) from error
        return known

    def of(self, digest: str) -> int:
        """The byte up to which the file with this digest was replayed."""
        return self._known.get(self._kind, {}).get(digest, 0)

    def save(self, digest: str, end: int) -> None:
        """Note that a file was replayed up to byte `end`; survives a loss of power."""
        self._known.setdefault(self._kind, {})[digest] = end
        other = self._path.with_name(f".{self._path.name}.new")
        with other.open("w") as file:
            json.dump({"replayed": self._known}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        other.replace(self._path)


def _digest(file: BinaryIO) -> str:
    """Return the identity of an open file: a digest of its first line, which no other file of letters has."""
    file.seek(0)
    return hashlib.sha256(file.readline(MAX_LINE)).hexdigest()


class Replayed(NamedTuple):
    """The result of a replay."""

    letters: int
    #: Lines that are no letters, which stay where they are; and the first of them.
    unreadable: int
    first_problem: str


async def replay(
    files: Iterable[Path], target: ReplayTarget, progress: ReplayProgress, selection: Selection
) -> Replayed:
    """Deliver the letters of `files` that were not replayed before. Raises what `target` raises, and ConfigError."""
    letters, problems = 0, []
    for path in files:
        with opened_letters(path) as file:
            digest = _digest(file)
            lines = read_lines(file, path, progress.of(digest))
            for group in in_pieces(lines, _GROUP, _GROUP_BYTES, _size):
                found = [line.letter for line in group if line.letter is not None]
                problems += [f"{path}, byte {line.start}: {line.problem}" for line in group if line.letter is None]
                wanted = [letter for letter in found if selection.takes(letter)]
                if wanted:
                    await target.replay(wanted)
                progress.save(digest, group[-1].end)
                letters += len(wanted)
    return Replayed(letters, len(problems), problems[0] if problems else "")


def _size(line: LetterLine) -> int:
    return line.end - line.start
