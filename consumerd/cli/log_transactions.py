"""`consumerd log transactions`: the transactional ids and their transactions, from `__transaction_state`."""

from __future__ import annotations

import json

import click

from consumerd.cli.archive_work import show_findings
from consumerd.cli.log_offsets import report_unread, topic_options
from consumerd.cli.offsets_input import parse_time
from consumerd.cli.tables import show_rows, utc_text

EXAMPLES = """\b
Examples:
  consumerd log transactions /var/lib/kafka
  consumerd log transactions --open /disk1/kafka /disk2/kafka
"""


@click.command("transactions", epilog=EXAMPLES)
@click.option("--open", "only_open", is_flag=True, help="Only transactions that were neither committed nor aborted.")
@topic_options("Print a JSON object per transactional id, and one per finding.")
def command(only_open: bool, at_time: str | None, as_json: bool, layout: str, paths: tuple[str, ...]) -> int:
    """Show the last transaction of each transactional id in an archive of brokers since 0.11, without a broker.

    PATH is as for `log verify`. Records of an open transaction are neither committed nor aborted: with `read_committed`
    a consumer does not see them, nor anything behind them. The exit code is 11 where a part cannot be read.
    """
    from consumerd.storage.archives.group_offsets import archived_transactions  # noqa: PLC0415 - `--help` needs none
    from consumerd.storage.archives.sources import find_sources  # noqa: PLC0415 - `--help` needs none

    until = None if at_time is None else parse_time(at_time).value
    found = archived_transactions(find_sources(paths), layout=layout, until=until)
    shown = {name: each for name, each in found.transactions.items() if each.is_open or not only_open}
    if as_json:
        for name, each in shown.items():
            click.echo(json.dumps({"transactional_id": name, **each.as_json()}))
        for finding in found.findings:
            click.echo(json.dumps(finding.as_json()))
    else:
        columns = [
            "transactional id",
            "state",
            ">producer id",
            ">epoch",
            "started (UTC)",
            "updated (UTC)",
            "partitions",
        ]
        show_rows(
            columns,
            (
                (
                    name,
                    each.state,
                    each.producer_id,
                    each.epoch,
                    utc_text(each.started),
                    utc_text(each.updated),
                    " ".join(f"{topic}/{partition}" for topic, partition in each.partitions),
                )
                for name, each in shown.items()
            ),
            kind="transaction" if found.findings else "",
        )
        show_findings(found.findings)
    return report_unread(found.findings, found.unreadable, "states may be too old", "transactions")
