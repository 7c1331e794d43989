"""`consumerd group delete`: remove a dead group from ZooKeeper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.backups import backup_option, backup_path, write_backup
from consumerd.cli.session import group_option, json_option, place_options

if TYPE_CHECKING:
    from pathlib import Path

    from consumerd.admin.removal import StoredNode
    from consumerd.cli.session import Place
    from consumerd.ports import ZooKeeper

EXAMPLES = """\b
Examples:
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job
  consumerd group delete --zookeeper 127.0.0.1:2181/kafka --group old-job --execute --backup old-job.json
  consumerd offsets import old-job.json --zookeeper 127.0.0.1:2181/kafka --execute    # and back again
"""


class Outcome(NamedTuple):
    """What is, or was, deleted."""

    tree: list[StoredNode]
    backup: Path | None


@click.command("delete", epilog=EXAMPLES)
@place_options()
@group_option
@click.option("--execute", is_flag=True, help="Do it. Without it, only show what would be deleted.")
@backup_option
@json_option("One object: nodes, backup, executed.")
def command(place: Place, group: str | None, execute: bool, backup: Path | None, as_json: bool) -> None:
    """Delete a whole dead group: its offsets and all that is left of members.

    Refused while the group has members or owners. Before anything is deleted, a file with all offsets (which `offsets
    import` brings back) and the data of every other node is written and synced. In a pipe: one path per line.
    """
    from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

    name = place.group_or(group)
    outcome = place.run(lambda session: _delete(session, name, execute=execute, backup=backup))
    if as_json:
        document = {
            "group": name,
            "nodes": [node.path for node in outcome.tree],
            "executed": execute,
            "backup": None if outcome.backup is None else str(outcome.backup),
        }
        click.echo(json.dumps(document, indent=2))
    else:
        verb = "deleted" if execute else "would be deleted"
        rows = ([node.path] for node in outcome.tree)
        show_rows(["node"], rows, title=f"group {name}: {counted(len(outcome.tree), 'node')} {verb}")
    if not execute:
        click.echo("consumerd: dry run, nothing was deleted: add --execute to do it", err=True)


async def _delete(zk: ZooKeeper, group: str, *, execute: bool, backup: Path | None) -> Outcome:
    from consumerd.admin import as_backup, delete_tree, read_tree, require_dead, survey_group  # noqa: PLC0415

    tree = await read_tree(zk, group)
    require_dead(group, tree)
    if not execute:
        return Outcome(tree, None)
    view = (await survey_group(zk, group, brokers=False)).view
    path = backup or backup_path([group])
    await write_backup(path, {group: view.offsets}, nodes=as_backup(tree))
    await delete_tree(zk, group, tree)
    return Outcome(tree, path)
