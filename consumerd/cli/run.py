"""`consumerd run`: the daemon."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from consumerd.cli.config_option import config_option

EXAMPLES = """\b
Examples:
  consumerd run -c /etc/consumerd/events.toml
  CONSUMERD_GROUP__CONSUMER_ID=pod-0 consumerd run -c events.toml

SIGTERM, SIGQUIT or Ctrl-C stop gracefully: drain, commit, release. A second signal forces the exit. SIGHUP reloads the
configuration; an invalid one is logged, and the daemon goes on with the former one. SIGUSR1 writes to the log where
every task and thread is.
"""


def import_structlog() -> None:
    """Import structlog without rich and colorama, which it would import, and which the daemon's log does not use.

    A tenth of a daemon's start and 4 MiB of its memory. None is Python's own mark of a module that cannot be imported,
    and structlog works without them; whatever imports them later finds them.
    """
    hidden = {"rich", "colorama"} - sys.modules.keys()
    if "structlog" in sys.modules:
        return
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def imports_kept() -> Iterator[None]:
    """Import without the garbage collector, and leave what was imported out of its later collections.

    Modules stay until the end of the process. Without this, the collector goes through all of them a dozen times during
    a start, a seventh of its processor time, and again in each full collection of the daemon.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@click.command("run", epilog=EXAMPLES)
@config_option()
def command(path: Path) -> None:
    """Join the group and deliver messages to the handler until stopped."""
    from consumerd.service.daemon.signals import process_signals, signals_held  # noqa: PLC0415 - before all that takes time

    with ExitStack() as stack:
        with signals_held():
            with imports_kept():
                import_structlog()
                sys.modules.pop("locale", None)  # 0.5 MiB of names, which click's gettext has imported to look at one
            signals = stack.enter_context(process_signals(reloads=True))
        with imports_kept():
            from consumerd.service.config.model import load  # noqa: PLC0415
            from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415
            from consumerd.service.daemon.loop import run_on_loop  # noqa: PLC0415
            from consumerd.service.daemon.service import import_member, serve  # noqa: PLC0415

            config = load(path)
            import_member(config)
        configure_logs(config.log.level, config.log.format)
        run_on_loop(serve(config, path), config.daemon.loop, signals=signals, budget=config.fetch.budget)
