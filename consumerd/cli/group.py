"""`consumerd group`: look at a consumer group, and compute who should own what."""

from __future__ import annotations

import json

import click

from consumerd.cli.session import with_session, zookeeper_options
from consumerd.cli.tables import show_rows

EXAMPLES = """\b
Examples:
  consumerd group list --zookeeper 127.0.0.1:2181/kafka
  consumerd group describe --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group describe --zookeeper zk1:2181 --group events --json | jq .unowned
"""

PLAN_EXAMPLES = """\b
Examples:
  consumerd group plan --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group plan --json what-if.json
  echo '{"topics": {"events": {"0": 4}}, "ids": {"g_a": "{ \\"events\\": 1 }", "g_b": "*2*e.*"}}' |
    consumerd group plan -
"""


@click.group("group", epilog=EXAMPLES)
def command() -> None:
    """See a consumer group and plan its assignment."""


@command.command("list", epilog=EXAMPLES)
@zookeeper_options()
@click.option("--json", "as_json", is_flag=True, help='One object: {"groups": [group, ...]}.')
def list_groups(zookeeper: str, timeout: float, as_json: bool) -> None:
    """List the groups that ever had a member."""
    from consumerd.cluster import ClusterView  # noqa: PLC0415 - heavy imports only for the command that runs

    groups = with_session(zookeeper, timeout, lambda session: ClusterView(session).read_groups())
    if as_json:
        click.echo(json.dumps({"groups": groups}, indent=2))
    else:
        show_rows(["group"], ([group] for group in groups))


@command.command("describe", epilog=EXAMPLES)
@zookeeper_options()
@click.option("--group", required=True, help="The group to look at.")
@click.option("--json", "as_json", is_flag=True, help="One object with members, partitions, unowned and problems.")
def describe(zookeeper: str, timeout: float, group: str, as_json: bool) -> None:
    """Show members with their subscriptions, and partitions with their owners and committed offsets (bytes).

    In a pipe every line begins with what it is: member, partition or problem. A partition is shown with owner, offset
    and a remark: `unowned`, `owner is no member`, `nobody subscribes`, or `planned: ...` where the members' own rule
    gives it to another stream.
    """
    from consumerd.cli.group_report import read_group, show_report  # noqa: PLC0415

    view, topics = with_session(zookeeper, timeout, lambda session: read_group(session, group))
    show_report(view, topics, as_json=as_json)


@command.command("plan", epilog=PLAN_EXAMPLES)
@zookeeper_options(required=False)
@click.option("--group", help="With --zookeeper: the group whose members and topics to plan for.")
@click.option("--json", "as_json", is_flag=True, help='One object: {"topic/broker-partition": "consumerid-stream"}.')
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def plan(zookeeper: str | None, timeout: float, group: str | None, as_json: bool, file: str | None) -> None:
    """Compute who should own which partition, as every member does for itself.

    FILE (- is standard input) holds {"topics": {topic: {broker: partitions}}, "ids": {consumer id: text of its node}};
    without it, --zookeeper and --group name a living group. Nothing is changed. In a pipe: topic/broker-partition, tab,
    consumerid-stream. Partitions of topics to which nobody subscribes are left out.
    """
    from consumerd.cli.group_report import read_plan  # noqa: PLC0415
    from consumerd.cli.plan_input import read_plan_input  # noqa: PLC0415
    from consumerd.group import assign  # noqa: PLC0415
    from consumerd.registry import format_owner  # noqa: PLC0415

    if file is not None and zookeeper is None and group is None:
        topics, members = read_plan_input(file)
    elif file is None and zookeeper is not None and group is not None:
        topics, members = with_session(zookeeper, timeout, lambda session: read_plan(session, group))
    else:
        raise click.UsageError("give either a FILE, or --zookeeper and --group")
    owners = {str(partition): format_owner(*owner) for partition, owner in assign(topics, members).items()}
    if as_json:
        click.echo(json.dumps(owners, indent=2))
    else:
        show_rows(["partition", "owner"], owners.items())
