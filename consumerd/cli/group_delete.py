"""`consumerd group delete`: remove a dead group from ZooKeeper, or from its brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumerd.cli.backups import backup_option, backup_path, say_dry_run, write_backup
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.session import ClusterAddress, cluster_options, group_option
from consumerd.cli.tables import counted, show_rows

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.operate.admin.removal import GroupRemains

EXAMPLES = """\b
Examples:
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job --execute --backup old-job.json
  consumerd offsets import old-job.json --zookeeper 127.0.0.1:2181/kafka --execute    # restores the offsets
  consumerd group delete --bootstrap-server kafka1:9092 --group old-job --execute
"""


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
    name = cluster.group_or(group)

    remains, backup = with_groups(
        cluster, lambda source: _delete(source, name, execute=execute, backup=backup), groups=[name]
    )
    what = "offset" if cluster.bootstrap else "node"
    if as_json:
        document = {
            "group": name,
            f"{what}s": remains.names,
            "executed": execute,
            "backup": None if backup is None else str(backup),
        }
        click.echo(json.dumps(document, indent=2))
    else:
        verb = "deleted" if execute else "would be deleted"
        rows = ([path] for path in remains.names)
        show_rows([what], rows, title=f"group {name}: {counted(len(remains.names), what)} {verb}")
    if not execute:
        say_dry_run("deleted")


async def _delete(
    source: GroupSource, group: str, *, execute: bool, backup: Path | None
) -> tuple[GroupRemains, Path | None]:
    """What is, or was, deleted, and the file in which it was written before."""
    from consumerd.operate.admin.removal import as_backup  # noqa: PLC0415

    remains = await source.remains(group)
    if not execute:
        return remains, None
    path = backup or backup_path([group])
    more = {"nodes": as_backup(remains.nodes)} if remains.nodes else {}
    await write_backup(path, {group: remains.offsets}, **more)
    await source.delete(remains)
    return remains, path
