"""Secrets in files: the one rule by which they are found and read.

Strategy: a key `x_file` names a file whose first line is the secret `x`. A relative path is that of the working
directory; where nothing is there, the directory of systemd's credentials is searched ($CREDENTIALS_DIRECTORY, set by
LoadCredential), so that a configuration need not name the unit that it runs in. Errors name the key and the file,
never its content.
"""

from __future__ import annotations

import os
from pathlib import Path

from consumerd.errors import ConfigError


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


def _read(path: Path, key: str) -> str:
    try:
        return find_file(path).read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: cannot read {path}: it is not UTF-8 text.") from None  # the cause has the secret
