"""The folder of a KRaft server, as Kafka's storage tool prepares it, for servers that are alike.

Strategy: the tool takes a JVM of its own, which is a good part of a server's start. What it wrote for the first server
of a kind is kept in this process, and written for those that follow under names of their own. Only what is known is
kept: two files, of which one holds names (cluster, node, folder) and the other one the features of the release.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final

#: The file whose presence says that a folder is prepared.
NAMES: Final = "meta.properties"
_FEATURES: Final = "bootstrap.checkpoint"


def new_kraft_id() -> str:
    """A name for a KRaft cluster or folder: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class PreparedFolders:
    """The file that the tool wrote, by the kind of server."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Mapping[str, bytes]] = {}

    def keep(self, kind: Hashable, folder: Path) -> None:
        """Remember what the tool has just written there, if it is no more than what is known."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        if files.keys() == {NAMES, _FEATURES}:
            self._kept[kind] = files

    def write(self, kind: Hashable, folder: Path, *, node_id: int, cluster_id: str) -> bool:
        """Prepare the folder of a server; whether one of its kind is kept. Raises OSError."""
        files = self._kept.get(kind)
        if files is None:
            return False
        own = {"node.id": str(node_id), "cluster.id": cluster_id, "directory.id": new_kraft_id()}
        lines = [line.partition("=") for line in files[NAMES].decode("ascii").splitlines()]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FEATURES).write_bytes(files[_FEATURES])
        (folder / NAMES).write_text("".join(f"{name}{sign}{own.get(name, value)}\n" for name, sign, value in lines))
        return True
