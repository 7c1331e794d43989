"""One connection of a broker: frames in, frames out, one request at a time, in order."""

from __future__ import annotations

from collections import deque

from tests.simulation.network import Link


class ServedConnection:
    """The server's side of a connection whose frames have their size before them.

    A subclass says in `serve` what a request is answered with, and calls `answer` or `hang_up` once, at once or later:
    the next request waits until then.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.open = True
        self._bytes = bytearray()
        self._requests: deque[bytes] = deque()
        self._working = False

    def received(self, data: bytes) -> None:
        """Bytes came."""
        self._bytes += data
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big", signed=True)
            if len(self._bytes) < 4 + size:
                break
            self._requests.append(bytes(self._bytes[4 : 4 + size]))
            del self._bytes[: 4 + size]
        self._work()

    def lost(self) -> None:
        """The other side has closed the connection."""
        self.open = False

    def _work(self) -> None:
        if not self._working and self._requests and self.open:
            self._working = True
            self.serve(self._requests.popleft())

    def serve(self, body: bytes) -> None:
        """Begin to work on a request: the frame without its size."""
        raise NotImplementedError

    def answer(self, frame: bytes) -> None:
        """Send an answer with its size (nothing, for a request without one), and continue with the next request."""
        self._working = False
        if self.open:
            if frame:
                self.link.send(frame)
            self._work()

    def hang_up(self) -> None:
        """Close the connection instead of answering."""
        if self.open:
            self.lost()
            self.link.close()
