"""A store of objects that processes share: fsspec's driver for folders, with objects that appear as a whole.

fsspec's own driver for `file://` writes in place, and its memory belongs to one process.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from consumerd.handlers.builtin.parquet import ParquetHandler

PROTOCOL = "folders"


class FolderStore(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects in folders; there is nothing that renames. Keeps listings as S3's driver does, unless told otherwise."""

    protocol = PROTOCOL

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://"))

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        folder = self._strip_protocol(path)
        found = self.dircache.get(folder)
        if found is None:
            self.dircache[folder] = found = super().ls(folder, detail=True, **kwargs)
        return found if detail else [each["name"] for each in found]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        target = Path(self._strip_protocol(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{secrets.token_hex(8)}")
        partial.write_bytes(value)
        os.replace(partial, target)


fsspec.register_implementation(PROTOCOL, FolderStore, clobber=True)


def parquet(directory: str) -> ParquetHandler:
    """The handler, in a daemon that knows this store."""
    return ParquetHandler(f"{PROTOCOL}://{directory}")
