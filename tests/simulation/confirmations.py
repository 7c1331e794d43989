"""What brokers of 0.7 have stored, and what of it their clients can know to be stored.

Strategy: brokers of 0.7 acknowledge nothing, but an answer on a connection proves that what was sent before on it is
stored. The answer may get lost with its connection, and then the client does not know it; for that reason the last
moments before a fault count as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.kernel import Kernel
from tests.simulation.network import Link


class Confirmations:
    """Of all connections. `arrives`: the seconds in which an answer arrives at last."""

    def __init__(self, kernel: Kernel, arrives: float) -> None:
        self._kernel = kernel
        self._arrives = arrives
        #: Of each connection, what came on it and is not confirmed yet.
        self._waiting: dict[Link, list[bytes]] = {}
        #: When and to which connection the confirmation of a message was sent, the last time.
        self.confirmed: dict[bytes, tuple[float, Link]] = {}

    def stored(self, link: Link, payloads: Iterable[bytes]) -> None:
        """Messages that came on a connection are in a log."""
        self._waiting.setdefault(link, []).extend(payloads)

    def waiting(self, link: Link) -> set[bytes]:
        """What is not confirmed yet."""
        return set(self._waiting.get(link, ()))

    def confirm(self, link: Link, payloads: set[bytes]) -> None:
        """An answer is sent that confirms these."""
        self._waiting[link] = [each for each in self._waiting.get(link, ()) if each not in payloads]
        self.confirmed.update(dict.fromkeys(payloads, (self._kernel.now, link)))

    def unknown(self, address: tuple[str, int], link: Link | None = None) -> set[bytes]:
        """What is stored, and perhaps not confirmed, for the client of one connection, or of all to a broker."""

        def concerns(other: Link) -> bool:
            return other is link if link is not None else other.address == address

        since = self._kernel.now - self._arrives
        found = {payload for other, sent in self._waiting.items() if concerns(other) for payload in sent}
        return found | {payload for payload, (at, other) in self.confirmed.items() if at >= since and concerns(other)}
