"""`consumerd group`: show a consumer group, compute its assignment, find what is wrong, and fix it."""

from __future__ import annotations

import json
from functools import partial

import click

from consumerd.cli.clusters import require_zookeeper, with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.group_delete import command as delete
from consumerd.cli.group_doctor import command as doctor
from consumerd.cli.group_exporter import command as exporter
from consumerd.cli.group_lag import command as lag
from consumerd.cli.numbers import ExistingFile, seconds_option
from consumerd.cli.session import ClusterAddress, cluster_options, group_option
from consumerd.cli.tables import show_rows

LEADER_DEALS = (
    "where a broker coordinates, the group's leader assigns partitions by a rule of its own; see "
    "`consumerd group describe`"
)

EXAMPLES = """\b
Examples:
  consumerd group list --zookeeper 127.0.0.1:2181/kafka
  consumerd group describe --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group describe --zookeeper zk1:2181 --group events --json | jq .unowned
  consumerd group describe --bootstrap-server kafka1:9092 --group events
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
    """Show a consumer group, plan its assignment, find and fix what is wrong with it."""


@command.command("list", epilog=EXAMPLES)
@cluster_options()
@json_option('One JSON object: {"groups": [group, ...]}.')
def list_groups(cluster: ClusterAddress, as_json: bool) -> None:
    """List the groups in ZooKeeper, or those that brokers coordinate or keep offsets of."""
    groups = with_groups(cluster, lambda source: source.names())
    if as_json:
        click.echo(json.dumps({"groups": groups}, indent=2))
    else:
        show_rows(["group"], ([group] for group in groups))


@command.command("describe", epilog=EXAMPLES)
@cluster_options()
@group_option
@json_option("One JSON object with members, partitions, unowned and problems.")
def describe(cluster: ClusterAddress, group: str | None, as_json: bool) -> None:
    """Show members with their subscriptions, and partitions with their owners and committed offsets.

    Offsets are positions in bytes in Kafka 0.7, and number messages since 0.8. In a pipe the first field
    of a line is member, partition or problem. A partition is shown with owner, offset and a remark: `unowned`, `owner
    is not a live member`, `no member subscribes`, or `planned: ...` where the assignment rule names another stream.
    """
    from consumerd.cli.group_report import show_report  # noqa: PLC0415

    name = cluster.group_or(group)
    snapshot = with_groups(cluster, lambda source: source.snapshot(name, brokers=False), groups=[name])
    show_report(snapshot, as_json=as_json)


@command.command("verify", epilog=VERIFY_EXAMPLES)
@cluster_options()
@group_option
@seconds_option("--wait", 0.0, "Repeat the check for up to this long, until the group is balanced.", from_zero=True)
@json_option('One JSON object: {"group": ..., "differences": [{"subject": ..., "says": ...}]}.')
def verify(cluster: ClusterAddress, group: str | None, wait: float, as_json: bool) -> None:
    """Check that every partition has exactly one owner, a live member, and the one that the members' rule names.

    Each difference is shown with a partition or member and what is wrong; the exit code is 11 if there is any. A
    rebalance in progress shows too: allow time for it with --wait. Groups of Kafka 0.8 to 1.1 do not record their rule:
    they are balanced if the owners are those of range or of roundrobin.
    """
    from consumerd.cli.group_report import show_verification  # noqa: PLC0415
    from consumerd.operate.admin.verification import verify_group  # noqa: PLC0415

    require_zookeeper(cluster, "group verify", LEADER_DEALS)
    name = cluster.group_or(group)

    differences = with_groups(
        cluster, lambda source: verify_group(partial(source.snapshot, name, brokers=False), wait), groups=[name]
    )
    show_verification(name, differences, as_json=as_json)


@command.command("plan", epilog=PLAN_EXAMPLES)
@cluster_options(required=False)
@click.option("--group", help="With --zookeeper: consumer group whose members and topics to plan for.")
@click.option("--explain", is_flag=True, help="Show how each topic is divided: sorted partitions and streams, q and r.")
@json_option('One JSON object: {"topic/broker-partition": "consumerid-stream"}.')
@click.argument("file", required=False, type=ExistingFile(allow_dash=True))
def plan(cluster: ClusterAddress | None, group: str | None, explain: bool, as_json: bool, file: str | None) -> None:
    """Compute who should own which partition, as every member does for itself.

    FILE (- is standard input) holds {"topics": {topic: {broker: partitions}}, "ids": {consumer id: text of its node}};
    without it, --zookeeper and --group name an existing group. Nothing is changed. In a pipe: topic/broker-partition,
    tab, consumerid-stream. Partitions of topics without a subscriber are left out.

    The rule: per topic, partitions and streams are sorted as text (0-10 comes before 0-2); of P partitions and T
    streams, each stream gets P div T = q consecutive ones, and the first P mod T = r streams one more. Groups of Kafka
    0.8 to 1.1 sort partitions as numbers; they are planned for by range, or by roundrobin if the owners agree.
    """
    from consumerd.cli.group_plan import read_plan_input, show_deals  # noqa: PLC0415
    from consumerd.group.assignment import assign  # noqa: PLC0415
    from consumerd.operate.admin.snapshot import V07GroupSnapshot  # noqa: PLC0415
    from consumerd.wire.registry.values import format_owner  # noqa: PLC0415

    name = group or (cluster.group if cluster is not None else None)
    if file is not None and cluster is None and name is None:
        topics, members = read_plan_input(file)
        planned = assign(topics, members)
    elif file is None and cluster is not None and name is not None:
        require_zookeeper(cluster, "group plan", LEADER_DEALS)
        snapshot = with_groups(cluster, lambda source: source.snapshot(name, brokers=False), groups=[name])
        if explain and not isinstance(snapshot, V07GroupSnapshot):
            raise click.UsageError("--explain shows the rule of Kafka 0.7; omit it for groups of 0.8 or later")
        topics = snapshot.subscribed if isinstance(snapshot, V07GroupSnapshot) else {}
        members = snapshot.subscriptions()  # a plan without one of the members would be wrong
        planned = snapshot.plan()
    else:
        raise click.UsageError("give either a FILE, or --zookeeper and --group")
    if explain:
        show_deals(topics, members, as_json=as_json)
        return
    owners = {str(partition): format_owner(*owner) for partition, owner in planned.items()}
    if as_json:
        click.echo(json.dumps(owners, indent=2))
    else:
        show_rows(["partition", "owner"], owners.items())


for _command in (lag, exporter, doctor, delete):
    command.add_command(_command)
