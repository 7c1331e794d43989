"""Reloading: a new configuration for a member that runs, and the notification of the service manager.

Strategy: the whole file is read and checked first, as by `consumerd check`; with a problem in it nothing changes. Then
what can change is changed (`consumerd.config.reloading`), and what needs a restart is named in one event. The order is
log, watching, handler, topics: partitions of new topics flow to the new handler only.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from consumerd.config.build import build_handler, build_settings
from consumerd.config.problems import problem_of_error, read_document
from consumerd.config.reloading import Reload, compare
from consumerd.daemon.checks import check_daemon, check_parts
from consumerd.daemon.logs import configure_logs
from consumerd.daemon.notify import READY, RELOADING, notify, reloading_since, status
from consumerd.errors import ConsumerdError, reason_of

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from consumerd.config.model import Config
    from consumerd.config.reloading import Comparison
    from consumerd.consumer.running import RunningMember
    from consumerd.daemon.monitor import Monitor
    from consumerd.handlers import Handler
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)


class Reloader:
    """Reloads the configuration at `path` into the parts of a daemon that runs by `config`."""

    def __init__(self, path: Path, config: Config, monitor: Monitor, *, clock: Clock, rng: Random) -> None:
        self._path = path
        self._config = config
        self._monitor = monitor
        self._clock = clock
        self._rng = rng
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Reload soon. Requests that come during a reload are one."""
        self._requested.set()

    async def run(self, member: RunningMember[Any]) -> None:
        """Reload the parts of `member` whenever it is requested."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            notify(RELOADING, reloading_since(), status("reloading the configuration"))
            try:
                await self._reload(member)
            except Exception as error:  # a defect, which is no reason to stop
                log.exception("reload_failed", file=str(self._path), reason=reason_of(error))
            finally:
                if not member.stopping.is_set():
                    notify(READY, status("member of the group"))

    async def _reload(self, member: RunningMember[Any]) -> None:
        source = str(self._path)
        try:
            # Reading blocks, and handlers may import what takes long.
            comparison, problems = await asyncio.to_thread(self._read)
        except ConsumerdError as error:  # no file, or not TOML
            comparison, problems = None, [" ".join(str(error).split())]
        if comparison is None:
            log.error("configuration_rejected", file=source, problems=problems, reason="it is invalid")
            return
        failure = await self._apply(comparison, member)
        if failure is not None:
            log.error("configuration_rejected", file=source, problems=[reason_of(failure)], reason="see problems")
        if comparison.refused:
            reason = f"restart to apply: {', '.join(comparison.refused)}"
            log.warning("configuration_keys_refused", file=source, keys=comparison.refused, reason=reason)
        keys = [key for keys in comparison.applied.values() for key in keys]
        if failure is None:
            log.info("configuration_reloaded", file=source, keys=keys)

    def _read(self) -> tuple[Comparison | None, list[str]]:
        """In a thread. What is to change, or the problems."""
        source = str(self._path)
        document = read_document(self._path)
        checked = check_daemon(document, source)
        problems = list(checked.problems)
        if checked.config is None or problems:
            return None, [each.format(source) for each in problems]
        comparison = compare(self._config, checked.config)
        if comparison.refused:  # a mixture of both, then
            try:
                check_parts(comparison.merged)
            except ConsumerdError as error:
                return None, [problem_of_error(error, ("handler",), source, document).format(source)]
        return comparison, []

    def _make_handler(self, config: Config) -> Handler:
        monitor = self._monitor
        metrics = monitor.metrics_of_handler(config.handler.name)
        counts = monitor.handler_counts
        return monitor.traced(build_handler(config, clock=self._clock, rng=self._rng, counts=counts, metrics=metrics))

    async def _apply(self, comparison: Comparison, member: RunningMember[Any]) -> ConsumerdError | None:
        """Change what can change. Returns the error of a handler that did not start: the former one goes on."""
        former, config = self._config, comparison.merged
        configure_logs(config.log.level, config.log.format)
        self._monitor.reconfigure(config)
        member.change(commit_interval=config.commit.interval)
        settings = build_settings(config, clock=self._clock, rng=self._rng)
        self._config = config
        failure = None
        if Reload.HANDLER in comparison.applied:
            try:
                handler = self._make_handler(config)
            except ConsumerdError as error:
                failure = error
            else:
                make_former = partial(self._make_handler, former)
                failure = await member.exchange_handler(handler, settings.batching, make_former)
            if failure is not None:
                self._config = config.model_copy(update={"handler": former.handler})
                self._monitor.config = self._config
        if Reload.SUBSCRIPTION in comparison.applied:
            member.change_subscription(settings.subscription)
        return failure
