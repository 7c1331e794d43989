"""What all tools that change offsets or delete say and write before they do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from consumerd.base.partition import TopicPartition

backup_option = click.option(
    "--backup",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for the previous offsets; it must not exist. [default: offsets-GROUP-TIME.json in this directory]",
)


def backup_path(groups: Sequence[str]) -> Path:
    """A name for a backup of these groups, made now."""
    name = groups[0] if len(groups) == 1 else f"{len(groups)}-groups"
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return Path(f"offsets-{safe}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z.json")


async def write_backup(path: Path, offsets: Mapping[str, Mapping[TopicPartition, int | None]], **more: object) -> None:
    """Write and sync the file, and print its path. Raises OffsetFileError; nothing may be changed then."""
    from consumerd.operate.admin.offset_file import format_json, write_durably  # noqa: PLC0415

    text = format_json(offsets, made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **more)
    await asyncio.to_thread(write_durably, path, text)
    click.echo(f"consumerd: the previous offsets are in {path}; restore them with `consumerd offsets import`", err=True)


def say_dry_run(what: str = "changed") -> None:
    """Say on standard error that nothing was changed, or deleted."""
    click.echo(f"consumerd: dry run, nothing was {what}: add --execute to do it", err=True)
