"""From the configuration to a handler: the plugin, its stages, its retry policy and its place for dead letters."""

from __future__ import annotations

from random import Random

from consumerd.base.errors import ConfigError
from consumerd.base.metrics.own import HandlerMetrics
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import DeadLetters, FileDeadLetters, Handler, load_handler
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.dead_letters import OriginalLetters
from consumerd.handlers.decoding.api import BYTES, Decoder, load_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.handlers.key_lanes import has_key, no_keys
from consumerd.handlers.middleware import load_middleware
from consumerd.handlers.retry_order import RetryOrder
from consumerd.service.config.build import place_beside
from consumerd.service.config.model import Config


def build_dead_letters(config: Config, *, clock: Clock, rng: Random) -> DeadLetters | None:
    """The place for dead letters, not started; None where the policy has none. Raises ConfigError."""
    section = config.handler
    topic, path = section.failure_topic, section.dead_letter
    if path is None and topic is None:
        return None
    letters = FileDeadLetters(
        place_beside(section),
        clock=clock,
        max_size=section.dead_letter_max_size,
        file_size=section.dead_letter_file_size,
    )
    if path is not None:
        letters.check()
    if topic is None:
        return letters if section.delay is None else OriginalLetters(letters)
    from consumerd.service.config.build_dead_letters import build_letter_topic  # noqa: PLC0415 - and producers with it

    place = build_letter_topic(config, topic, clock=clock, rng=rng, beside=letters)
    return place if section.delay is None else OriginalLetters(place)


def build_handler(
    config: Config,
    *,
    clock: Clock,
    rng: Random,
    counts: HandlerCounts | None = None,
    metrics: HandlerMetrics | None = None,
) -> Handler:
    """The handler, loaded and wrapped in its retry policy, not started. Raises HandlerLoadError, ConfigError.

    The results of its failures are added to `counts`; `metrics` are its own.
    """
    section = config.handler
    letters = build_dead_letters(config, clock=clock, rng=rng)
    plugin = build_plugin(section)
    lanes = section.concurrency if section.order == "key" else None
    stages = build_stages(section, metrics)
    stages.check(plugin)
    handler = stages.around(
        plugin, section, clock=clock, rng=rng, dead_letters=letters, counts=counts, lanes=lanes,
        order=_build_retry_order(config, clock=clock, rng=rng),
    )  # fmt: skip
    if lanes is not None and config.group.dialect == "0.7" and not has_key(plugin):
        raise ConfigError(no_keys(section.name))
    return handler


def _build_retry_order(config: Config, *, clock: Clock, rng: Random) -> RetryOrder | None:
    if config.handler.retry_order != "key":
        return None
    from consumerd.service.config.build_retry_logs import BrokerRetryLogs  # noqa: PLC0415 - and what reads logs with it

    return RetryOrder(BrokerRetryLogs(config, clock=clock, rng=rng), config.handler.retry_topics, clock)


def build_plugin(section: HandlerSection) -> Handler:
    """The handler itself, with nothing around it. Raises HandlerLoadError."""
    if section.processes is not None:
        from consumerd.handlers.processes import ProcessHandler  # noqa: PLC0415 - and multiprocessing with it

        return ProcessHandler(section.name, section.options, section.processes)
    return load_handler(section.name, section.options)


def build_decoder(section: HandlerSection) -> Decoder | None:
    """Return the decoder; None where payloads stay as they are. Raises HandlerLoadError."""
    if section.decoder == BYTES and not section.decoder_options:
        return None
    return load_decoder(section.decoder, section.decoder_options)


def build_stages(section: HandlerSection, metrics: HandlerMetrics | None = None) -> Stages:
    """Return the stages around the handler other than its retry policy. Raises HandlerLoadError."""
    return Stages(
        section.name,
        decoder=build_decoder(section),
        decoder_name=section.decoder,
        middleware=[load_middleware(name, section.middleware_options.get(name)) for name in section.middleware],
        config=section.plain(),
        metrics=metrics,
    )
