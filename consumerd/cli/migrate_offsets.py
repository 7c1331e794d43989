"""`consumerd migrate offsets`: move a group's committed offsets to another store or cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ConfigError
from consumerd.cli.clusters import open_groups
from consumerd.cli.config_option import Decorated, file_option, servers_option, together
from consumerd.cli.mirror_v08 import rename_option, renaming
from consumerd.cli.numbers import zookeeper_option
from consumerd.cli.offsets_change import How, change_command, show_changes
from consumerd.cli.session import DEFAULTS_OF_CONFIG, ClusterAddress, cluster_address, named, run_tool, timeout_option
from consumerd.cli.tables import printable

if TYPE_CHECKING:
    from consumerd.operate.admin.offset_plans import OffsetPlan
    from consumerd.operate.migrate.offsets_plan import MoveRequest

EXAMPLES = """\b
Examples:
  consumerd migrate offsets --group events --from-zookeeper zk1:2181/kafka --to-bootstrap-server kafka1:9092
  consumerd migrate offsets --group events --from-zookeeper zk1:2181/kafka --to-bootstrap-server kafka1:9092 --execute
  consumerd migrate offsets --group events --to-group events-2 --from-zookeeper old:2181 \\
      --to-bootstrap-server new:9092 --rename clicks=web.clicks --source dc1
  consumerd migrate offsets --group events --from-bootstrap-server kafka1:9092 --to-zookeeper zk1:2181/kafka

Only shows what would change, unless --execute is given. Within one cluster of Kafka 0.8 or later offsets are the same
numbers in ZooKeeper and in Kafka. From 0.7, and with --translate from any other cluster, they are translated by the
headers that `consumerd mirror` wrote into forwarded messages: the target's topics are read up to the first message that
the group has not handled.

Refused, with exit code 13, while either side has live members, where an offset would move backwards on the target or be
out of range, and where messages in between were not forwarded; --force overrides all of that, but a broker never takes
offsets for a group with members. In a pipe: group, topic/partition, before, after,
lag, from, remark.
"""


def _side_options(side: str, what: str) -> Callable[[Decorated], Decorated]:
    brokers = f"--{side}-bootstrap-server", f"{side}_servers"
    return together(
        zookeeper_option(f"--{side}-zookeeper", f"{what}: offsets in ZooKeeper."),
        servers_option(*brokers, about=f"{what}: offsets in Kafka (0.8.2 and later)."),
        file_option(f"--{side}-config", about=DEFAULTS_OF_CONFIG),
    )


@click.command("offsets", epilog=EXAMPLES)
@_side_options("from", "Source")
@_side_options("to", "Target")
@click.option("--group", help="Name of the consumer group. [default: the group of --from-config]")
@click.option("--to-group", help="Name of the group on the target. [default: the group of --to-config, else the same]")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@rename_option()
@click.option(
    "--translate/--same-numbers",
    default=None,
    help="Translate offsets by the headers of forwarded messages, or keep the numbers. [default: depends on the "
    "clusters]",
)
@click.option("--source", metavar="NAME", help="With --translate: name of the source in the headers.")
@timeout_option("ZooKeeper, or for the first broker")
@change_command("moves, problems, notes, executed, backup", "")
def command(
    from_zookeeper: str | None,
    from_servers: tuple[str, ...],
    from_config: Path | None,
    to_zookeeper: str | None,
    to_servers: tuple[str, ...],
    to_config: Path | None,
    group: str | None,
    to_group: str | None,
    topics: tuple[str, ...],
    renames: tuple[str, ...],
    translate: bool | None,
    source: str | None,
    timeout: float,
    how: How,
) -> None:
    """Move a group's committed offsets between ZooKeeper and Kafka, or to another cluster."""
    from consumerd.operate.migrate.offsets_plan import MoveRequest  # noqa: PLC0415 - heavy imports only for the command that runs

    origin = _side("from", from_zookeeper, from_servers, from_config, timeout)
    target = _side("to", to_zookeeper, to_servers, to_config, timeout)
    name = origin.group_or(group)
    renamed = target.group or name if to_group is None else named(to_group, "--to-group")
    request = MoveRequest(name, renamed, topics, dict(map(renaming, renames)), translate, source)
    plan, backup = run_tool(_move(origin, target, request, how))
    executed = how.execute and not plan.refused(force=how.force)
    show_plan(plan, as_json=how.as_json, executed=executed, backup=backup)
    how.conclude(plan)


def _side(side: str, *given: Any) -> ClusterAddress:
    return cluster_address(*given, prefix=f"--{side}-", config_flag=f"--{side}-config")


async def _move(
    origin: ClusterAddress, target: ClusterAddress, request: MoveRequest, how: How
) -> tuple[OffsetPlan, Path | None]:
    """Plan the move, and apply it if that is requested and allowed."""
    from consumerd.operate.admin.v08.group_source import V08GroupSource  # noqa: PLC0415
    from consumerd.operate.migrate.offsets_plan import TranslationChoiceError, plan_move  # noqa: PLC0415

    async with (
        open_groups(origin, [request.group], how.broker_timeout) as old,
        open_groups(target, [request.to_group], how.broker_timeout) as new,
    ):
        if not isinstance(new, V08GroupSource):
            raise ConfigError(
                f"no broker of Kafka 0.8 or later is registered in ZooKeeper at {target.connect}: offsets cannot be "
                "translated to Kafka 0.7, where they are byte positions"
            )
        try:
            plan = await plan_move(old, new, request)
        except TranslationChoiceError as error:
            raise click.UsageError(str(error)) from error
        return plan, await how.write(new, plan)


def show_plan(plan: OffsetPlan, *, as_json: bool, executed: bool, backup: Path | None) -> None:
    """Print what changes, or would change, and the sentences of the plan on standard error."""
    rows = [
        (move.change, {">lag": move.lag, "from": {str(source): offset for source, offset in move.sources}})
        for move in plan.moves
    ]
    more = {"executed": executed, "problems": plan.problems, "notes": plan.notes}
    show_changes(rows, more, backup, "moves" if as_json else None)
    for sentence in () if as_json else (*plan.problems, *plan.notes):
        click.echo(f"consumerd: {printable(sentence)}", err=True)
