"""A group at production's size: seconds, messages lost and repeated, requests, as members join, leave and stop.

ZooKeeper, the broker and every member are processes of their own. Each member has a line of its own to ZooKeeper, which
adds a round trip's time and counts requests. Handlers write down each message that they are handed; what was lost and
what was repeated is counted from that and from what the broker confirmed. With `latest`, messages count that were sent
after the first member had begun to read everything.

    python -m benchmarks group --scenario join-leave --partitions 600 --zookeeper-ms 1 --initial latest
    python -m benchmarks group --scenario join-leave --first jafka --partitions 600 --zookeeper-ms 5 --initial latest
    python -m benchmarks group --scenario stop --partitions 1000
    python -m benchmarks group --scenario start --members 25 --partitions 100
    python -m benchmarks group --scenario model --members 200 --partitions 2000
    python -m benchmarks group --sweep model
    python -m benchmarks group --sweep events --sizes 2x10 2x1000 20x100

    join-leave  the first member owns all, the second joins, both share, the second leaves, the first owns all again
    stop        one member that owns all is stopped by SIGTERM while messages come in
    idle        one member that owns all, and nothing comes in: processor time and requests
    start       `--members` daemons are started at once
    more        `--members` daemons, and a broker with one more partition of the topic comes
    events      all but one of `--members` daemons are there: the last one joins, leaves, one partition more, all stop
    model       `--members` members in virtual time, with everything in memory: one joins and leaves, at the end and at
                the front of the group's order, one partition more, all stop

`--sweep` runs `model` or `events` at many sizes, and makes one table: of each size a line on a terminal, or an object
of JSON. In a line stand seconds and requests of each event.

Nothing may be lost, repeated or left uncommitted. What a peer of the JVM's kind repeats because it reads offsets before
it claims is printed by itself. Seconds depend on what else the machine does: its load is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from benchmarks.group_stage.figures import Figures
from benchmarks.group_stage.members import MEMBERS
from benchmarks.group_stage.model import model
from benchmarks.group_stage.scenarios import SCENARIOS, check_line
from benchmarks.group_stage.stage import Stage, UnsettledError
from benchmarks.group_stage.sweep import EVENTS, Line, Size, heading, sizes
from benchmarks.race import Measurement
from tests.simulation.kernel import SimulationError

#: What runs without `--scenario`.
USUAL = ("join-leave", "stop")


async def measure(scenario: str, options: argparse.Namespace, directory: Path, figures: Figures) -> None:
    """Run one scenario on a stage of its own."""
    async with Stage(directory, options.partitions, options.zookeeper_ms, options.rate) as stage:
        await check_line(stage, figures)
        await SCENARIOS[scenario](stage, options, figures)


def case(scenario: str, options: argparse.Namespace) -> str:
    """What is recorded of a run beside its figures."""
    members = {
        "join-leave": f"{options.first} + {options.second}",
        "stop": options.first,
        "idle": "ours",
    }.get(scenario, f"{options.members} members")
    return f"{scenario}, {members}, {options.partitions} partitions, {options.initial}, {options.zookeeper_ms} ms"


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks group", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--scenario", choices=[*SCENARIOS, "model"], action="append", help=f"default: {' and '.join(USUAL)}"
    )
    made.add_argument("--partitions", type=int, default=200)
    made.add_argument("--zookeeper-ms", type=int, default=0, help="added to each round trip to ZooKeeper")
    made.add_argument("--initial", choices=["earliest", "latest"], default="earliest")
    made.add_argument("--first", choices=[*MEMBERS], default="ours", help="what the first member is")
    made.add_argument("--second", choices=[*MEMBERS], default="ours", help="what the second member is")
    made.add_argument("--members", type=int, default=5, help="of the scenarios start, more, events and model")
    made.add_argument("--sweep", choices=[*EVENTS], help="make a table of many sizes")
    made.add_argument("--sizes", type=Size.parse, nargs="+", help="of a sweep: members x partitions, such as 20x1000")
    made.add_argument("--rate", type=float, default=1.0, help="messages a second to each partition")
    made.add_argument("--hold", type=float, default=3.0, help="seconds between a settled group and the next event")
    made.add_argument("--seconds", type=float, default=30.0, help="how long to look at an idle member")
    made.add_argument("--kinds", action="store_true", help="tell requests by their kind, too")
    made.add_argument("--keep", type=Path, help="a new folder for logs and records; by default they are deleted")
    made.add_argument("--json", action="store_true", help="one JSON object per line, as always without a terminal")
    return made


def run(scenario: str, options: argparse.Namespace, figures: Figures) -> None:
    """One scenario, in virtual time or with logs in a folder."""
    if scenario == "model":
        model(options, figures)
    elif options.keep is not None:
        directory = options.keep.absolute() / scenario
        directory.mkdir(parents=True)
        asyncio.run(measure(scenario, options, directory, figures))
    else:
        with tempfile.TemporaryDirectory(prefix="consumerd-group-") as name:
            asyncio.run(measure(scenario, options, Path(name), figures))


def sweep(options: argparse.Namespace, *, as_json: bool) -> list[str]:
    """Run one scenario at all sizes, and print the table. What was broken."""
    broken: list[str] = []
    if not as_json:
        print(heading(options.sweep), flush=True)
    for size in options.sizes or sizes(options.sweep):
        options.members, options.partitions = size
        line = Line(options.sweep, size)
        figures = Figures(case(options.sweep, options), line.add)
        try:
            run(options.sweep, options, figures)
        except (SimulationError, UnsettledError) as error:
            figures.fail(str(error).splitlines()[0])
        line.broken = figures.broken
        print(json.dumps(line.as_json()) if as_json else line.text(), flush=True)
        broken += figures.broken
    return broken


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 1 if a promise is broken."""
    options = parser().parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    as_json = options.json or not sys.stdout.isatty()

    def echo(row: Measurement) -> None:
        text = json.dumps(row.as_json()) if as_json else f"  {row.subject:<44}{row.value:>12,.2f} {row.unit}"
        print(text, flush=True)

    if options.sweep is not None:
        broken = sweep(options, as_json=as_json)
    else:
        broken = []
        for scenario in options.scenario or USUAL:
            figures = Figures(case(scenario, options), echo, details=options.kinds)
            if not as_json:
                print(f"group: {figures.case}", flush=True)
            run(scenario, options, figures)
            broken += figures.broken
    for sentence in broken:
        print(f"BROKEN: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
