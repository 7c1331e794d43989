"""The daemon's tables of `config.example.toml`, generated from their declarations, so that it cannot fall behind.

The file has those of other rooms behind them; the outermost of these rooms prints it (`consumerd.spark.spec_example`).
"""

from __future__ import annotations

import inspect
import textwrap
from typing import get_origin

from consumerd.base.settings.setting import Section, Setting
from consumerd.service.config.model import Config
from consumerd.service.config.toml_text import toml_value

HEADER = """\
# Example configuration of consumerd: every key, its meaning and its default.
# Lines that are commented out show the default, or an example where there is no default.
# Check a file with:  consumerd check -c FILE
# The environment wins over the file: CONSUMERD_GROUP__ID=other sets [group] id.
"""

#: Keys that the example sets, so that it is a configuration that works as it stands.
SET = {("group", "id"), ("group", "topics")}


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 110)]


def _shown(field: Setting, *, is_set: bool = False) -> str:
    """The default, or an example where there is none or where the key is set; else the shape of an empty text."""
    examples = field.more.get("examples")
    default = None if field.required else field.value()
    shown = examples[0] if examples and (default in (None, {}) or is_set) else default
    return toml_value("" if shown is None else shown)


def table_lines(path: tuple[str, ...], table: type[Section], *, commented: bool) -> list[str]:
    """The lines of one table with those nested in it. Tables in a dict get one entry, called NAME."""
    prefix = "# " if commented else ""
    lines = ["", *_comment(inspect.getdoc(table) or ""), f"{prefix}[{'.'.join(path)}]"]
    nested: list[str] = []
    for name, field in table.fields.items():
        inner, key = table.inner(name), field.alias or name
        named = get_origin(table.hints()[name]) is dict
        if inner is not None and not (named and field.more.get("examples")):  # which have an example that is shorter
            nested += table_lines((*path, key, *(["NAME"] if named else [])), inner, commented=True)
            continue
        is_set = (*path, name) in SET
        lines += ["", *_comment(field.about), f"{'' if is_set else '# '}{key} = {_shown(field, is_set=is_set)}"]
    return lines + nested


def array_lines(name: str, table: type[Section]) -> list[str]:
    """The lines of one element of an array of tables, all of them comments. A table that another one has is named."""
    lines = ["", *_comment(inspect.getdoc(table) or ""), f"# [[{name}]]"]
    later: list[str] = []
    for key, field in table.fields.items():
        inner = table.inner(key)
        if inner is not None and key in Config.fields and field.required:
            later = ["", *_comment(field.about), f"# [{name}.{key}]"]
        elif inner is not None:
            for within, each in inner.fields.items():
                lines += ["", *_comment(each.about), f"# {key}.{within} = {_shown(each)}"]
        else:
            lines += ["", *_comment(field.about), f"# {key} = {_shown(field)}"]
    return lines + later


def example_toml() -> str:
    """The daemon's part of `config.example.toml`."""
    lines = [HEADER.rstrip("\n")]
    for name, table in Config.tables().items():
        if get_origin(Config.hints()[name]) is tuple:
            lines += array_lines(name, table)
        else:
            lines += table_lines((name,), table, commented=False)
    return "\n".join(lines) + "\n"
