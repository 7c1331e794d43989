"""Options take their defaults from settings, and show them in --help."""

from dataclasses import fields, is_dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from consumerd.base.settings.processing import FetchSection
from consumerd.cli.consume import command as consume
from consumerd.cli.mirror import command as mirror
from consumerd.cli.produce import command as produce
from consumerd.cli.setting_option import SettingOption
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.producer import ProducerSettings, QueueSettings, V08ProducerSettings


@pytest.mark.parametrize(
    ("command", "option", "owner", "field"),
    [
        (consume, "--from", FetchSection, "initial"),
        (consume, "--isolation", ConsumerConfig, "isolation"),
        (mirror, "--from", FetchSection, "initial"),
        (mirror, "--verify-timeout", ProducerSettings, "verify_timeout"),
        (mirror, "--max-message-bytes", ProducerSettings, "max_message_bytes"),
        (produce, "--linger", V08ProducerSettings, "linger"),
        (produce, "--queue-size", QueueSettings, "queue_size"),
        (produce, "--verify-timeout", ProducerSettings, "verify_timeout"),
    ],
)
def test_help_shows_the_default_of_the_setting(command: click.Command, option: str, owner: Any, field: str) -> None:
    context = click.Context(command)
    found = next(each for each in command.params if option in each.opts)
    record = found.get_help_record(context)
    declared = {each.name: each.default for each in fields(owner)} if is_dataclass(owner) else owner.fields
    default = getattr(declared[field], "default", declared[field])
    shown = f"{default:g}" if isinstance(default, float) and found.get_default(context) is None else f"{default}"
    assert record is not None
    assert f"[default: {shown}" in record[1]
    assert found.get_default(context) in (None, default)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [("Seconds.", [], 15.0), ("Seconds. [default: {default}]", [], None), ("Seconds.", ["--x", "2"], 2.0)],
)
def test_passes_the_default_unless_it_is_only_shown(text: str, arguments: list[str], expected: float | None) -> None:
    @click.command()
    @click.option(
        "--x", cls=SettingOption, setting="consumerd.producer:ProducerSettings.verify_timeout", type=float, help=text
    )
    def command(x: float | None) -> None:
        click.echo(repr(x))

    assert CliRunner().invoke(command, arguments).output == f"{expected!r}\n"
    assert "{default}" not in CliRunner().invoke(command, ["--help"]).output
