"""`consumerd dead-letters`: the messages that a handler rejected, and their replay."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.clock import SystemClock, iso_time
from consumerd.base.errors import CorruptDataError
from consumerd.cli.config_option import file_option, json_option, subscription_option, together
from consumerd.cli.numbers import zookeeper_option
from consumerd.cli.session import run_tool, server_list
from consumerd.cli.tables import show_rows

if TYPE_CHECKING:
    from consumerd.handlers.dead_letter_files import LetterLine
    from consumerd.handlers.dead_letter_progress import Receiver
    from consumerd.handlers.dead_letter_replay import ReplayTarget
    from consumerd.handlers.dead_letters import StoredLetter
    from consumerd.service.config.model import Config

EXAMPLES = """\b
Examples:
  consumerd dead-letters list /var/lib/consumerd/dead-letters.ndjson
  consumerd dead-letters show /var/lib/consumerd/dead-letters.ndjson --error-type ValueError --limit 3
  consumerd dead-letters replay /var/lib/consumerd/dead-letters.ndjson -c /etc/consumerd/events.toml
  consumerd dead-letters replay dead.ndjson --to-topic events-again --bootstrap-server kafka1:9092

FILE is the `dead_letter` of a configuration; the files that it was renamed to for its size belong to it. A replay never
changes them: it notes in FILE.replayed how far it came, and continues there when it is called again, also after a kill,
when up to 500 letters may be delivered twice. Each receiver gets every letter once: a handler with other options, of
another group, subscription or cluster is another receiver, and so is the same topic of another cluster.
"""

_FILE = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_PROGRESS = file_option(
    "--progress", about="Where replays note how far they came, and to whom. [default: FILE.replayed]"
)


_selection_options = together(
    click.option("--topic", help="Only dead letters of this topic."),
    click.option("--error-type", metavar="NAME", help="Only dead letters with this type of error."),
)


@click.group("dead-letters", epilog=EXAMPLES)
def command() -> None:
    """Show dead letters, and deliver them again."""


@command.command("list", epilog=EXAMPLES)
@_FILE
@_selection_options
@_PROGRESS
@json_option("One JSON object per row.")
def list_letters(path: Path, topic: str | None, error_type: str | None, progress: Path | None, as_json: bool) -> None:
    """Count letters by topic, partition and type of error, and how many of them were replayed to whom."""
    from consumerd.handlers.dead_letter_progress import Selection  # noqa: PLC0415 - only for the command that runs

    selection = Selection(topic, error_type)
    counts: Counter[tuple[str, str, str]] = Counter()
    replayed: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    first: dict[tuple[str, str, str], float] = {}
    last: dict[tuple[str, str, str], float] = {}
    unreadable = []
    for line, receivers in _lines(path, progress):
        if (letter := line.letter) is None:
            unreadable.append(line)
        elif selection.takes(letter):
            kind = (letter.message.topic, letter.message.partition.name, letter.error_type)
            counts[kind] += 1
            replayed[kind].update(receivers)
            first[kind] = min(letter.failed_at, first.get(kind, letter.failed_at))
            last[kind] = max(letter.failed_at, last.get(kind, letter.failed_at))
    names = ("topic", "partition", "error_type", "letters", "first", "last")
    rows = [(*kind, counts[kind], iso_time(first[kind]), iso_time(last[kind])) for kind in sorted(counts)]
    if as_json:
        for row in rows:
            click.echo(json.dumps({**dict(zip(names, row, strict=True)), "replayed": replayed[row[:3]]}))
    else:
        reported = [
            "; ".join(f"{count} to {name}" for name, count in sorted(replayed[row[:3]].items())) for row in rows
        ]
        shown = [(*row, words or "none") for row, words in zip(rows, reported, strict=True)]
        show_rows(("topic", "partition", "error", ">letters", "first", "last", "replayed"), shown)
    _complain(unreadable)


@command.command("show", epilog=EXAMPLES)
@_FILE
@_selection_options
@_PROGRESS
@click.option("--limit", type=click.IntRange(1), metavar="NUMBER", help="So many letters at most.")
def show(path: Path, topic: str | None, error_type: str | None, progress: Path | None, limit: int | None) -> None:
    """Print letters as JSON, payloads as text where they are UTF-8, with the receivers that they were replayed to."""
    from consumerd.handlers.dead_letter_progress import Selection  # noqa: PLC0415

    selection = Selection(topic, error_type)
    shown, unreadable = 0, []
    for line, receivers in _lines(path, progress):
        if line.letter is None:
            unreadable.append(line)
        elif selection.takes(line.letter):
            click.echo(_shown(line.letter, receivers))
            shown += 1
            if shown == limit:
                break
    _complain(unreadable)


@command.command("replay", epilog=EXAMPLES)
@_FILE
@_selection_options
@file_option(
    "-c", "--config", "config_file", about="A daemon's configuration: its handler, or with --to-topic its cluster."
)
@subscription_option()
@click.option("--to-topic", metavar="TOPIC", help="Send the messages to this topic, as they were, not to a handler.")
@click.option("--bootstrap-server", "bootstrap", metavar="HOST:PORT,...", help="With --to-topic: brokers since 0.8.")
@zookeeper_option("--zookeeper", "With --to-topic: where brokers register.")
@file_option(
    "--failed", about="Write letters that the handler rejects again to this file, and continue. [default: stop]"
)
@_PROGRESS
def replay_letters(
    path: Path, topic: str | None, error_type: str | None, progress: Path | None, **options: Any
) -> int | None:
    """Deliver letters again, to a configured handler or to a topic."""
    from consumerd.handlers.dead_letter_files import letter_files  # noqa: PLC0415
    from consumerd.handlers.dead_letter_progress import ReplayProgress, Selection, locked  # noqa: PLC0415
    from consumerd.handlers.dead_letter_replay import replay  # noqa: PLC0415

    config, to_topic, failed = _config(**options), options["to_topic"], options["failed"]
    if to_topic is not None and failed is not None:
        raise click.UsageError("--failed is for a replay to a handler: a topic takes every message.")
    if failed is not None and failed.absolute() == path.absolute():
        raise click.UsageError("--failed must be another file than the one that is replayed.")
    selection = Selection(topic, error_type)
    record = progress or _progress_of(path)
    receiver = _receiver(config, to_topic, options["subscription"])

    async def main() -> Any:
        noted = ReplayProgress(record, selection=selection, receiver=receiver)
        if noted.is_adopted:
            click.echo(
                f"An earlier release noted how far it replayed to {receiver.name}, without saying which one; that "
                "counts for this one. Name another file with --progress to replay from the start.", err=True,
            )  # fmt: skip
        elif noted.others:
            known = "; ".join(noted.others)
            click.echo(f"Letters were replayed before to {known}; this is another receiver, and gets all.", err=True)
        async with AsyncExitStack() as stack:
            opened = await _target(config, to_topic, failed, stack)
            return await replay(files, opened, noted, selection)

    files = letter_files(path)
    with locked(record):
        result = run_tool(main())
    click.echo(f"{result.letters} letters replayed to {receiver.name}.", err=True)
    if result.unreadable:
        raise CorruptDataError(
            f"lines that are not dead letters: {result.unreadable} (first: {result.first_problem}); all others were "
            "replayed."
        )
    return None


def _config(
    *,
    config_file: Path | None,
    subscription: str | None,
    to_topic: str | None,
    bootstrap: str | None,
    zookeeper: str | None,
    **_: Any,
) -> Config:
    from consumerd.service.config.model import load, parse  # noqa: PLC0415

    places = [place for place in (config_file, bootstrap, zookeeper) if place is not None]
    if subscription is not None and config_file is None:
        raise click.UsageError("--subscription needs -c with the file that has it.")
    if to_topic is None and (config_file is None or len(places) != 1):
        raise click.UsageError("give -c with the handler to replay to, or --to-topic.")
    if len(places) != 1:
        raise click.UsageError("--to-topic needs exactly one of -c, --bootstrap-server and --zookeeper.")
    if config_file is not None:
        return load(config_file).of_subscription(subscription)
    document: dict[str, Any] = {"group": {"id": "replay", "topics": {"replay": 1}}}
    if bootstrap is not None:
        document["group"]["coordination"] = "kafka"
        document["kafka"] = {"bootstrap": server_list([bootstrap], "--bootstrap-server")}
    else:
        document["zookeeper"] = {"connect": zookeeper}
    return parse(document, "the command line", environment=False)


async def _target(config: Config, to_topic: str | None, failed: Path | None, stack: AsyncExitStack) -> ReplayTarget:
    from random import SystemRandom  # noqa: PLC0415

    from consumerd.handlers import FileDeadLetters, HandlerContext  # noqa: PLC0415
    from consumerd.handlers.dead_letter_replay import HandlerTarget, TopicTarget, require_replayable  # noqa: PLC0415
    from consumerd.service.config.build_dead_letters import letter_producer  # noqa: PLC0415
    from consumerd.service.config.build_handlers import build_plugin, build_stages  # noqa: PLC0415

    clock, rng = SystemClock(), SystemRandom()
    if to_topic is not None:
        opened = await stack.enter_async_context(letter_producer(config, clock=clock, rng=rng))
        return TopicTarget(opened.producer, to_topic, headers=opened.headers)
    name = config.handler.name
    letters = None if failed is None else FileDeadLetters(failed, clock=clock)
    policy = config.handler.replace(on_failure="stop" if letters is None else "dead_letter")
    inner = build_plugin(config.handler)
    require_replayable(inner, name)
    handler = build_stages(config.handler).around(inner, policy, clock=clock, rng=rng, dead_letters=letters)
    stack.push_async_callback(handler.stop)
    await handler.start(HandlerContext(config.group.id, f"{config.group.id}_replay", clock))
    return HandlerTarget(handler)


def _receiver(config: Config, to_topic: str | None, subscription: str | None) -> Receiver:
    from consumerd.handlers.dead_letter_progress import Receiver  # noqa: PLC0415
    from consumerd.handlers.secrets import shown_options  # noqa: PLC0415

    zookeeper = config.group.coordination == "zookeeper"
    cluster = config.zookeeper.connect if zookeeper else ",".join(sorted(config.kafka.bootstrap))
    if to_topic is not None:
        return Receiver(f"topic {to_topic}", f"at {cluster}", cluster)
    handler = config.handler
    options = json.dumps(shown_options(handler.name, handler.options), default=str)
    group = f"of group {config.group.id}" + (f", subscription {subscription}" if subscription else "")
    details = f"{group} at {cluster}" + (f" with {options}" if handler.options else "")
    identity = [config.group.id, subscription, cluster, handler.options]
    return Receiver(f"handler {handler.name}", details, json.dumps(identity, sort_keys=True, default=str))


def _progress_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.replayed")


def _lines(path: Path, progress: Path | None) -> Iterator[tuple[LetterLine, list[str]]]:
    from consumerd.handlers.dead_letter_files import letter_files  # noqa: PLC0415
    from consumerd.handlers.dead_letter_progress import letters_with_receivers  # noqa: PLC0415

    return letters_with_receivers(letter_files(path), progress or _progress_of(path))


def _complain(unreadable: list[LetterLine]) -> None:
    if unreadable:
        first = unreadable[0]
        raise CorruptDataError(
            f"lines that are not dead letters: {len(unreadable)} (first: {first.path}, byte {first.start}: "
            f"{first.problem})."
        )


def _shown(letter: StoredLetter, receivers: list[str]) -> str:
    from consumerd.base.partition import NO_BROKER  # noqa: PLC0415
    from consumerd.handlers.builtin.records import payload_field  # noqa: PLC0415

    message = letter.message
    known: dict[str, Any] = {**message.identity._asdict()}
    if message.broker == NO_BROKER:
        known["broker"] = None
    known |= json.loads(f"{{{payload_field(message.payload)}}}")
    if message.key is not None:
        known |= json.loads(f"{{{payload_field(message.key, 'key')}}}")
    known |= {
        "error_type": letter.error_type,
        "error": letter.error,
        "attempts": letter.attempts,
        "failed_at": iso_time(letter.failed_at),
        "replayed_to": receivers,
    }
    return json.dumps(known)
