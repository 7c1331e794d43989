"""How old a message is when its handler has it: ours beside other clients, in turns; and `send` that waits for each.

    python -m benchmarks latency                                 all rows: some 25 minutes
    python -m benchmarks latency --rows 200/8 --rounds 1         one row, in less than a minute
    python -m benchmarks latency --rows 5/8,send,0.7:200/4 --tree ../other/consumerd
    python -m benchmarks latency --rows 5/8,200/8 --together --rounds 10

A row is `[0.7:]RATE/PARTITIONS`, messages of 100 B a second over so many partitions of one topic, or `send`.

Each consumer is the only member of its group, in a process of its own, with default settings: `consumerd run` with a
handler of single messages, aiokafka's iterator, confluent-kafka's `poll`, and for 0.7 Jafka's consumer (on the JVM).
The load comes from this process, the same for all, at random times (Poisson; above 500 messages a second several
together), with acks of the leader. A message carries when its request was made, by the machine's monotonic clock, and
the consumer looks at the same clock. So a figure is the whole way: producer, broker, fetching, handing over.

With `--together` they are all there at the same time, each with a topic of its own, and each message is for one of them
at random: what changes on the machine from one second to the next is the same for all, and ratios that vary by a tenth
from round to round in turns do so by a thirtieth. The rate is that of all messages.

`send` is one message after the other, each confirmed before the next: `consumerd.open_producer`, `send_and_wait`,
`produce` and `flush`; with defaults (acks of the leader for aiokafka, of all replicas for the others), and with acks of
the leader for all. A first turn is not counted: the broker is faster with each thousand of its first requests. It has
the heap of a real one, where collections are rare: with Java's small first one, each stopped it for 8 ms.

Quantiles are of one round's messages, of which there are `--seconds` times the rate and at least 50; figures are
medians of the rounds, in milliseconds: less is better. Ratios are the other's milliseconds by ours: above 1, ours is
sooner.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.kafka_clients import quiet
from benchmarks.latency_clients import QUANTILES
from benchmarks.race import OURS, Measurement, alternating, compared, show_if_possible
from benchmarks.waiting import (
    JAFKA,
    V07,
    V08,
    Member,
    Stage,
    add_options,
    jafka_stage,
    kafka_stage,
    run,
    subjects,
)

NAME = "latency"
UNIT = "ms"
RATES, PARTITIONS = (5, 200, 20_000), (1, 8, 1000)
SEND = "send"
#: What rows tell of a distribution.
TOLD = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: Messages of a round of `send`, by second of `--seconds`: so many that the slowest hundredth are not two or three.
SENT = 500
#: Messages of each subject that do not count: a broker needs thousands of requests of a kind until their code is
#: compiled, and idempotent ones, ours alone, are a kind of their own. Before that one in a hundred takes milliseconds.
WARMING = 5_000
#: The cases of `send`, each with the acks that all have.
SENDS: dict[str, tuple[str, ...]] = {"send and wait": (), "send and wait, acks 1": ("1",)}

#: Rounds of each subject, each with its quantiles.
Figures: TypeAlias = dict[str, list[list[float]]]


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One case: messages a second over partitions, on brokers of a protocol."""

    protocol: str
    partitions: int
    rate: int

    @property
    def case(self) -> str:
        """Its name."""
        return f"{self.protocol}, {self.rate}/s over {self.partitions} partition{'s' * (self.partitions > 1)}"


#: All, in the order in which they are printed.
ROWS = tuple(Row(protocol, partitions, rate) for protocol in (V08, V07) for partitions in PARTITIONS for rate in RATES)
_ROW = re.compile(r"(0\.7:)?([1-9]\d*)/([1-9]\d*)")


def parse_row(text: str) -> Row | None:
    """A row by its short name; None for `send`. Raises ArgumentTypeError."""
    if text == SEND:
        return None
    match = _ROW.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {SEND} nor [0.7:]RATE/PARTITIONS, such as 0.7:200/4")
    return Row(V07 if match[1] else V08, int(match[3]), int(match[2]))


def rows_of(case: str, figures: Figures) -> list[Measurement]:
    """What is printed of a case: TOLD for each subject, ours beside the others."""
    ours = OURS if OURS in figures else next(iter(figures))
    found = []
    for name, part in TOLD.items():
        at = QUANTILES.index(part)
        values = {subject: [each[at] for each in rounds] for subject, rounds in figures.items()}
        found += compared(NAME, f"{case}, {name}", UNIT, values, ours=ours, less=True)
    told = next(iter(TOLD))
    middles = {subject: list(map(statistics.median, zip(*rounds, strict=True))) for subject, rounds in figures.items()}
    middles[OURS] = middles[ours]
    return [replace(row, quantiles=middles[row.subject]) if row.case.endswith(told) else row for row in found]


