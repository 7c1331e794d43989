"""Files of dead letters as tests read them: whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consumerd.handlers.dead_letter_files import LetterLine, opened_letters, read_lines


def read_letters(path: Path) -> Iterator[LetterLine]:
    """The lines of one file. Raises ConfigError where it cannot be read."""
    with opened_letters(path) as file:
        yield from read_lines(file, path)
