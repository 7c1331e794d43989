"""`consumerd check`: everything that can be wrong before joining, found without joining."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

EXAMPLES = """\b
Examples:
  consumerd check -c /etc/consumerd/events.toml && systemctl restart consumerd@events
"""


@click.command("check", epilog=EXAMPLES)
@click.option(
    "-c", "--config", "path", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The TOML file."
)
def command(path: Path) -> None:
    """Validate a configuration: keys and values, topics and filters, credentials, and that the handler loads.

    Nothing is connected and nothing is joined.
    """
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.daemon.build import build_handler, build_session, build_settings  # noqa: PLC0415
    from consumerd.daemon.config import load  # noqa: PLC0415

    config = load(path)
    clock, rng = SystemClock(), SystemRandom()
    settings = build_settings(config, clock=clock, rng=rng)
    build_session(config.zookeeper, clock=clock, rng=rng)
    build_handler(config, clock=clock, rng=rng)
    click.echo(
        f"{path} is valid: group {settings.group}, {settings.subscription.format()}, handler {config.handler.name}"
    )
