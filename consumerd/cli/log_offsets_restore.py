"""`consumerd log offsets --to-bootstrap-server`: the groups of an archive continue where it was replayed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ExitCode, NotFoundError
from consumerd.cli.archive_work import progress
from consumerd.cli.backups import backup_option, backup_path, say_dry_run, write_backup
from consumerd.cli.config_option import together
from consumerd.cli.log_restore import check_reached, open_target, refuse_given, scan_archive
from consumerd.cli.migrate_offsets import show_plan
from consumerd.cli.mirror_v08 import rename_option, target_section, to_config_option, to_servers_option, topic_naming
from consumerd.cli.session import run_tool
from consumerd.operate.admin.errors import RefusedError

if TYPE_CHECKING:
    from consumerd.base.settings.servers import KafkaSection
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups
    from consumerd.operate.migrate.archived_topics import ArchivedPartition
    from consumerd.operate.migrate.restored_offsets import RestoredOffsets, SelectedOffsets
    from consumerd.storage.archives.group_offsets import ArchivedOffsets
    from consumerd.storage.archives.sources import SegmentSource

#: The options of a target cluster, as parameters of their names.
target_options = together(
    to_servers_option("Plan these offsets for this cluster, to which the archive was replayed by `log export`"),
    to_config_option,
    rename_option(" As for `log export`."),
    click.option("--execute", is_flag=True, help="Commit the offsets. Without this option, only show them."),
    click.option("--verify", is_flag=True, help="Then read them again, and compare them with the plan; exit code 11."),
    backup_option,
)
#: Parameters that are for a cluster alone.
_PARAMETERS = ("to_config", "renames", "execute", "verify", "backup")


def reached_target(options: Mapping[str, Any]) -> KafkaSection | None:
    """The [kafka] table of the cluster, which has answered; None if none is named.

    Raises UsageError for an option that is for a cluster alone, ConfigError, NoBrokerReachedError.
    """
    if options["to_servers"]:
        section = target_section(options["to_servers"], options["to_config"])
        run_tool(check_reached(section))
        return section
    refuse_given(_PARAMETERS, "a cluster (--to-bootstrap-server)")
    return None


def restore_offsets(
    found: ArchivedOffsets,
    section: KafkaSection,
    sources: Sequence[SegmentSource],
    groups: Sequence[str],
    *,
    layout: str,
    as_json: bool,
    **options: Any,
) -> ExitCode:
    """Plan the offsets of the archive for the cluster, write them if that is requested, and show the result.

    Raises NotFoundError, RefusedError, BrokerError.
    """
    from consumerd.operate.admin.offset_plans import OffsetPlan  # noqa: PLC0415
    from consumerd.operate.migrate.restored_offsets import select_offsets  # noqa: PLC0415
    from consumerd.storage.archives.copies import existing_topics  # noqa: PLC0415
    from consumerd.storage.log.archive_names import ArchiveLayout  # noqa: PLC0415

    selected = select_offsets(found.offsets, groups)
    if not selected.committed:
        raise NotFoundError(
            "the archive has no committed offset to move; see `consumerd log offsets` without a cluster"
        )
    topics = {partition.topic for offsets in selected.committed.values() for partition in offsets}
    existing = existing_topics(sources, ArchiveLayout(layout))
    archived = scan_archive(sources, topics, existing, layout=layout, all_there=False)
    plan, backup, differences = run_tool(_restore(selected, archived, section, options))
    shown = OffsetPlan(plan.moves, [*plan.refusals, *differences], [*selected.notes, *plan.notes])
    show_plan(shown, as_json=as_json, executed=options["execute"], backup=backup)
    if plan.refusals:
        refused = sum(bool(each.refusals) for each in plan.plans.values())
        raise RefusedError(
            f"refused for {refused} of {len(plan.plans)} groups: {plan.refusals[0]}; nothing of these was changed: "
            "repeat the command when the reasons are removed"
        )
    if not options["execute"] and plan.writable:
        say_dry_run()
    return ExitCode.CHECK_FAILED if differences else ExitCode.OK


async def _restore(
    selected: SelectedOffsets,
    archived: Sequence[ArchivedPartition],
    section: KafkaSection,
    options: Mapping[str, Any],
) -> tuple[RestoredOffsets, Path | None, list[str]]:
    """The plan, the file of the previous offsets, and what is not on the target then."""
    from consumerd.handlers.forward.target_log import TargetLog  # noqa: PLC0415
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415
    from consumerd.operate.migrate.restored_offsets import OffsetsRestore  # noqa: PLC0415

    naming = topic_naming(options["renames"])
    async with open_target(section) as client:
        target = BrokerGroups(client)
        run = OffsetsRestore(
            selected.committed, archived, target, TargetLog(client, read_committed=True), naming.target
        )
        with progress("comparing") as shown:
            shown.begin(sum(each.bytes for each in archived), len(archived))

            def compared(partition: ArchivedPartition) -> None:
                shown.advance(partition.bytes)
                shown.segment(partition.messages)

            plan = await run.plan(compared)
        backup = None
        if options["execute"]:
            backup = await _write(target, plan, options["backup"])
        return plan, backup, await run.check(plan.allowed) if options["verify"] else []


async def _write(target: BrokerGroups, plan: RestoredOffsets, backup: Path | None) -> Path | None:
    """Commit what is planned. What the groups had on the target is saved first, if they had anything."""
    from consumerd.operate.admin.editing import backup_of  # noqa: PLC0415

    changes = [each.change for each in plan.writable]
    path = None
    if any(change.before is not None for change in changes):
        before = backup_of(changes)
        path = backup or backup_path(sorted(before))
        await write_backup(path, before)
    await target.write(changes, force=False)
    return path
