"""`consumerd group`: look at a consumer group, compute who should own what, find what is wrong, and mend it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from consumerd.cli.group_delete import command as delete
from consumerd.cli.group_doctor import command as doctor
from consumerd.cli.group_lag import command as lag
from consumerd.cli.session import group_option, json_option, place_options
from consumerd.cli.tables import show_rows

if TYPE_CHECKING:
    from consumerd.cli.session import Place

EXAMPLES = """\b
Examples:
  consumerd group list --zookeeper 127.0.0.1:2181/kafka
  consumerd group describe --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group describe --zookeeper zk1:2181 --group events --json | jq .unowned
"""

VERIFY_EXAMPLES = """\b
Examples:
  consumerd group verify --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group verify -c /etc/consumerd/events.toml --wait 10 && echo balanced
"""

PLAN_EXAMPLES = """\b
Examples:
  consumerd group plan --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group plan --zookeeper 127.0.0.1:2181/kafka --group events --explain
  consumerd group plan --json what-if.json
  echo '{"topics": {"events": {"0": 4}}, "ids": {"g_a": "{ \\"events\\": 1 }", "g_b": "*2*e.*"}}' |
    consumerd group plan -
"""


@click.group("group", epilog=EXAMPLES)
def command() -> None:
    """See a consumer group, plan its assignment, find what is wrong with it and mend it."""


@command.command("list", epilog=EXAMPLES)
@place_options()
@json_option('One object: {"groups": [group, ...]}.')
def list_groups(place: Place, as_json: bool) -> None:
    """List the groups that ever had a member."""
    from consumerd.cluster import ClusterView  # noqa: PLC0415 - heavy imports only for the command that runs

    groups = place.run(lambda session: ClusterView(session).read_groups())
    if as_json:
        click.echo(json.dumps({"groups": groups}, indent=2))
    else:
        show_rows(["group"], ([group] for group in groups))


@command.command("describe", epilog=EXAMPLES)
@place_options()
@group_option
@json_option("One object with members, partitions, unowned and problems.")
def describe(place: Place, group: str | None, as_json: bool) -> None:
    """Show members with their subscriptions, and partitions with their owners and committed offsets (bytes).

    In a pipe every line begins with what it is: member, partition or problem. A partition is shown with owner, offset
    and a remark: `unowned`, `owner is no member`, `nobody subscribes`, or `planned: ...` where the members' own rule
    gives it to another stream.
    """
    from consumerd.cli.group_report import read_group, show_report  # noqa: PLC0415

    name = place.group_or(group)
    view, topics = place.run(lambda session: read_group(session, name))
    show_report(view, topics, as_json=as_json)


@command.command("verify", epilog=VERIFY_EXAMPLES)
@place_options()
@group_option
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Look again until all is well, for so long.",
)
@json_option('One object: {"group": ..., "differences": [{"subject": ..., "says": ...}]}.')
def verify(place: Place, group: str | None, wait: float, as_json: bool) -> None:
    """Check that every partition has exactly one owner, a live member, and the one that the members' rule names.

    Each difference is shown with a partition or member and what is wrong; the exit code is 11 if there is any. A
    rebalance that is under way shows too: give it time with --wait.
    """
    from consumerd.cli.group_report import show_verification, verify_group  # noqa: PLC0415

    name = place.group_or(group)
    differences = place.run(lambda session: verify_group(session, name, wait))
    show_verification(name, differences, as_json=as_json)


@command.command("plan", epilog=PLAN_EXAMPLES)
@place_options(required=False)
@click.option("--group", help="With --zookeeper: the group whose members and topics to plan for.")
@click.option("--explain", is_flag=True, help="Show how each topic is dealt: sorted partitions and streams, q and r.")
@json_option('One object: {"topic/broker-partition": "consumerid-stream"}.')
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def plan(place: Place | None, group: str | None, explain: bool, as_json: bool, file: str | None) -> None:
    """Compute who should own which partition, as every member does for itself.

    FILE (- is standard input) holds {"topics": {topic: {broker: partitions}}, "ids": {consumer id: text of its node}};
    without it, --zookeeper and --group name a living group. Nothing is changed. In a pipe: topic/broker-partition, tab,
    consumerid-stream. Partitions of topics to which nobody subscribes are left out.

    The rule: per topic, partitions and streams are sorted as text (0-10 comes before 0-2); of P partitions and T
    streams, each stream gets P div T = q consecutive ones, and the first P mod T = r streams one more.
    """
    from consumerd.cli.group_report import read_plan  # noqa: PLC0415
    from consumerd.cli.plan_explain import show_deals  # noqa: PLC0415
    from consumerd.cli.plan_input import read_plan_input  # noqa: PLC0415
    from consumerd.group import assign  # noqa: PLC0415
    from consumerd.registry import format_owner  # noqa: PLC0415

    name = group or (place.group if place is not None else None)
    if file is not None and place is None and name is None:
        topics, members = read_plan_input(file)
    elif file is None and place is not None and name is not None:
        topics, members = place.run(lambda session: read_plan(session, name))
    else:
        raise click.UsageError("give either a FILE, or --zookeeper and --group")
    if explain:
        show_deals(topics, members, as_json=as_json)
        return
    owners = {str(partition): format_owner(*owner) for partition, owner in assign(topics, members).items()}
    if as_json:
        click.echo(json.dumps(owners, indent=2))
    else:
        show_rows(["partition", "owner"], owners.items())


for _command in (lag, doctor, delete):
    command.add_command(_command)
