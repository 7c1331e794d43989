"""An event loop of its own in a thread: for tests without one, and for servers beside the test's loop.

Strategy: `asyncio.run` in a daemon thread whose main coroutine waits for the end, so that remaining tasks are
cancelled and awaited as after any other `asyncio.run`. Work comes in from other threads and is waited for there;
hence everything that runs here serves sync tests and tests on any event loop alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from consumerd.testing.errors import HarnessError

Result = TypeVar("Result")

#: Seconds of real time that one piece of work may take.
PATIENCE = 60.0


class LoopThread:
    """A running loop; made ready by the constructor, ended by `close`. Its methods are for other threads."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="consumerd-testing", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._ending.wait()

    def run(self, work: Coroutine[Any, Any, Result], *, timeout: float = PATIENCE) -> Result:
        """Run a coroutine on the loop and wait for its result, which is raised or returned.

        After `timeout` seconds it is cancelled and TimeoutError is raised.
        """
        if threading.current_thread() is self._thread or self._loop is None or self._loop.is_closed():
            work.close()
            raise HarnessError("the loop thread has ended, or was called from itself; await the coroutine instead")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            if future.done():
                raise  # it is the work's own
            raise TimeoutError(f"{work!r} did not finish within {timeout:g} s") from error
        except CancelledError:
            raise asyncio.CancelledError from None
        finally:
            future.cancel()

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a plain function on the loop's thread."""

        async def work() -> Result:
            return function()

        return self.run(work())

    def close(self) -> None:
        """Cancel running work, await its end, and end the thread. May be called twice."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
