"""The options of `consumerd mirror` for targets of 0.8 and later, and the handler options made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.config_option import Decorated, file_option, servers_option, together
from consumerd.cli.numbers import PositiveInt

if TYPE_CHECKING:
    from consumerd.base.settings.servers import KafkaSection
    from consumerd.handlers.forward.mapping import TopicNaming

#: Start and end of a column.
_BOUNDS = 2


def rename_option(more: str = "") -> Callable[[Decorated], Decorated]:
    """`--rename` (parameter `renames`, for `renaming`). `more`: a further sentence of its help."""
    return click.option(
        "--rename",
        "renames",
        multiple=True,
        metavar="OLD=NEW",
        help=f"Name of topic OLD on the target; may be given several times.{more}",
    )


def to_servers_option(about: str, *, required: bool = False) -> Callable[[Decorated], Decorated]:
    """`--to-bootstrap-server` (parameter `to_servers`). `about`: the beginning of its help."""
    flags = "--to-bootstrap-server", "to_servers"
    return servers_option(*flags, about=f"{about}; may be given several times.", required=required)


#: The target's credentials and TLS, as parameter `to_config`.
to_config_option = file_option(
    "--to-config",
    about="Configuration file of a daemon whose [kafka] is used for the target: TLS, SASL, client_id.",
)
replication_option = click.option(
    "--replication-factor",
    type=PositiveInt(32767),
    help="Number of replicas of created topics.  [default: the brokers' default, often 1]",
)
#: All options of a target, as parameters of their names.
kafka_target_options = together(
    to_servers_option("Brokers of a target cluster of Kafka 0.8 or later"),
    to_config_option,
    rename_option(" Other topics keep their names."),
    click.option(
        "--partitions",
        multiple=True,
        metavar="N|TOPIC=N",
        help="Create missing topics on the target with N partitions; TOPIC=N sets the number for one topic by its "
        "name on the target, and may be given several times.",
    ),
    replication_option,
    click.option(
        "--key",
        metavar="KIND:VALUE",
        help=("Extract keys from payloads, and choose partitions by them: json:user.id, regex:id=(\\w+), column:0-8."),
    ),
    click.option(
        "--round-robin",
        is_flag=True,
        help="Send messages without a key to the partitions in turn: balances best, but loses the order.",
    ),
    click.option(
        "--no-headers",
        is_flag=True,
        help="Do not add headers with the original identity; required for targets before Kafka 0.11.",
    ),
    click.option(
        "--resume",
        type=click.Choice(["committed", "target"]),
        help=("Continue after the last commit, or after the last message that the target has.  [default: committed]"),
    ),
    click.option(
        "--exactly-once",
        is_flag=True,
        help="Send each batch in a transaction that has the position of its partition, too: consumers of committed "
        "messages get each message once. Requires a target of Kafka 2.5 or later.",
    ),
)


def renaming(pair: str) -> tuple[str, str]:
    """`OLD=NEW`, split at the last sign: only old names may have one. Raises UsageError."""
    old, sign, new = pair.rpartition("=")
    if not (old and sign and new):
        raise click.UsageError(f"--rename {pair!r} is not of the form OLD=NEW.")
    return old, new


def topic_naming(renames: Sequence[str], template: str = "{topic}") -> TopicNaming:
    """The target's names of topics: by `--rename`, else by `template`. Raises UsageError."""
    from consumerd.handlers.forward.mapping import TopicNaming  # noqa: PLC0415

    try:
        return TopicNaming(template, dict(map(renaming, renames)))
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error


def partitions_option(texts: Sequence[str]) -> int | dict[str, int] | None:
    """`N` once, or `TOPIC=N` for each topic. Raises UsageError."""
    counts: dict[str, int] = {}
    for text in texts:
        topic, sign, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit() and int(number)) or (sign and not topic):
            raise click.UsageError(f"--partitions must be a number or TOPIC=N, not {text!r}.")
        if topic in counts or (counts and not (topic and all(counts))):
            raise click.UsageError("give --partitions once, as a number for all topics, or once for each as TOPIC=N.")
        counts[topic] = int(number)
    return counts.get("") or counts or None


def key_option(text: str | None) -> dict[str, Any] | None:
    """`KIND:VALUE` as the handler's option. Raises UsageError."""
    if text is None:
        return None
    kind, colon, value = text.partition(":")
    if not (colon and value and kind in ("json", "regex", "column")):
        raise click.UsageError(f"--key must be json:PATH, regex:PATTERN or column:START-END, not {text!r}.")
    if kind != "column":
        return {kind: value}
    bounds = value.split("-")
    if len(bounds) != _BOUNDS or not all(bound.isascii() and bound.isdigit() for bound in bounds):
        raise click.UsageError(f"--key {text!r}: a column must be START-END, in bytes from 0, END excluded.")
    return {"column": [int(bound) for bound in bounds]}


def target_section(servers: Sequence[str], config: Path | None) -> KafkaSection:
    """The [kafka] table of the target: that of the configuration, at these servers.

    Raises ConfigError, BadParameter.
    """
    from consumerd.cli.session import server_list  # noqa: PLC0415 - with asyncio
    from consumerd.service.config.model import load  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.service.daemon.forwarding import kafka_section  # noqa: PLC0415

    addresses = server_list(servers, "--to-bootstrap-server")
    if config is None:
        return kafka_section(addresses)
    return load(config).kafka.replace(bootstrap=tuple(addresses))
