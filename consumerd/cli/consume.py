"""`consumerd consume`: a topic's messages on standard output, as a member of a group."""

from __future__ import annotations

import click

EXAMPLES = """\b
Examples:
  consumerd consume --zookeeper 127.0.0.1:2181/kafka --group look --topic events
  consumerd consume --zookeeper zk1:2181 --group export --topic events --exit-at-end > events.txt
  consumerd consume --zookeeper zk1:2181 --group look --topic events --from latest --max-messages 10 --json
  consumerd consume --zookeeper zk1:2181 --group look --whitelist 'events-.*' --exit-at-end

What is printed is committed for the group when the command ends, and every ten seconds: run it again and it goes on.
"""


@click.command("consume", epilog=EXAMPLES)
@click.option(
    "--zookeeper", required=True, metavar="HOST:PORT/CHROOT", help="Where the group and its brokers register."
)
@click.option("--group", required=True, help="The group to be a member of.")
@click.option("--topic", help="The topic to consume. Give this, or one of the next two.")
@click.option("--whitelist", metavar="REGEX", help="Consume all topics that match, new ones too.")
@click.option("--blacklist", metavar="REGEX", help="Consume all topics that do not match.")
@click.option(
    "--from",
    "initial",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to start in partitions without a committed offset.",
)
@click.option("--max-messages", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--exit-at-end", is_flag=True, help="Stop when everything there was at the start is printed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per message, with its identity.")
def command(
    zookeeper: str,
    group: str,
    topic: str | None,
    whitelist: str | None,
    blacklist: str | None,
    initial: str,
    max_messages: int | None,
    exit_at_end: bool,
    as_json: bool,
) -> None:
    """Print the messages of topics: payloads, one per line, in the order of each partition."""
    if sum(given is not None for given in (topic, whitelist, blacklist)) != 1:
        raise click.UsageError("Give exactly one of --topic, --whitelist and --blacklist.")
    from consumerd.daemon.config import parse  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.daemon.console import consume  # noqa: PLC0415
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415
    from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415

    document = {
        "group": {
            "id": group,
            "topics": {} if topic is None else {topic: 1},
            "whitelist": whitelist,
            "blacklist": blacklist,
        },
        "zookeeper": {"connect": zookeeper, "connection_timeout": 10.0},
        "fetch": {"initial": initial},
        "handler": {"name": "print"},
    }
    configure_logs("warning", "auto")
    run_on_loop(
        consume(
            parse(document, "the command line"),
            max_messages=max_messages,
            exit_at_end=exit_at_end,
            as_json=as_json,
        )
    )
