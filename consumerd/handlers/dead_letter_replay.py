"""Delivering dead letters again: to a handler or to a topic, in order, resumably, and losing none.

Strategy: files are only read. How far each was replayed is written to a file of its own
(`consumerd.handlers.dead_letter_progress`) after every group of letters that the target has confirmed, so a replay that
is killed repeats one group at most and continues where it was. That file is written once before the first letter is
delivered: where it cannot be, each call would deliver the same letters again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from consumerd.base.errors import HandlerLoadError
from consumerd.handlers.api import Handler, keeps_positions
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.dead_letter_files import LetterLine, file_digest, opened_letters, read_lines
from consumerd.handlers.dead_letter_progress import ReplayProgress, Selection
from consumerd.handlers.dead_letter_topic import LetterProducer
from consumerd.handlers.dead_letters import StoredLetter
from consumerd.handlers.loading import plain_handler
from consumerd.handlers.messages import Batch
from consumerd.handlers.sparse_content import SparseContent
from consumerd.producer import ProducerData

#: Letters, and bytes of their lines, that are delivered at once.
_GROUP: Final = 500
_GROUP_BYTES: Final = 4 << 20


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
            batch = Batch(partition, SparseContent([letter.message for letter in group], log=log))
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
        timestamp = known_timestamp(message.timestamp)
        return ProducerData(self._topic, [message.payload], message.key, None, message.headers, timestamp)


def require_replayable(handler: Handler, name: str) -> None:
    """Raise HandlerLoadError for a sink that keeps positions: it takes nothing that is before them."""
    if keeps_positions(plain_handler(handler)):
        raise HandlerLoadError(
            f"handler {name!r} keeps the positions of partitions, and takes no message from before them: replay to a "
            "topic (--to-topic), or to another handler."
        )


class Replayed(NamedTuple):
    """The result of a replay."""

    letters: int
    #: Lines that are not letters, which stay where they are; and the first of them.
    unreadable: int
    first_problem: str


async def replay(
    files: Iterable[Path], target: ReplayTarget, progress: ReplayProgress, selection: Selection
) -> Replayed:
    """Deliver the letters of `files` that were not replayed before.

    Raises what `target` raises, and ConfigError and DiskFullError as `progress` does.
    """
    letters, problems = 0, []
    progress.save()
    for path in files:
        with opened_letters(path) as file:
            digest = file_digest(file, path)
            lines = read_lines(file, path, progress.of(digest))
            for group in in_chunks(lines, _GROUP, _GROUP_BYTES, _size):
                found = [line.letter for line in group if line.letter is not None]
                problems += [f"{path}, byte {line.start}: {line.problem}" for line in group if line.letter is None]
                wanted = [letter for letter in found if selection.takes(letter)]
                if wanted:
                    await target.replay(wanted)
                progress.note(digest, group[-1].end)
                letters += len(wanted)
    return Replayed(letters, len(problems), problems[0] if problems else "")


def _size(line: LetterLine) -> int:
    return line.end - line.start
