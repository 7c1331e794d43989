"""An authentication that a broker accepts for a limited time, and its renewal on the same connection (KIP-368).

Strategy: a broker with `connections.max.reauth.ms`, or with tokens that expire, says how long an authentication lasts,
and closes the connection at the first request after that. It authenticates again at any request SASL_HANDSHAKE, also
a late one, but not twice within a second. So there is no timer: the first request after four fifths of the time starts
the renewal, in a task of the session. The token is made while requests go on. Then the handshake takes its place behind
the requests that were sent, and later ones wait for the end of the authentication, in their order.

A renewal that fails before the session has expired changes nothing, and is tried again. Otherwise the connection is
dropped: the next one tells why.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.ports import Clock
from consumerd.net.errors import ConnectionClosedError

log = logging.getLogger(__name__)
#: The part of the lifetime after which the client authenticates again; in the rest, requests may wait at the broker.
_FRESH_FOR: Final = 0.8
#: Seconds before its end from which on a session takes no request, at least, and as a part of the lifetime: the broker
#: has to work on a request before the end.
_MARGIN: Final = 0.3
_MARGIN_PART: Final = 0.1
#: Seconds between two authentications, at least: a broker refuses a second one within a second.
_SHORTEST: Final = 1.05
#: Seconds between attempts to make a token while the session lasts.
_RETRY_AFTER: Final = 1.0


class SaslSession:
    """The session of a channel to the broker at `address`, which `renew(session)` authenticates again.

    `renew` calls `hold` before its first request, and `extend` at the end. `drop` ends the connection.
    """

    def __init__(
        self,
        address: str,
        until: float,
        renew: Callable[[SaslSession], Awaitable[None]],
        *,
        clock: Clock,
        drop: Callable[[], None],
    ) -> None:
        self._address = address
        self._renew = renew
        self._clock = clock
        self._drop = drop
        #: Requests pass one after the other, so that they keep their order.
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._renewal: asyncio.Task[None] | None = None
        self._holding = False
        self._failure = ""
        self._renew_at = self._full_at = self._expires_at = self._earliest = 0.0
        self.extend(until)

    def extend(self, until: float) -> None:
        """The broker has accepted an authentication until that time on the clock."""
        now = self._clock.monotonic()
        lifetime = until - now
        self._expires_at = until
        self._full_at = until - max(_MARGIN, lifetime * _MARGIN_PART) if lifetime < math.inf else until
        self._renew_at = min(now + lifetime * _FRESH_FOR, self._full_at)
        self._earliest = now + _SHORTEST

    def hold(self) -> None:
        """Let no further request pass: the next one is that of the renewal."""
        self._holding = True

    def passes_now(self) -> bool:
        """Whether a request may be sent at once; else `admit` waits until it may."""
        now = self._clock.monotonic()
        if self._waiting or self._holding:
            return False
        return now < self._renew_at or (self._renewal is not None and now < self._full_at)

    async def admit(self) -> None:
        """Return when the caller may send its request. Raises ConnectionClosedError where the renewal failed."""
        if asyncio.current_task() is self._renewal:
            return
        self._waiting += 1
        try:
            async with self._turn:
                await self._admitted()
        finally:
            self._waiting -= 1

    async def _admitted(self) -> None:
        if self._renewal is None and not self._failure and self._clock.monotonic() >= self._renew_at:
            self._renewal = asyncio.create_task(self._renewed(), name=f"authenticate again: {self._address}")
        renewal = self._renewal
        if renewal is not None and (self._holding or self._clock.monotonic() >= self._full_at):
            await asyncio.wait([renewal])  # which goes on if the caller is cancelled
        if self._failure:
            raise ConnectionClosedError(
                f"the connection to broker {self._address} was closed: authenticating again failed: {self._failure}"
            )

    async def _renewed(self) -> None:
        try:
            await self._clock.sleep(self._earliest - self._clock.monotonic())
            await self._renew(self)
        except ConsumerdError as error:
            if not self._holding and (now := self._clock.monotonic()) < self._expires_at:
                self._renew_at = min(self._expires_at, now + _RETRY_AFTER)
                log.info(
                    "re-authentication at broker %s failed and is tried again: %s", self._address, reason_of(error)
                )
                return
            self._failure = reason_of(error)
            self._drop()
        except Exception:  # a defect
            self._drop()
            raise
        finally:
            self._holding, self._renewal = False, None

    def cancel(self) -> None:
        """End the renewal that is under way: the connection ends."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def close(self) -> None:
        """As `cancel`; return when it has ended."""
        if (renewal := self._renewal) is not None:
            renewal.cancel()
            await asyncio.wait([renewal])
