"""The targets of `make fuzz`, one for each parser of bytes that others write."""

from __future__ import annotations

from typing import Final

from tests.fuzz.targets import disks, files, native, settings, wire, zookeeper
from tests.fuzz.targets.target import Target

_ROOMS: Final = (wire, native, zookeeper, files, disks, settings)
TARGETS: Final[dict[str, Target]] = {target.name: target for room in _ROOMS for target in room.TARGETS}
