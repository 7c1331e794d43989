"""Reloading: a new configuration for a member that runs, and the notification of the service manager.

Strategy: the whole file is read and checked first, as by `consumerd check`; with a problem in it nothing changes. Then
what can change is changed (`consumerd.service.config.reloading`), and what needs a restart is named in one event. The
order is log, watching, handlers, topics: partitions of new topics flow to the new handlers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import structlog

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import Handler
from consumerd.member.consumer.running_member import RunningMember
from consumerd.service.config.build_subscriptions import build_members
from consumerd.service.config.model import Config
from consumerd.service.config.problems import problem_of_error, read_document
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon.logs import configure_logs
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.notify import READY, RELOADING, notify, reloading_since, status
from consumerd.service.daemon.subscription_monitor import SubscriptionMonitor

if TYPE_CHECKING:
    from consumerd.service.config.reloading import ConfigChanges

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

    async def run(self, stopping: asyncio.Event, standing: Callable[[], str]) -> None:
        """Reload the parts of the members that the monitor watches, whenever it is requested; `stopping` is theirs.

        `standing`: what the service manager shows of them after a reload.
        """
        while True:
            await self._requested.wait()
            self._requested.clear()
            notify(RELOADING, reloading_since(), status("reloading the configuration"))
            accepted = False
            try:
                accepted = await self._reload()
            except Exception as error:  # a defect, which does not stop the daemon
                log.exception("reload_failed", file=str(self._path), reason=reason_of(error))
            finally:
                if not stopping.is_set():
                    rejected = "" if accepted else "; the configuration was rejected: see the log"
                    notify(READY, status(f"{standing()}{rejected}"))

    async def _reload(self) -> bool:
        """Whether the file is what the daemon now runs with, but for keys that need a restart."""
        source = str(self._path)
        try:
            # Reading blocks, and handlers may import what takes long.
            comparison, problems = await asyncio.to_thread(self._read)
        except ConsumerdError as error:  # no file, or not TOML
            comparison, problems = None, [" ".join(str(error).split())]
        if comparison is None:
            log.error("configuration_rejected", file=source, problems=problems, reason="it is invalid")
            return False
        failure = await self._apply(comparison)
        if failure is not None:
            log.error("configuration_rejected", file=source, problems=[reason_of(failure)], reason="see problems")
        if comparison.refused:
            reason = f"restart to apply: {', '.join(comparison.refused)}"
            log.warning("configuration_keys_refused", file=source, keys=comparison.refused, reason=reason)
        keys = [key for keys in comparison.applied.values() for key in keys]
        if failure is None:
            log.info("configuration_reloaded", file=source, keys=keys)
        return failure is None

    def _read(self) -> tuple[ConfigChanges | None, list[str]]:
        """Return the changes, or the problems. Called in a thread."""
        source = str(self._path)
        # No daemon needs these before its first reload. The checks build what serves each dialect.
        from consumerd.service.config.reloading import compare  # noqa: PLC0415
        from consumerd.service.daemon.checks import check_daemon, check_parts  # noqa: PLC0415

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

    async def _apply(self, comparison: ConfigChanges) -> ConsumerdError | None:
        """Change what can change. Returns the error of a handler that did not start: the former one continues."""
        from consumerd.service.config.reloading import same_handler  # noqa: PLC0415 - as in `_read`

        former, config = self._config, comparison.merged
        configure_logs(config.log.level, config.log.format)
        self._config = config
        self._monitor.reconfigure(config)
        settings = build_members(config, clock=self._clock, rng=self._rng)
        old, new = former.by_subscription(), config.by_subscription()
        failure = None
        for part in self._monitor.subscriptions:
            if part.member is None:
                continue
            before, after = old[part.name], new[part.name]
            kept = same_handler(before.handler, after.handler)
            part.member.change(config.commit, kept)
            if kept != after.handler:
                with self._monitor.logged_as(part):
                    error = await self._exchange(part, part.member, before, after)
                if error is not None:
                    failure = failure or error
                    self._config = _with_handler(self._config, part.name, kept)
                    self._monitor.reconfigure(self._config)
        for part in self._monitor.subscriptions:
            subscription = settings[part.name].subscription
            if part.member is not None and subscription != part.member.settings.subscription:
                with self._monitor.logged_as(part):
                    part.member.change_subscription(subscription)
        return failure

    async def _exchange(
        self,
        part: SubscriptionMonitor,
        member: RunningMember[Any],
        former: Config,
        config: Config,
    ) -> ConsumerdError | None:
        try:
            handler = self._make_handler(part, config)
        except ConsumerdError as error:
            return error
        return await member.exchange_handler(handler, config.handler, partial(self._make_handler, part, former))

    def _make_handler(self, part: SubscriptionMonitor, config: Config) -> Handler:
        return self._monitor.traced(self._monitor.build_handler(part, config, self._rng), part)


def _with_handler(config: Config, name: str, handler: HandlerSection) -> Config:
    """`config` with this handler of the subscription `name`."""
    if name == MAIN:
        return config.replace(handler=handler)
    changed = tuple(each.replace(handler=handler) if each.name == name else each for each in config.subscriptions)
    return config.replace(subscriptions=changed)
