"""The daemon's own log: structlog on standard error, JSON lines or a console rendering.

Strategy: modules have their loggers from the import on, and keep them as they were first used. So what may change while
the process runs is not in the loggers: the level is that of the first processor, and all share one list of processors.
"""

from __future__ import annotations

import atexit
import logging
import sys
from typing import Final, Literal, TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor, WrappedLogger

from consumerd.service.daemon.log_output import LogOutput
from consumerd.service.daemon.recent import RECENT
from consumerd.service.daemon.repeats import REPEATS


class _Level:
    """Drops events below a level."""

    def __init__(self) -> None:
        self.threshold = logging.INFO
        self._levels = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if self._levels.get(method, self.threshold) < self.threshold:
            raise structlog.DropEvent
        return event


def _below(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Have the console show a short traceback below the line, as it shows whole ones."""
    if traceback := event.pop("traceback", None):
        event.setdefault("exception", traceback)
    return event


_LEVEL: Final = _Level()
#: The keys with which a line begins, for people who read JSON.
_FIRST: Final = ("timestamp", "level", "event")


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {key: event[key] for key in _FIRST if key in event} | dict(event)


#: Of all loggers there are.
_PROCESSORS: Final[list[Processor]] = []


def configure_logs(level: str, style: Literal["auto", "console", "json"]) -> None:
    """Set up structlog for the process, or change it. `level` is a lower-case name; `auto` is console on a terminal.

    Library loggers (aiozk, asyncio) go the same way from WARNING on, so that standard error holds one format.
    Tracebacks come without local variables, which may be passwords and messages.
    """
    atexit.unregister(REPEATS.flush)  # of a former call
    atexit.register(REPEATS.flush, all_kinds=True)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    _LEVEL.threshold = threshold
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    output = LogOutput(sys.stderr)
    stamps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        REPEATS,
        output.tell_lost,
        RECENT,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        render: list[structlog.typing.Processor] = [
            _in_order,
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        render = [_below, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    _PROCESSORS[:] = [_LEVEL, *stamps, *render]
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", output)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=stamps,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
