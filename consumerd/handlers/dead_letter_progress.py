"""Which dead letters were replayed, to whom and how far: a file that `replay` writes and `list` and `show` read.

Strategy: progress counts for one receiver and one selection, since letters that a selection left out are not done. A
receiver is more than its name: another URL among a handler's options, another cluster or subscription is another
receiver, and gets every letter. What tells receivers apart may be a secret (a DSN), so the file has a salted digest of
it, beside words for people. A file of letters is identified by its first line, not by its name: it may be renamed at
any time, for its size or by a user.

The releases 0.1 noted the name of the handler or topic alone. Such a note counts for the first receiver with that name,
and from then on for no other one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode
from consumerd.base.files import SystemFiles
from consumerd.handlers.dead_letter_files import LetterLine, file_digest, opened_letters, read_lines
from consumerd.handlers.dead_letters import StoredLetter
from consumerd.handlers.disk_full import DiskFullError, is_disk_full

#: Rounds of PBKDF2: a tenth of a second, so that a stolen file does not give away a short password.
_ROUNDS: Final = 100_000
_NOTHING: Final = "nothing was delivered"


class ReplayRunningError(ConsumerdError):
    """Another replay uses the same progress file; nothing was delivered."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters to replay; None is all."""

    topic: str | None = None
    error_type: str | None = None

    def takes(self, letter: StoredLetter) -> bool:
        """Whether `letter` is meant."""
        return self.topic in (None, letter.message.topic) and self.error_type in (None, letter.error_type)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where letters are replayed to. `name`: such as `handler http` or `topic again`."""

    name: str
    #: What else tells it apart, in words that may be shown.
    details: str = ""
    #: What tells it apart altogether; it may have secrets.
    identity: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.details}".rstrip()


@dataclass(slots=True)
class ReplayRecord:
    """How far files were replayed to one receiver by one selection."""

    #: The receiver, in words.
    receiver: str
    selection: Selection
    #: The digest that tells the receiver apart; empty in records of earlier releases.
    key: str
    #: The byte up to which the file with each digest was replayed.
    files: dict[str, int]

    def covers(self, line: LetterLine, digest: str) -> bool:
        """Whether the letter in a line of the file with this digest was replayed."""
        letter = line.letter
        return letter is not None and self.selection.takes(letter) and line.end <= self.files.get(digest, 0)


class ReplayProgress:
    """The progress of the replay of files to one receiver, in the file at `path`.

    Raises ConfigError for a file of another program.
    """

    def __init__(
        self, path: Path, *, selection: Selection, receiver: Receiver, files: SystemFiles | None = None
    ) -> None:
        self._path = path
        self._files = files or SystemFiles()
        self._salt, self._records = _load(path, self._files)
        text = json.dumps([receiver.name, receiver.identity])
        key = hashlib.pbkdf2_hmac("sha256", text.encode(), self._salt, _ROUNDS).hex()
        own = [record for record in self._records if record.key == key]
        known = next((record for record in own if record.selection == selection), None)
        #: Receivers that letters were replayed to before this one, to which none was.
        self.others = [] if own else sorted({record.receiver for record in self._records if record.files})
        earlier = ("", receiver.name, selection)
        former = (each for each in self._records if (each.key, each.receiver, each.selection) == earlier)
        adopted = None if known else next(former, None)
        #: Whether it continues what an earlier release noted.
        self.is_adopted = adopted is not None
        self._own = known or adopted or ReplayRecord("", selection, key, {})
        self._own.receiver, self._own.key = str(receiver), key
        if self._own not in self._records:
            self._records.append(self._own)

    def of(self, digest: str) -> int:
        """The byte up to which the file with this digest was replayed."""
        return self._own.files.get(digest, 0)

    def note(self, digest: str, end: int) -> None:
        """Note that a file was replayed up to byte `end`; survives a loss of power. Raises as `save` does."""
        self._own.files[digest] = end
        self.save("the letters that were just delivered are not noted, and the next replay delivers them again")

    def save(self, state: str = _NOTHING) -> None:
        """Write the file. Raises DiskFullError, and ConfigError where it cannot be written; `state` is said then."""
        document = {"salt": self._salt.hex(), "replayed": [asdict(record) for record in self._records]}
        partial = self._path.with_name(f".{self._path.name}.new")
        try:
            self._files.replace(self._path, json.dumps(document, indent=1).encode(), partial=partial)
        except OSError as error:
            raise _unwritable(self._path, error, state) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the progress file at `path`, since two replays would overwrite each other's notes.

    Raises ReplayRunningError, and DiskFullError or ConfigError where no file can be made beside it.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = _lock(lock)
    except BlockingIOError:
        raise ReplayRunningError(
            f"another replay is noting its progress in {path}: wait until it has ended, or name another file with "
            "--progress."
        ) from None
    except OSError as error:
        raise _unwritable(path, error, _NOTHING) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _unwritable(path: Path, error: OSError, state: str) -> ConsumerdError:
    raised = DiskFullError if is_disk_full(error) else ConfigError
    return raised(
        f"the progress of the replay cannot be written to {path}: {error.strerror}; {state}. Make that possible, or "
        "name another file with --progress."
    )


def _lock(path: Path) -> int:
    """Return the descriptor of the locked file, which is made. Raises BlockingIOError, OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            return descriptor  # a mount without locks
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # the replay that made it has ended meanwhile


def _load(path: Path, files: SystemFiles) -> tuple[bytes, list[ReplayRecord]]:
    """The salt and the records of a file; new ones without it. Raises ConfigError."""
    try:
        data = files.read(path)
        if data is None:
            return secrets.token_bytes(16), []
        document = json.loads(data)
        replayed = document["replayed"]
        if isinstance(replayed, dict):  # of an earlier release
            return secrets.token_bytes(16), [_earlier(kind, files) for kind, files in replayed.items()]
        salt = bytes.fromhex(document["salt"])
        return salt, [_record(each["receiver"], each["selection"], each["key"], each["files"]) for each in replayed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        raise ConfigError(
            f"the progress of a replay cannot be read from {path}: move it away to replay from the start, or "
            "name another file with --progress."
        ) from error


def _earlier(kind: str, files: Any) -> ReplayRecord:
    receiver, topic, error_type = json.loads(kind)
    return _record(receiver, {"topic": topic, "error_type": error_type}, "", files)


def _record(receiver: Any, selection: Any, key: Any, files: Any) -> ReplayRecord:
    chosen = Selection(**selection)
    texts = [receiver, key, *(each for each in (chosen.topic, chosen.error_type) if each is not None), *files]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    if not all(type(end) is int and 0 <= end < 1 << 63 for end in files.values()):
        raise ValueError
    return ReplayRecord(receiver, chosen, key, dict(files))


def letters_with_receivers(files: list[Path], progress: Path) -> Iterator[tuple[LetterLine, list[str]]]:
    """The lines of files of letters, and the receivers that each was replayed to, by the progress file.

    Raises ConfigError for a file that cannot be read.
    """
    records = _load(progress, SystemFiles())[1]
    for path in files:
        with opened_letters(path) as file:
            digest = file_digest(file, path)
            for line in read_lines(file, path):
                yield line, sorted({record.receiver for record in records if record.covers(line, digest)})