async def consuming(stage: Stage, rows: Sequence[Row], options: argparse.Namespace) -> list[Measurement]:
    """All rates of one number of partitions: each subject runs through them in each of its turns."""
    partitions = rows[0].partitions
    topic = await stage.topic(partitions)
    figures: dict[Row, Figures] = defaultdict(lambda: defaultdict(list))

    async def found(name: str, python: str | None) -> dict[Row, list[float]]:
        try:
            return await turn(stage, name, python, topic, rows, options.seconds)
        except SystemExit as error:
            print(f"{name} takes its turn again: {error}", file=sys.stderr)
            return await turn(stage, name, python, topic, rows, options.seconds)

    every = subjects(options, stage.protocol)
    await found(*next(iter(every.items())))  # not counted: it warms up the broker for all
    for name, python in alternating(every.items(), options.rounds):
        for row, each in (await found(name, python)).items():
            figures[row][name].append(each)
    return told([(row.case, figures[row]) for row in rows], options)


async def turn(
    stage: Stage, name: str, python: str | None, topic: str, rows: Sequence[Row], seconds: float
) -> dict[Row, list[float]]:
    """A subject's quantiles of each row, by one process. Raises SystemExit."""
    async with stage.member(name, python, topic) as member:
        await member.ready(rows[0].partitions)
        found = {}
        for row in rows:
            (found[row],) = await run(stage, [member], row.partitions, row.rate, seconds)
        return {row: each["quantiles"] for row, each in found.items()}


async def together(stage: Stage, rows: Sequence[Row], options: argparse.Namespace) -> list[Measurement]:
    """As `consuming`, with all subjects there at the same time: each message is for one of them."""
    figures: dict[Row, Figures] = defaultdict(lambda: defaultdict(list))
    every = subjects(options, stage.protocol)
    for number in range(1 + options.rounds):
        async with AsyncExitStack() as stack:
            members: dict[str, Member] = {}
            for name, python in every.items():
                topic = await stage.topic(rows[0].partitions)
                members[name] = await stack.enter_async_context(stage.member(name, python, topic))
            for member in members.values():
                await member.ready(rows[0].partitions)
            for row in rows:
                found = await run(stage, [*members.values()], row.partitions, row.rate, options.seconds)
                if not number:
                    continue  # it warmed up the broker
                for name, each in zip(members, found, strict=True):
                    figures[row][name].append(each["quantiles"])
    return told([(f"{row.case}, together", figures[row]) for row in rows], options)


async def sending(stage: Stage, options: argparse.Namespace) -> list[Measurement]:
    """All producers, in turns."""
    topic = await stage.topic(1)
    figures: dict[str, Figures] = defaultdict(lambda: defaultdict(list))
    every = subjects(options, stage.protocol).items()
    for acks in SENDS.values():
        for name, python in every:
            await stage.send(name, python, topic, WARMING, *acks)
    for case, acks in SENDS.items():
        for name, python in alternating(every, options.rounds):
            found = await stage.send(name, python, topic, int(SENT * options.seconds), *acks)
            figures[f"{stage.protocol}, {case}"][name].append(found["quantiles"])
    return told([*figures.items()], options)


def told(cases: Sequence[tuple[str, Figures]], options: argparse.Namespace) -> list[Measurement]:
    """The rows of these cases; a line to the error stream where nothing else tells of progress."""
    found = []
    for case, figures in cases:
        found += rows_of(case, figures)
        if options.json or not sys.stdout.isatty():
            print(f"{case} done", file=sys.stderr, flush=True)
    return found


async def measure(options: argparse.Namespace) -> list[Measurement]:
    """All rows that are asked for, in the order of ROWS."""
    wanted: list[Row | None] = [*ROWS, None] if options.rows is None else options.rows
    consumed = together if options.together else consuming
    by_stage: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in wanted:
        if row is not None:
            by_stage[row.protocol, row.partitions].append(row)
    found: list[Measurement] = []
    if None in wanted or any(protocol == V08 for protocol, _ in by_stage):
        async with kafka_stage() as stage:
            for (protocol, _), rows in by_stage.items():
                if protocol == V08:
                    found += await consumed(stage, rows, options)
            if None in wanted:
                found += await sending(stage, options)
    for (protocol, partitions), rows in by_stage.items():
        if protocol == V07:
            if JAFKA not in subjects(options, V07) and options.subjects is None:
                continue  # what is missing was said
            async with jafka_stage(partitions) as old:
                found += await consumed(old, rows, options)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=description)
    add_options(parser, rounds=3, seconds=5.0)
    parser.add_argument(
        "--rows", type=lambda text: [parse_row(part) for part in text.split(",")], metavar="ROW,...",
        help="[0.7:]RATE/PARTITIONS, or send; by default all",
    )  # fmt: skip
    parser.add_argument(
        "--together", action="store_true", help="all consumers at the same time: each message is for one of them"
    )
    options = parser.parse_args(arguments)
    quiet()
    return show_if_possible(lambda: asyncio.run(measure(options)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
