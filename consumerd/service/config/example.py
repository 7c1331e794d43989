"""The daemon's tables of `config.example.toml`, generated from the configuration model, so that it cannot fall behind.

The file has those of other rooms behind them; the outermost of these rooms prints it (`consumerd.spark.spec_example`).
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from consumerd.service.config.model import Config
from consumerd.service.config.toml_text import toml_value
from consumerd.service.config.validation import model_of

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


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The nested table that a field holds, also when it is optional."""
    candidates: list[Any] = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def table_lines(path: tuple[str, ...], model: type[BaseModel], *, commented: bool) -> list[str]:
    """The lines of one table with those nested in it. Tables in a dict get one entry, called NAME."""
    prefix = "# " if commented else ""
    lines = ["", *_comment(inspect.getdoc(model) or ""), f"{prefix}[{'.'.join(path)}]"]
    nested: list[str] = []
    for name, field in model.model_fields.items():
        inner = _model_of(field)
        named = getattr(field.annotation, "__origin__", None) is dict
        if inner is not None and not (named and field.examples):  # which have an example that is shorter
            nested += table_lines((*path, name, *(["NAME"] if named else [])), inner, commented=True)
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        shown = field.examples[0] if field.examples and (default in (None, {}) or (*path, name) in SET) else default
        lines += ["", *_comment(field.description or "")]
        active = (*path, name) in SET
        # No default and no example: show the shape of an empty text.
        lines.append(f"{'' if active else '# '}{name} = {toml_value('' if shown is None else shown)}")
    return lines + nested


def array_lines(name: str, model: type[BaseModel]) -> list[str]:
    """The lines of one element of an array of tables, all of them comments. A table that another one has is named."""
    lines = ["", *_comment(inspect.getdoc(model) or ""), f"# [[{name}]]"]
    later: list[str] = []
    for key, field in model.model_fields.items():
        inner = _model_of(field)
        if inner is not None and key in Config.fields and field.is_required():
            later = ["", *_comment(field.description or ""), f"# [{name}.{key}]"]
        elif inner is not None:
            for name_within, within in inner.model_fields.items():
                lines += ["", *_comment(within.description or "")]
                lines.append(f"# {key}.{name_within} = {toml_value(within.examples[0] if within.examples else '')}")
        else:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            shown = field.examples[0] if field.examples and default in (None, {}) else default
            lines += ["", *_comment(field.description or ""), f"# {key} = {toml_value(shown)}"]
    return lines + later


def example_toml() -> str:
    """The daemon's part of `config.example.toml`."""
    lines = [HEADER.rstrip("\n")]
    for name, field in model_of(Config).model_fields.items():
        model = _model_of(field)
        assert model is not None, name
        if getattr(field.annotation, "__origin__", None) is tuple:
            lines += array_lines(name, model)
            continue
        if not model.model_fields:
            continue  # of another room, which has an example of its own
        lines += table_lines((name,), model, commented=False)
    return "\n".join(lines) + "\n"
