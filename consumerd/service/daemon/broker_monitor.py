"""Whether a broker is ready, and how late its event loop is.

Strategy: the broker lives while its event loop answers: disks and ZooKeeper have no part in that, since a restart
repairs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.base.metrics.histogram import LATENCIES, Histogram
from consumerd.base.ports import Clock
from consumerd.service.daemon.repeats import REPEATS

if TYPE_CHECKING:
    from consumerd.storage.broker.config import BrokerConfig
    from consumerd.storage.broker.server import Broker

#: Seconds between looks at how late the event loop is.
_LOOK: Final = 1.0


class BrokerMonitor:
    """The monitor of one broker, which it knows as soon as `watch` was called."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.config = config
        self.started_wall = clock.wall()
        self.broker: Broker | None = None
        self.loop_lag = Histogram(LATENCIES)
        self._clock = clock

    def watch(self, broker: Broker) -> None:
        """Watch this broker from now on."""
        self.broker = broker

    @property
    def sick(self) -> str | None:
        """None: an event loop that does not come round does not get as far as this."""
        return None

    @property
    def unready(self) -> list[str]:
        """The reasons for which clients are not served now: starting, not_registered, stopping."""
        broker = self.broker
        if broker is None:
            return ["starting"]
        if broker.stopping:
            return ["stopping"]
        if not broker.ready.is_set():
            return ["starting"]
        return ["not_registered"] if broker.registered is False else []

    async def look_at_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_LOOK)
            self.loop_lag.observe(max(0.0, self._clock.monotonic() - before - _LOOK))
            REPEATS.flush()
