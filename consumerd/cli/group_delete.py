"""`consumerd group delete`: remove a dead group from ZooKeeper, or from its brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.backups import backup_option, backup_path, say_dry_run, write_backup
from consumerd.cli.session import ClusterAddress, cluster_options, group_option, json_option

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource

EXAMPLES = """\b
Examples:
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job --execute --backup old-job.json
  consumerd offsets import old-job.json --zookeeper 127.0.0.1:2181/kafka --execute    # restores the offsets
  consumerd group delete --bootstrap-server kafka1:9092 --group old-job --execute
"""


class Outcome(NamedTuple):
    """The paths of nodes, or the partitions whose offsets, that are or were deleted."""

    paths: list[str]
    backup: Path | None


@click.command("delete", epilog=EXAMPLES)
@cluster_options()
@group_option
@click.option("--execute", is_flag=True, help="Delete the group. Without this option, only show what would be deleted.")
@backup_option
@json_option("One JSON object: nodes, backup, executed.")
def command(cluster: ClusterAddress, group: str | None, execute: bool, backup: Path | None, as_json: bool) -> None:
    """Delete a dead group: its offsets, and all nodes that its members left.

    Refused while the group has members or owners. Before anything is deleted, a file with all offsets (which `offsets
    import` brings back) and the data of every other node is written and synced. In a pipe: one path per line, or
    topic/partition where brokers keep the offsets.
    """
    from consumerd.cli.clusters import with_groups  # noqa: PLC0415
    from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

    name = cluster.group_or(group)

    delete = _delete_from_brokers if cluster.bootstrap else _delete_nodes
    outcome = with_groups(cluster, lambda source: delete(source, name, execute=execute, backup=backup), groups=[name])
    what = "offset" if cluster.bootstrap else "node"
    if as_json:
        document = {
            "group": name,
            f"{what}s": outcome.paths,
            "executed": execute,
            "backup": None if outcome.backup is None else str(outcome.backup),
        }
        click.echo(json.dumps(document, indent=2))
    else:
        verb = "deleted" if execute else "would be deleted"
        rows = ([path] for path in outcome.paths)
        show_rows([what], rows, title=f"group {name}: {counted(len(outcome.paths), what)} {verb}")
    if not execute:
        say_dry_run("deleted")


async def _delete_nodes(source: GroupSource, group: str, *, execute: bool, backup: Path | None) -> Outcome:
    from consumerd.operate.admin.removal import as_backup, delete_tree, read_tree, require_dead  # noqa: PLC0415

    assert source.zk is not None
    tree = await read_tree(source.zk, group)
    paths = [node.path for node in tree]
    require_dead(group, tree)
    if not execute:
        return Outcome(paths, None)
    view = (await source.snapshot(group, brokers=False)).view
    path = backup or backup_path([group])
    await write_backup(path, {group: view.offsets}, nodes=as_backup(tree))
    await delete_tree(source.zk, group, tree)
    return Outcome(paths, path)


async def _delete_from_brokers(source: GroupSource, group: str, *, execute: bool, backup: Path | None) -> Outcome:
    from consumerd.operate.admin.errors import RefusedError  # noqa: PLC0415
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415

    assert isinstance(source, BrokerGroups)
    view = (await source.snapshot(group)).view
    if view.members:
        raise RefusedError(f"group {group!r} has {len(view.members)} members: stop them first")
    offsets = [str(partition) for partition in sorted(view.offsets)]
    if not execute:
        return Outcome(offsets, None)
    path = backup or backup_path([group])
    await write_backup(path, {group: view.offsets})
    await source.delete(group)
    return Outcome(offsets, path)
