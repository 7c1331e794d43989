"""A server of another project in a child process: started until it answers, again on the same port.

Strategy: what a server is (its command, how it answers, its error) is said by a subclass; when it is ready and on which
port is the same for all. A port that was free may be taken before the server binds it: then another one is tried,
unless a client may know the first one already.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Final

from consumerd.base.errors import ConsumerdError
from consumerd.demo.children import Child, StartedChild
from consumerd.demo.ports import LOOPBACK, free_port

_ATTEMPTS: Final = 3
_POLL_SECONDS: Final = 0.02
_PROBE_SECONDS: Final = 2.0
#: Lines of output in the error of a failed start: the reason stands before what a server says while it ends.
_REASON_LINES: Final = 20


class LoopbackServer(StartedChild):
    """A server on loopback with its files in `directory`. Data and port stay over `restart`."""

    #: The error that `start` raises, with one sentence.
    start_error: ClassVar[type[ConsumerdError]]
    #: The server's output when its port is taken.
    bind_failures: ClassVar[tuple[str, ...]] = ("BindException", "Address already in use")

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory.absolute()
        self.port = port or free_port()
        self._port_is_ours = port is None

    @abstractmethod
    def _launch(self) -> Child:
        """Write its configuration and start the process. Blocks for milliseconds."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether it serves. May raise OSError and EOFError, which mean no."""

    def _new_ports(self) -> None:
        """The port was taken: take another one."""
        self.port = free_port()

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def child(self) -> Child:
        """The process. Raises RuntimeError before `start`."""
        if self._child is None:
            raise RuntimeError(f"no server was started in {self.directory}")
        return self._child

    async def start(self, timeout: float = 60.0) -> None:
        """Start and wait until it answers; nothing happens when it runs. Raises `start_error`."""
        if self.running:
            return
        for attempt in range(_ATTEMPTS):
            self._child = child = self._launch()
            try:
                await self._wait_ready(child, timeout)
            except self.start_error:
                await self.stop()
                if not (self._port_is_ours and self._bind_failed(child)) or attempt == _ATTEMPTS - 1:
                    raise
                self._new_ports()
            except BaseException:
                child.end_now()
                raise
            else:
                self._port_is_ours = False  # clients may know it by now
                return

    async def _wait_ready(self, child: Child, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not await self._probe():
                    if not child.running:
                        raise self._failure(f"ended with status {child.returncode}")
                    if self._bind_failed(child):  # some servers do not end then
                        raise self._failure("cannot listen on its port")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not answer within {timeout:g} s") from None

    def _failure(self, what: str) -> ConsumerdError:
        return self.start_error(f"{self.child.name} {what}: {self.child.tail(_REASON_LINES)}")

    def _bind_failed(self, child: Child) -> bool:
        output = child.output()
        return any(sign in output for sign in self.bind_failures)

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await self._answers()
        except (OSError, EOFError, TimeoutError):
            return False


async def ask(port: int, request: bytes, answer: int, host: str = LOOPBACK) -> bytes:
    """The first `answer` bytes that come back for `request` on loopback. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        return await reader.readexactly(answer)
    finally:
        writer.transport.abort()
