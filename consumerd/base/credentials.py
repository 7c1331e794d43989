"""Secrets and certificates in files: the one rule by which they are found, read, and read again.

Strategy: a key `x_file` names a file whose first line is the secret `x`. A relative path is that of the working
directory; where nothing is there, the directory of systemd's credentials is searched ($CREDENTIALS_DIRECTORY, set by
LoadCredential), so that a configuration need not name the unit that it runs in. Errors name the key and the file,
never its content.

Files are replaced while a daemon runs, as certificates and tokens expire. `Renewed` is what was made of some files; it
is made again when one of them has changed, and asked for each new connection. Files that cannot be used, such as a
certificate whose key is not there yet, leave the former value.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from consumerd.base.errors import ConfigError, ConsumerdError, reason_of
from consumerd.base.settings.setting import SecretStr, Section

_Made_co = TypeVar("_Made_co", covariant=True)


class Renewed(Generic[_Made_co]):
    """What `make` returns, made again when one of `files` has changed. `what` names it in log events.

    Raises what `make` raises: a ConsumerdError for files that cannot be used.
    """

    def __init__(self, what: str, files: Iterable[Path | None], make: Callable[[], _Made_co]) -> None:
        self._what = what
        self._files = [file for file in files if file is not None]
        self._make = make
        self._lock = threading.Lock()
        self._states = self._look()
        self._value = make()

    def now(self) -> _Made_co:
        """The value of the files as they are now. Reads files: on an event loop, use `current`."""
        with self._lock:
            states = self._look()  # before they are read: what changes meanwhile is found the next time
            changed = [str(file) for file, state in states.items() if state != self._states[file]]
            if changed:
                import structlog  # noqa: PLC0415 - Spark's executors read secrets, too, and have no structlog

                log = structlog.get_logger(__name__)
                self._states = states
                try:
                    self._value = self._make()
                except ConsumerdError as error:
                    log.warning("credentials_rejected", what=self._what, files=changed, reason=reason_of(error))
                else:
                    log.info("credentials_renewed", what=self._what, files=changed)
            return self._value

    async def current(self) -> _Made_co:
        """As `now`, in a thread."""
        return await asyncio.to_thread(self.now)

    def _look(self) -> dict[Path, tuple[int, int, int] | None]:
        return {file: _state(find_file(file)) for file in self._files}


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def find_file(path: Path) -> Path:
    """Return `path`; if it is relative and does not exist, the credential of this name, if there is one."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if directory and not path.is_absolute() and not path.exists():
        credential = Path(directory) / path
        if credential.exists():
            return credential
    return path


def read_secret(path: Path, key: str) -> str:
    """Return the first line of the file that the key `key` names. Raises ConfigError; also for an empty line."""
    secret = _read(path, key).partition("\n")[0].rstrip("\r")
    if not secret:
        raise ConfigError(f"{key}: {path} holds no secret in its first line.")
    return secret


def read_secrets(path: Path, key: str) -> list[str]:
    """Return the lines of the file that are not empty, one secret each. Raises ConfigError if there are none."""
    secrets = [line for line in _read(path, key).splitlines() if line.strip()]
    if not secrets:
        raise ConfigError(f"{key}: {path} holds no secret.")
    return secrets


def secret_of(section: Section, key: str, table: str) -> str | None:
    """Return the secret of a key of the configuration, or of its file; `table` names its table in errors.

    Raises ConfigError for a file that cannot be read.
    """
    path = getattr(section, f"{key}_file")
    if path is not None:
        return read_secret(path, f"{table}.{key}_file")
    value: SecretStr | None = getattr(section, key)
    return None if value is None else value.get_secret_value()


def secrets_of(section: Section, key: str, table: str) -> list[str]:
    """As `secret_of`, of a key with several."""
    path = getattr(section, f"{key}_file")
    if path is not None:
        return read_secrets(path, f"{table}.{key}_file")
    return [each.get_secret_value() for each in getattr(section, key)]


def _read(path: Path, key: str) -> str:
    try:
        return find_file(path).read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: cannot read {path}: it is not UTF-8 text.") from None  # the cause has the secret
