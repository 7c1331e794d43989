"""Full disks of handlers and of files of dead letters: the call waits for room, or the daemon stops.

Strategy: a full disk does not count against a message, so it uses up no attempts and makes no dead letter. A file
system that is full, over its quota or mounted read-only is recognised by the error of the system call, whichever
handler raises it.
With `wait` the same call is made again, later and later, until it has room; the handler removes the rest of its last
write, as after any failure. One line of the log tells of the beginning and one of the end, however many
partitions wait.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import OnDiskFull
from consumerd.handlers.counts import HandlerCounts

log = structlog.get_logger(__name__)

#: Seconds before the second attempt; the pause doubles up to the policy's longest one.
_FIRST_PAUSE: Final = 0.5
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

_T = TypeVar("_T")


class DiskFullError(HandlerFailedError):
    """A file cannot be written, because its disk is full, over its quota or read-only."""


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that there is no room on a disk, or that it is mounted read-only."""
    return isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in _FULL)


class DiskSpace:
    """Waits for room, or refuses to. `name` is what errors call the handler; `counts.disk_full` says how many wait."""

    def __init__(
        self,
        on_disk_full: OnDiskFull,
        max_pause: float,
        *,
        clock: Clock,
        rng: random.Random,
        name: str,
        counts: HandlerCounts,
    ) -> None:
        self._wait = on_disk_full == "wait"
        self._max_pause = max_pause
        self._clock = clock
        self._rng = rng
        self._name = name
        self._counts = counts

    async def needed_by(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return or raise what `attempt()` does once its disk is not full.

        Raises DiskFullError where the policy is not to wait.
        """
        pause, waiting = _FIRST_PAUSE, False
        try:
            while True:
                try:
                    answer = await attempt()
                except Exception as error:
                    if not is_disk_full(error):
                        raise
                    if not self._wait:
                        raise self._refusal(error) from error
                    if not waiting:
                        waiting = True
                        self._begin(error)
                else:
                    if waiting:
                        waiting = False
                        self._end()
                    return answer
                await self._clock.sleep(self._rng.uniform(0.5, 1.0) * min(pause, self._max_pause))
                pause *= 2
        finally:
            if waiting:
                self._counts.disk_full -= 1

    def _refusal(self, error: BaseException) -> DiskFullError:
        if isinstance(error, DiskFullError):
            return error
        return DiskFullError(
            f"the disk of handler {self._name!r} is full or read-only ({_reason(error)}), and handler.on_disk_full is "
            '"stop": make room, then start the daemon again; the messages are not committed and are delivered again.'
        )

    def _begin(self, error: BaseException) -> None:
        self._counts.disk_full += 1
        if self._counts.disk_full == 1:
            log.error("disk_full", handler=self._name, reason=_reason(error))

    def _end(self) -> None:
        self._counts.disk_full -= 1
        if not self._counts.disk_full:
            log.info("disk_space_recovered", handler=self._name)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is None:
        return error.strerror or str(error)
    return " ".join(str(error).split())
