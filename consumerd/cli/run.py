"""`consumerd run`: the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from consumerd.cli.config_option import config_option

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = """\b
Examples:
  consumerd run -c /etc/consumerd/events.toml
  CONSUMERD_GROUP__CONSUMER_ID=pod-0 consumerd run -c events.toml

SIGTERM, SIGQUIT or Ctrl-C stop gracefully: drain, commit, release. A second signal forces the exit. SIGHUP reloads the
configuration; an invalid one is logged, and the daemon goes on with the former one. SIGUSR1 writes to the log where
every task and thread is.
"""


@click.command("run", epilog=EXAMPLES)
@config_option()
def command(path: Path) -> None:
    """Join the group and hand messages to the handler until stopped."""
    from consumerd.daemon.signals import process_signals  # noqa: PLC0415 - heavy imports only for the command that runs

    with process_signals(reloads=True) as signals:  # before all that takes time
        from consumerd.config.model import load  # noqa: PLC0415
        from consumerd.daemon.logs import configure_logs  # noqa: PLC0415
        from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415
        from consumerd.daemon.service import serve  # noqa: PLC0415

        config = load(path)
        configure_logs(config.log.level, config.log.format)
        run_on_loop(serve(config, path), config.daemon.loop, signals=signals)
