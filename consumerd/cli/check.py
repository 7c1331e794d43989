"""`consumerd check`: everything that can be wrong before joining, found without joining."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

from consumerd.errors import ConfigError

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

    A file for dead letters has to be writable for the user who checks. Pipelines of [spark] are checked too; a file may
    have nothing else. Nothing is connected, joined or made.
    """
    from consumerd.config.model import read_document  # noqa: PLC0415 - heavy imports only for the command that runs

    document = read_document(path)
    valid = []
    if "group" in document or "spark" not in document:
        valid.append(_check_daemon(path))
    if "spark" in document:
        valid.append(_check_pipelines(path))
    for what in valid:
        click.echo(f"{path} is valid: {what}")


def _check_daemon(path: Path) -> str:
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.config.build import (  # noqa: PLC0415
        build_handler,
        build_offset_settings,
        build_session,
        build_settings,
    )
    from consumerd.config.build_v08 import build_client, build_coordination, fixed_partitions  # noqa: PLC0415
    from consumerd.config.model import load  # noqa: PLC0415

    config = load(path)
    clock, rng = SystemClock(), SystemRandom()
    settings = build_settings(config, clock=clock, rng=rng)
    if config.group.coordination == "zookeeper":
        build_session(config.zookeeper, clock=clock, rng=rng)
        if config.group.dialect != "0.7":
            build_client(config, clock=clock, rng=rng)
        what = settings.subscription.format()
    else:
        build_client(config, clock=clock, rng=rng)
        build_coordination(config)
        if build_offset_settings(config).in_zookeeper:
            build_session(config.zookeeper, clock=clock, rng=rng)
        partitions = fixed_partitions(config.group)
        what = ", ".join(map(str, partitions)) or f"{settings.subscription.format()} coordinated by a broker"
    build_handler(config, clock=clock, rng=rng)
    return f"group {settings.group}, {what}, handler {config.handler.name}"


def _check_pipelines(path: Path) -> str:
    from consumerd.spark.spec import load_spark  # noqa: PLC0415 - needs neither pyspark nor a JVM

    spec = load_spark(path)
    try:
        from consumerd.spark.spec_check import check_spark  # noqa: PLC0415 - knows the source's columns, hence Arrow
    except ImportError as error:
        raise ConfigError(
            f"{path} declares pipelines, which need the extra `spark`: pip install 'consumerd[spark]'."
        ) from error
    check_spark(spec)
    return f"pipelines {', '.join(sorted(spec.pipelines)) or 'none'}, tables under {spec.root}"
